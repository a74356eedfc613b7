#include "tests/guards/guard_pages.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

namespace torch_remote::worker::aten {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 64 * kPage;  // inaccessible bytes on either side

class GuardAllocator final : public c10::Allocator {
 public:
  GuardAllocator(GuardPlace place, size_t largest) : place_(place), largest_(largest) {}

  c10::DataPtr allocate(size_t nbytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= largest_, "a block of ", nbytes, " bytes is too large");
    const size_t pages = (nbytes + kPage - 1) / kPage * kPage;
    const size_t all = pages + 2 * kGuard;
    void* base = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, base != MAP_FAILED, "mmap: ", std::strerror(errno));
    char* begin = static_cast<char*>(base) + kGuard;
    if (pages) TORCH_CHECK(mprotect(begin, pages, PROT_READ | PROT_WRITE) == 0, "mprotect: ", std::strerror(errno));
    char* data = place_ == GuardPlace::kEnd ? begin + pages - nbytes : begin;
    {
      std::lock_guard lock(mutex());
      blocks()[data] = {base, all};
    }
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }

 private:
  struct Block {
    void* base;
    size_t nbytes;
  };
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::unordered_map<void*, Block>& blocks() {
    static auto* blocks = new std::unordered_map<void*, Block>;
    return *blocks;
  }
  static void free_block(void* data) {
    if (data == nullptr) return;
    std::lock_guard lock(mutex());
    const auto found = blocks().find(data);
    if (found == blocks().end()) return;
    munmap(found->second.base, found->second.nbytes);
    blocks().erase(found);
  }

  const GuardPlace place_;
  const size_t largest_;
};

}  // namespace

void use_guard_pages(GuardPlace place, size_t largest) {
  c10::SetAllocator(c10::kCPU, new GuardAllocator(place, largest), /*priority=*/255);
}

}  // namespace torch_remote::worker::aten
