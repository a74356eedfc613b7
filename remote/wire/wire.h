#pragma once

#include <cstddef>
#include <cstdint>

// The framing: the same over every transport.
namespace torch_remote::wire {

inline constexpr uint32_t kMagic = 0x4D525254;  // "TRRM"
inline constexpr uint8_t kVersion = 1;

enum class Type : uint8_t {
  kHello = 1,
  kHelloReply,
  kLoadProgram,
  kRun,
  kRunReply,
  kUpload,
  kFree,
  kRead,
  kReadReply,
  kSynchronize,
  kSynchronizeReply,
  kProgress,
  kGoodbye,  // the client is done; no control message
  kHasOp,
  kHasOpReply,
  kProfile,
  kProfileReply,
  kProfilePart,  // from the worker, without being asked: a ProfileReply's part so far
  kMemory,
  kMemoryReply,
  kCancel,
  kMark,
  kMarkReply,
  kFile,
  kFileReply,
  kReadFile,
  kCall,
  kCallReply,
  kEndCall,
  kUnload,
  kReceived = 190,   // of a session that can be resumed: how many messages the other end has (header's sequence)
  kEnd,              // likewise: it is over
  kTransport = 200,  // from here on: the transport's own (segments announced, attachments given back)
};

// For people: "run", "upload", ...; "message" for a number that is none.
const char* name(Type type);

enum Flags : uint16_t {
  kWantsReply = 1,
  kAttachment = 2,  // tensor bytes come with this frame, in the way of the transport
  kAtWork = 8,      // of a worker's: what it acknowledges is done but for ops that go on in the background
  kLooks = 4,       // with kWantsReply, by the transport: the sender looks for the reply before it sleeps
};

// Little endian, 32 bytes, at the start of every frame. `sequence` counts the client's messages of a session from 1;
// what the worker sends has that of the message it answers, or of the last one that is done. A Cancel has none: 0.
struct Header {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  uint8_t type = 0;
  uint16_t flags = 0;
  uint64_t session = 0;
  uint64_t sequence = 0;
  uint32_t length = 0;    // bytes of the control message that follows
  uint32_t checksum = 0;  // CRC-32C of the control message
};
static_assert(sizeof(Header) == 32);

// What a worker recorded: a profile's attachment is an array of these. Times are its CLOCK_MONOTONIC, in ns.
struct ProfileEvent {
  static constexpr uint32_t kMessage = 0xFFFFFFFF;

  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t sequence = 0;        // of the message; of an op: of the Run message that it belongs to
  uint32_t program = kMessage;  // an op: index in the programs of all parts. kMessage: a whole message
  uint32_t node = 0;            // an op: of that program. A message: its Type
};
static_assert(sizeof(ProfileEvent) == 32);

inline constexpr uint32_t kMaxControl = 256u << 20;

// CRC-32C (Castagnoli, RFC 3720 appendix B.4), with the processor's instruction where there is one. `before`: of the
// bytes that come before these.
uint32_t crc32c(const void* data, size_t size, uint32_t before = 0);
// The same without it.
uint32_t crc32c_portable(const void* data, size_t size, uint32_t before = 0);

}  // namespace torch_remote::wire
