#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/capture/capture_format.h"
#include "remote/transport/transport.h"

// Writes a capture: all frames between a client and its worker in one session. remote-replay can then run the session
// again without the script that recorded it. capture_frames() wraps a transport to do so. The graphs before the passes,
// which a client does not send, are added with source_graph(). remote/capture/capture.h reads captures.
namespace torch_remote::remote {

struct CaptureOptions {
  std::string path;                    // an existing file is overwritten
  uint64_t limit = uint64_t{4} << 30;  // in bytes; when it is reached, the capture ends and the session continues
  std::string torch_version = {};      // stored in the capture, for its reader
};

// Thread safe. A chunk is written to the file with one system call before a call returns, so that nothing is lost if
// the process dies. An error while writing (limit reached, disk full) is printed once to stderr; it ends the capture
// but not the session.
class CaptureWriter {
 public:
  // Returns kInvalid if the file cannot be written, or if another process or session is writing it.
  static Status open(const CaptureOptions& options, std::shared_ptr<CaptureWriter>* writer);
  // Writes the last chunk, which marks the capture as complete.
  ~CaptureWriter();
  CaptureWriter(const CaptureWriter&) = delete;
  CaptureWriter& operator=(const CaptureWriter&) = delete;

  // Records a frame. `header.length` and `header.checksum` need not be set.
  void sent(wire::Header header, std::span<const uint8_t> control, std::span<const std::byte> attachment);
  void received(wire::Header header, std::span<const uint8_t> control, std::span<const std::byte> attachment);

  // Records the graph from which program `number` is built, encoded with ir::encode_program. Must be called before the
  // program is sent.
  void source_graph(uint32_t number, std::span<const uint8_t> program);

  // Bytes written to the file.
  uint64_t written() const;
  // False after an error.
  bool is_open() const { return open_; }

  // For a forked child: closes the child's descriptor and writes nothing. Takes no lock.
  void abandon();

 private:
  struct Piece {
    const void* data;
    size_t size;
  };
  CaptureWriter(int file, const CaptureOptions& options);
  void frame(capture::ChunkType type, wire::Header& header, std::span<const uint8_t> control,
             std::span<const std::byte> attachment);
  // Write a chunk: its control part is `first` followed by `second`, which may be empty. write_chunk() checks the
  // limit; put() does not.
  void write_chunk(capture::ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment);
  void put(capture::ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment);
  void put_end(uint64_t limit);
  void stop(const std::string& why);

  const int file_;
  const std::string path_;
  const uint64_t limit_;
  const uint64_t began_;  // steady clock, in ns
  std::atomic<bool> open_{true};
  mutable std::mutex mutex_;
  uint64_t written_ = 0;  // in bytes
};

// Returns a transport that forwards everything to `inner` and records each frame with `writer`.
std::unique_ptr<Transport> capture_frames(std::unique_ptr<Transport> inner, std::shared_ptr<CaptureWriter> writer);

// Parses a number of bytes, with K, M or G for powers of 1024. `name` is the name of the setting, for the error
// message.
Status parse_bytes(const char* name, const char* text, uint64_t* bytes);

// Parses the values of TORCH_REMOTE_CAPTURE and TORCH_REMOTE_CAPTURE_LIMIT; null or empty means not set. If there is
// nothing to capture, `options->path` is empty. In the path, the first %p stands for the process id. Each call with a
// path counts as a session of this process. The first session gets the name as given, for example "name.rreplay"; the
// second one gets "name.2.rreplay". parse_bytes() parses the limit.
Status capture_options(const char* path, const char* limit, CaptureOptions* options);

}  // namespace torch_remote::remote
