#include "remote/wire/wire.h"

#include <array>
#include <cstring>

namespace torch_remote::wire {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // the Castagnoli polynomial, bit-reversed

// tables[k][b] is the checksum of byte b followed by k zero bytes. With it we process eight bytes per step ("slicing by
// 8", Kounavis and Berry 2008).
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t crc = tables[k - 1][b];
      tables[k][b] = crc >> 8 ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, size_t size, uint32_t before) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint64_t crc = static_cast<uint32_t>(~before);
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  uint32_t tail = static_cast<uint32_t>(crc);
  for (; size > 0; ++p, --size) tail = __builtin_ia32_crc32qi(tail, *p);
  return ~tail;
}
#endif

}  // namespace

const char* name(Type type) {
  switch (type) {
    case Type::kHello:
    case Type::kHelloReply:
      return "hello";
    case Type::kLoadProgram:
      return "load program";
    case Type::kRun:
    case Type::kRunReply:
      return "run";
    case Type::kUpload:
      return "upload";
    case Type::kFree:
      return "free";
    case Type::kRead:
    case Type::kReadReply:
      return "read";
    case Type::kSynchronize:
    case Type::kSynchronizeReply:
      return "synchronize";
    case Type::kAcknowledge:
      return "acknowledge";
    case Type::kCloseSession:
      return "close session";
    case Type::kHasOp:
    case Type::kHasOpReply:
      return "has op";
    case Type::kProfile:
    case Type::kProfileReply:
      return "profile";
    case Type::kProfilePart:
      return "hand over profile";
    case Type::kMemory:
    case Type::kMemoryReply:
      return "memory";
    case Type::kCancel:
      return "cancel";
    case Type::kRecordEvent:
    case Type::kRecordEventReply:
      return "record event";
    case Type::kStatFile:
    case Type::kStatFileReply:
      return "stat file";
    case Type::kCallFunction:
    case Type::kCallFunctionReply:
    case Type::kCancelFunction:
      return "call";
    case Type::kReadFile:
      return "read file";
    case Type::kUnloadPrograms:
      return "unload programs";
    case Type::kShadow:
    case Type::kShadowReply:
      return "shadow";
    case Type::kReceivedAck:
    case Type::kSessionClosed:
    case Type::kTransport:
      break;
  }
  return "message";
}

uint32_t crc32c_portable(const void* data, size_t size, uint32_t previous_crc) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint32_t crc = ~previous_crc;
  for (; size >= 8; p += 8, size -= 8) {
    uint32_t next = 0;
    for (size_t i = 0; i < 4; ++i) {
      next ^= kTables[7 - i][(crc >> (8 * i) & 0xFF) ^ p[i]];
      next ^= kTables[3 - i][p[4 + i]];
    }
    crc = next;
  }
  for (; size > 0; ++p, --size) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 0xFF];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t size, uint32_t previous_crc) {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return crc32c_sse42(data, size, previous_crc);
#endif
  return crc32c_portable(data, size, previous_crc);
}

}  // namespace torch_remote::wire
