#pragma once

#include <cstddef>
#include <cstdint>

// The format of a capture: a file header, then chunks. Integers are little endian. Headers, chunks and attachments are
// aligned to 64 bytes; the padding is zero. If a file ends inside a chunk, the process that wrote the file died, and
// everything before that chunk is valid.
//
// The format version changes when a reader of the old version would misread a new file. The flatbuffers
// (remote/capture/capture.fbs, remote/wire/wire.fbs) may get new fields in the same format version.
namespace torch_remote::capture {

inline constexpr char kMagic[8] = {'T', 'R', 'R', 'E', 'P', 'L', 'A', 'Y'};
inline constexpr uint32_t kFormatVersion = 2;
inline constexpr size_t kAlignment = 64;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t zero[13];
};
static_assert(sizeof(FileHeader) == kAlignment);

enum class ChunkType : uint32_t {
  kInfo = 1,  // control: Info
  kSent,      // control: wire::Header and control message of a frame to the worker; attachment: the frame's attachment
  kReceived,  // the same for a frame from the worker
  kSourceGraph,  // control: SourceGraph; attachment: the encoded graph
  kEnd,          // control: End
};

// Followed by `control` bytes, padding, `attachment` bytes, padding. The header has its own checksum, so that a damaged
// length is not mistaken for the end of a file that is still being written.
struct ChunkHeader {
  uint32_t header_checksum;  // CRC-32C of the rest of the header
  ChunkType type;
  uint64_t time;        // ns since the start of the capture
  uint64_t attachment;  // bytes
  uint32_t control;     // bytes
  uint32_t checksum;    // CRC-32C of everything after the header, including padding
};
static_assert(sizeof(ChunkHeader) == 32);
inline constexpr size_t kHeaderChecked = offsetof(ChunkHeader, type);  // where the checked part of the header begins

constexpr uint64_t align(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// Size of a chunk in bytes. `attachment` must be at most the size of a file, so that the sum cannot overflow.
constexpr uint64_t chunk_bytes(uint64_t control, uint64_t attachment) {
  return align(sizeof(ChunkHeader) + control) + align(attachment);
}

}  // namespace torch_remote::capture
