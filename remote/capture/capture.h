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

// Reads a capture: one session of a client and its worker, as TORCH_REMOTE_CAPTURE=file.rreplay wrote it
// (remote/capture/capture_writer.h; the bytes: remote/capture/capture_format.h).
namespace torch_remote::remote {

struct CaptureInfo {
  uint64_t fingerprint = 0;  // of the op table: this build's, others are refused
  std::string table_version;
  std::string torch_version;  // empty: not known
  uint32_t process = 0;       // the client's pid
  int64_t time = 0;           // nanoseconds since 1970
};

enum class CaptureEnding {
  kComplete,  // the session ended
  kLimit,     // the capture reached its limit of bytes; the session went on
  kCutOff,    // the process that wrote it died, or is still running
};

// What a worker reported.
struct CapturedError {
  Status status;
  uint32_t program = 0;   // of the run that failed; 0: none
  uint32_t record = 0;    // Node::source of the node that failed
  uint64_t sequence = 0;  // of the run; 0: none
};

struct CapturedProgram {
  uint32_t number = 0;  // the client's, from 1
  // Before the passes, with the user's lines; absent for a program whose client did not say.
  std::optional<ir::Graph> source;
  ir::Graph graph;                   // as the worker got it, with the lines of `source`
  std::span<const uint8_t> encoded;  // the bytes that it got
  std::vector<uint32_t> inputs;      // buffers of the graph (the same in both), in the order of a run's inputs
  std::vector<uint32_t> survivors;   // fresh buffers that outlive a run, in the order of their ids
};
using CapturedProgramPtr = std::shared_ptr<const CapturedProgram>;

// Events come in the order in which the client sent its messages; an answer is with its question, wherever it came. All
// spans point into the capture and live as long as the reader.

struct ProgramEvent {
  CapturedProgramPtr program;
};

struct RunEvent {
  CapturedProgramPtr program;
  std::vector<int64_t> params;   // all of them
  std::vector<uint64_t> inputs;  // ids of buffers, in the order of CapturedProgram::inputs
  uint64_t base = 0;             // the survivors have the ids base, base + 1, ...
  std::vector<uint64_t> frees;   // ids that are freed after the run
  ir::MathModes math = 0;
  bool wants_reply = false;
  bool answered = false;               // the reply is in the capture
  std::vector<int64_t> words;          // of the reply: see RunReply in remote/wire/wire.fbs
  std::optional<CapturedError> error;  // of the reply
};

struct UploadEvent {
  uint64_t buffer = 0;  // a new one
  std::span<const std::byte> bytes;
};

struct ReadEvent {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::vector<int64_t> sizes, strides;  // elements
  int64_t offset = 0;
  bool answered = false;
  std::span<const std::byte> bytes;  // packed, row-major
  std::optional<CapturedError> error;
};

struct FreeEvent {
  std::vector<uint64_t> buffers;
};

struct SynchronizeEvent {
  bool answered = false;
  std::optional<CapturedError> error;
};

// An error that the worker reported without being asked. Where it stands among the others is a matter of timing.
struct ErrorEvent {
  CapturedError error;
};

struct CaptureEvent {
  uint64_t sequence = 0;  // of the client's message; for ErrorEvent of the last message that was done
  uint64_t time = 0;      // when it was sent (ErrorEvent: received), nanoseconds since the capture began
  std::variant<ProgramEvent, RunEvent, UploadEvent, ReadEvent, FreeEvent, SynchronizeEvent, ErrorEvent> what;
};

// Accepts any bytes: kInvalid for damaged ones, with the offset of the chunk; kUnsupported for another version of the
// format or the op table, with both versions. Ops outside the table are registered as their programs are met. Not
// thread safe.
class CaptureReader {
 public:
  // Checks the file header and all checksums; what the messages say is checked as they come up in `next`. The file is
  // mapped, not read: it must not be cut while the reader lives. A file that is being written may be read.
  static Status open(const std::string& path, std::unique_ptr<CaptureReader>* reader);
  static Status parse(std::vector<std::byte> bytes, std::unique_ptr<CaptureReader>* reader);
  // Whether bytes begin like a capture's, of any version.
  static bool is_capture(std::span<const std::byte> bytes);

  virtual ~CaptureReader() = default;
  const CaptureInfo& info() const { return info_; }
  CaptureEnding ending() const { return ending_; }
  uint64_t size() const { return bytes_.size(); }  // bytes of the file

  // The next event; nothing after the last one.
  Status next(std::optional<CaptureEvent>* event);
  // `next` begins again.
  void rewind();

 protected:
  CaptureReader() = default;
  Status index(std::span<const std::byte> bytes);

 private:
  struct Chunk {
    uint64_t offset;  // of the chunk
    uint64_t time;
    std::span<const uint8_t> control;
    std::span<const std::byte> attachment;
  };
  // What the two ends of the delta coding hold.
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
  Status progress(const Chunk& chunk, CaptureEvent* event, bool* is_event);
  // The answer to a message: null if there is none.
  template <class Message>
  Status answer(uint64_t sequence, const Message** message, std::span<const std::byte>* attachment) const;

  std::span<const std::byte> bytes_;
  CaptureInfo info_;
  CaptureEnding ending_ = CaptureEnding::kCutOff;
  struct Place {
    Chunk chunk;
    uint32_t type;
  };
  std::vector<Place> chunks_;                    // those that may be events
  std::unordered_map<uint64_t, Chunk> answers_;  // by sequence

  // Of the iteration.
  size_t next_ = 0;
  std::map<uint32_t, Chunk> source_graphs_;
  std::map<uint32_t, ProgramState> programs_;
};

}  // namespace torch_remote::remote
