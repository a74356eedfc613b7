#pragma once

#include <cstddef>
#include <cstdint>

// Framing, which all transports share.
namespace torch_remote::wire {

inline constexpr uint32_t kMagic = 0x4D525254;  // "TRRM"
inline constexpr uint8_t kVersion = 2;

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
  kAcknowledge,
  kCloseSession,  // the client ends the session; without a control message
  kHasOp,
  kHasOpReply,
  kProfile,
  kProfileReply,
  kProfilePart,  // unsolicited, from the worker: the part of a profile that was recorded since the last one
  kMemory,
  kMemoryReply,
  kCancel,
  kRecordEvent,
  kRecordEventReply,
  kStatFile,
  kStatFileReply,
  kReadFile,
  kCallFunction,
  kCallFunctionReply,
  kCancelFunction,
  kUnloadPrograms,
  kShadow,
  kShadowReply,
  kReceivedAck = 190,  // resumable sessions: the sender has received all messages up to the header's sequence
  kSessionClosed,      // resumable sessions: the session is over
  kTransport = 200,    // from here on: messages of the transport itself (segments are announced, attachments returned)
};

// The name of a message for users and logs: "run", "upload", ...; "message" for an unknown number.
const char* name(Type type);

enum Flags : uint16_t {
  kWantsReply = 1,
  kAttachment = 2,      // the frame has tensor bytes; how they travel depends on the transport
  kBackgroundWork = 8,  // from the worker: ops of acknowledged messages still run in the background
  kSenderSpins = 4,     // set by the transport along with kWantsReply: the sender spins for the reply before it sleeps
};

// Every frame starts with this header: 32 bytes, little endian. `sequence` counts the client's messages of a session
// from 1. A message of the worker has the sequence of the message that it answers, or of the last one that is done. A
// Cancel has sequence 0.
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

// An event that a worker recorded. The attachment of a profile is an array of these. Times are the worker's
// CLOCK_MONOTONIC in ns.
struct ProfileEvent {
  static constexpr uint32_t kMessage = 0xFFFFFFFF;

  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t sequence = 0;        // of the message; for an op, of its Run message
  uint32_t program = kMessage;  // for an op: index among the programs of all parts; kMessage: a whole message
  uint32_t node = 0;            // for an op: its node in that program; for a message: its Type
};
static_assert(sizeof(ProfileEvent) == 32);

inline constexpr uint32_t kMaxControl = 256u << 20;

// CRC-32C (Castagnoli, RFC 3720 appendix B.4), computed with the processor's instruction if it has one. `previous_crc`
// is the checksum of the bytes that precede these.
uint32_t crc32c(const void* data, size_t size, uint32_t previous_crc = 0);
// The same checksum, always computed without that instruction.
uint32_t crc32c_portable(const void* data, size_t size, uint32_t previous_crc = 0);

}  // namespace torch_remote::wire
