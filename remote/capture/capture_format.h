#pragma once

#include <cstddef>
#include <cstdint>

// The bytes of a capture: a file header, then chunks. Little endian; headers, chunks and attachments are aligned to 64
// bytes, and what lies between is zero. A file that ends inside a chunk was being written when its process died:
// everything before that chunk counts.
//
// The format's version changes when a reader of the old one would misread a new file. Flatbuffers
// (remote/capture/capture.fbs, remote/wire/wire.fbs) may grow fields without that.
namespace torch_remote::capture {

inline constexpr char kMagic[8] = {'T', 'R', 'R', 'E', 'P', 'L', 'A', 'Y'};
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr size_t kAlignment = 64;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t zero[13];
};
static_assert(sizeof(FileHeader) == kAlignment);

enum class ChunkType : uint32_t {
  kInfo = 1,     // control: Info
  kSent,         // control: wire::Header and control message of a frame to the worker; attachment: the frame's
  kReceived,     // likewise, from the worker
  kSourceGraph,  // control: SourceGraph; attachment: the program
  kEnd,          // control: End
};

// Followed by `control` bytes, padding, `attachment` bytes, padding. The header has a checksum of its own, so that a
// damaged length is not taken for the end of a file that is still being written.
struct ChunkHeader {
  uint32_t header_checksum;  // CRC-32C of the rest of the header
  ChunkType type;
  uint64_t time;        // nanoseconds since the capture began
  uint64_t attachment;  // bytes
  uint32_t control;     // bytes
  uint32_t checksum;    // CRC-32C of what follows the header, padding included
};
static_assert(sizeof(ChunkHeader) == 32);
inline constexpr size_t kHeaderChecked = offsetof(ChunkHeader, type);  // where the header's checksum begins

constexpr uint64_t align(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes of a chunk. `attachment` is no more than a file can have.
constexpr uint64_t chunk_bytes(uint64_t control, uint64_t attachment) {
  return align(sizeof(ChunkHeader) + control) + align(attachment);
}

}  // namespace torch_remote::capture
