#include "codegen/cpu/executable_code.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace torch_remote::codegen::cpu {

ExecutableCode::ExecutableCode(ExecutableCode&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ExecutableCode& ExecutableCode::operator=(ExecutableCode&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ExecutableCode::~ExecutableCode() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

Status ExecutableCode::load(std::span<const uint8_t> bytes, ExecutableCode* code) {
  if (bytes.empty()) return Status::invalid("codegen: there is no code to load");
  void* memory = mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return {ErrorCode::kOutOfMemory, std::string("codegen: no memory for code: ") + std::strerror(errno)};
  }
  ExecutableCode placed;
  placed.data_ = static_cast<uint8_t*>(memory);
  placed.size_ = bytes.size();
  std::memcpy(memory, bytes.data(), bytes.size());
  if (mprotect(memory, bytes.size(), PROT_READ | PROT_EXEC) != 0) {
    return Status::internal(std::string("codegen: this system does not allow executable memory: ") +
                            std::strerror(errno));
  }
  // Processors other than x86 may have stale instructions of these addresses in their caches.
  __builtin___clear_cache(static_cast<char*>(memory), static_cast<char*>(memory) + bytes.size());
  *code = std::move(placed);
  return {};
}

}  // namespace torch_remote::codegen::cpu
