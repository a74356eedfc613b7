#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "remote/wire/delta.h"

// Reads a capture: one session of a client and its worker, as written with TORCH_REMOTE_CAPTURE=file.rreplay.
// remote/capture/capture_writer.h writes it; remote/capture/capture_format.h defines the bytes.
namespace torch_remote::remote {

struct CaptureInfo {
  std::string torch_version;  // empty: unknown
  uint32_t process = 0;       // the client's process id
  int64_t time = 0;           // ns since 1970
};

enum class CaptureEnding {
  kComplete,  // the session ended
  kLimit,     // the capture reached its limit in bytes; the session continued
  kCutOff,    // the process that wrote it died, or is still running
};

// An error that a worker reported.
struct CapturedError {
  Status status;
  uint32_t program = 0;   // program of the run that failed; 0: not a run
  uint32_t record = 0;    // Node::record of the node that failed
  uint64_t sequence = 0;  // sequence of the Run message; 0: not a run
};

struct CapturedProgram {
  uint32_t number = 0;  // number that the client chose, from 1
  // The graph before the passes, with the lines of user code; absent if the client did not record it.
  std::optional<ir::Graph> source;
  ir::Graph graph;                   // as the worker received it, with the lines of `source`
  std::span<const uint8_t> encoded;  // the bytes that the worker received
  std::vector<uint32_t> inputs;  // input buffers of the graph (the same in both graphs), in the order of a run's inputs
  std::vector<uint32_t> survivors;  // fresh buffers that survive a run, in the order of their ids
};
using CapturedProgramPtr = std::shared_ptr<const CapturedProgram>;

// Events are in the order in which the client sent its messages. A reply is part of the event of the message that it
// answers, no matter when it arrived. All spans point into the capture and live as long as the reader.

struct ProgramEvent {
  CapturedProgramPtr program;
};

struct RunEvent {
  CapturedProgramPtr program;
  std::vector<int64_t> params;      // all parameters
  std::vector<uint64_t> inputs;     // buffer ids in the order of CapturedProgram::inputs
  uint64_t first_result_id = 0;     // the survivors get the ids first_result_id, first_result_id + 1, ...
  std::vector<uint64_t> freed_ids;  // ids freed after the run
  ir::MathModes math_modes = 0;
  bool wants_reply = false;
  bool has_reply = false;              // whether the reply is in the capture
  std::vector<int64_t> result_words;   // of the reply; see RunReply in remote/wire/wire.fbs
  std::optional<CapturedError> error;  // of the reply
};

struct UploadEvent {
  uint64_t buffer = 0;  // id of the new buffer
  std::span<const std::byte> bytes;
};

struct ReadEvent {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::vector<int64_t> sizes, strides;  // in elements
  int64_t offset = 0;
  bool has_reply = false;
  std::span<const std::byte> bytes;  // packed, in row-major order
  std::optional<CapturedError> error;
};

struct FreeEvent {
  std::vector<uint64_t> buffers;
};

struct SynchronizeEvent {
  bool has_reply = false;
  std::optional<CapturedError> error;
};

// An error that the worker reported unsolicited. Its place among the other events depends on timing.
struct ErrorEvent {
  CapturedError error;
};

struct CaptureEvent {
  uint64_t sequence = 0;  // of the client's message; for ErrorEvent, of the last message that the worker had finished
  uint64_t time = 0;      // ns since the start of the capture: when the message was sent (for ErrorEvent, received)
  std::variant<ProgramEvent, RunEvent, UploadEvent, ReadEvent, FreeEvent, SynchronizeEvent, ErrorEvent> what;
};

// Accepts any bytes. Returns kInvalid for damaged ones, with the offset of the chunk. Returns kUnsupported for another
// version of the format or the op table, with both versions. Registers ops outside of the op table when a program has
// them. Not thread safe.
class CaptureReader {
 public:
  // Checks the file header and all checksums. The messages themselves are checked in `next`. The file is mapped, so it
  // must not be truncated while the reader lives. A file that is still being written may be read.
  static Status open(const std::string& path, std::unique_ptr<CaptureReader>* reader);
  static Status parse(std::vector<std::byte> bytes, std::unique_ptr<CaptureReader>* reader);
  // Whether the bytes begin like a capture of any version.
  static bool is_capture(std::span<const std::byte> bytes);

  virtual ~CaptureReader() = default;
  const CaptureInfo& info() const { return info_; }
  CaptureEnding ending() const { return ending_; }
  uint64_t size() const { return bytes_.size(); }  // size of the file in bytes

  // Sets *event to the next event, or to nullopt after the last one.
  Status next(std::optional<CaptureEvent>* event);
  // Makes `next` start from the beginning.
  void rewind();

 protected:
  CaptureReader() = default;
  Status index(std::span<const std::byte> bytes);

 private:
  struct Chunk {
    uint64_t offset;  // of the chunk in the file
    uint64_t time;
    std::span<const uint8_t> control;
    std::span<const std::byte> attachment;
  };
  // The state of the delta encoding.
  struct ProgramState {
    CapturedProgramPtr program;
    std::vector<int64_t> params;
    Bindings bindings;
  };

  Status take(const Chunk& chunk, uint32_t type);
  Status source_graph(const Chunk& chunk);
  Status load_program(const Chunk& chunk, CaptureEvent* event);
  Status run(const Chunk& chunk, uint64_t sequence, bool wants_reply, CaptureEvent* event);
  Status upload(const Chunk& chunk, CaptureEvent* event);
  Status read(const Chunk& chunk, uint64_t sequence, CaptureEvent* event);
  Status free(const Chunk& chunk, CaptureEvent* event);
  Status unload(const Chunk& chunk);
  Status synchronize(const Chunk& chunk, uint64_t sequence, CaptureEvent* event);
  Status acknowledge(const Chunk& chunk, CaptureEvent* event, bool* is_event);
  // Sets *message to the reply to a message, or to null if there is none.
  template <class Message>
  Status answer(uint64_t sequence, const Message** message, std::span<const std::byte>* attachment) const;

  std::span<const std::byte> bytes_;
  CaptureInfo info_;
  CaptureEnding ending_ = CaptureEnding::kCutOff;
  struct IndexedChunk {
    Chunk chunk;
    uint32_t type;
  };
  std::vector<IndexedChunk> chunks_;             // chunks that may be events
  std::unordered_map<uint64_t, Chunk> answers_;  // replies by sequence

  // State of the iteration.
  size_t next_ = 0;
  std::map<uint32_t, Chunk> source_graphs_;
  std::map<uint32_t, ProgramState> programs_;
};

}  // namespace torch_remote::remote
