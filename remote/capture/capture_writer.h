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

// Writes a capture: everything that passes between a client and its worker in one session, so that remote-replay can
// run it again without the program that recorded it. `capture_frames` gives a transport that does so; what a client
// does not send (the graphs before the passes) is added by hand. remote/capture/capture.h reads it.
namespace torch_remote::remote {

struct CaptureOptions {
  std::string path;                    // an existing file is overwritten
  uint64_t limit = uint64_t{4} << 30;  // bytes; then the capture ends and the session goes on
  std::string torch_version = {};      // for the reader
};

// Thread safe. A chunk is in the file (one write) before the call returns, so that a process that dies leaves all that
// it did. What goes wrong while writing (limit, full disk) is said once on stderr and ends the capture, not the
// session.
class CaptureWriter {
 public:
  // kInvalid if the file cannot be written, or another process or session is writing it.
  static Status open(const CaptureOptions& options, std::shared_ptr<CaptureWriter>* writer);
  // Writes the mark of a complete capture.
  ~CaptureWriter();
  CaptureWriter(const CaptureWriter&) = delete;
  CaptureWriter& operator=(const CaptureWriter&) = delete;

  // A frame on its way. `header.length` and `header.checksum` need not be set.
  void sent(wire::Header header, std::span<const uint8_t> control, std::span<const std::byte> attachment);
  void received(wire::Header header, std::span<const uint8_t> control, std::span<const std::byte> attachment);

  // The graph that program `number` will be made from (ir::encode_program of it): before the program is sent.
  void source_graph(uint32_t number, std::span<const uint8_t> program);

  // Bytes in the file.
  uint64_t written() const;
  // False once something went wrong.
  bool is_open() const { return open_; }

  // In a forked child: closes the child's copy of the file, writes nothing. Takes no lock.
  void abandon();

 private:
  struct Piece {
    const void* data;
    size_t size;
  };
  CaptureWriter(int file, const CaptureOptions& options);
  void frame(capture::ChunkType type, wire::Header& header, std::span<const uint8_t> control,
             std::span<const std::byte> attachment);
  // A control part in two pieces (the second may be empty) and an attachment.
  void write_chunk(capture::ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment);
  void put(capture::ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment);
  void put_end(uint64_t limit);
  void stop(const std::string& why);

  const int file_;
  const std::string path_;
  const uint64_t limit_;
  const uint64_t began_;  // steady clock, ns
  std::atomic<bool> open_{true};
  mutable std::mutex mutex_;
  uint64_t written_ = 0;  // bytes
};

// A transport that passes everything on to `inner` and writes each frame to `writer`.
std::unique_ptr<Transport> capture_frames(std::unique_ptr<Transport> inner, std::shared_ptr<CaptureWriter> writer);

// A number of bytes, with K, M or G for powers of 1024. `name`: of the setting, for the error.
Status parse_bytes(const char* name, const char* text, uint64_t* bytes);

// What TORCH_REMOTE_CAPTURE and TORCH_REMOTE_CAPTURE_LIMIT (null or empty: not set) ask for. `path` is empty if nothing
// is to be captured. In the path, %p stands for the process. A process's first session has the name as given, its
// second one "name.2.rreplay" for "name.rreplay". The limit is a number of bytes, with K, M or G for powers of 1024.
Status capture_options(const char* path, const char* limit, CaptureOptions* options);

}  // namespace torch_remote::remote
