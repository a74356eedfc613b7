#include <ATen/core/Tensor.h>
#include <ATen/ops/_fft_c2c.h>
#include <ATen/ops/_fft_c2r.h>
#include <ATen/ops/_fft_r2c.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "ir/testing/fuzz.h"
#include "worker/targets/aten/kernels/fft.h"

// FFTs write only to their own memory. MKL allocates its buffers with malloc, which this file replaces: while a
// transform runs, each block ends at a page without access, and the bytes around a block are checked when it is freed.

// NOLINTBEGIN(bugprone-reserved-identifier): glibc's own names
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace {

constexpr size_t kPage = 4096;
constexpr uintptr_t kBegin = uintptr_t{0x10} << 40, kEnd = uintptr_t{0x50} << 40;  // used by nothing else on Linux
constexpr size_t kLeast = 256;                                                     // smaller blocks are libc's
constexpr uint8_t kFill = 0xa7;

thread_local bool guarding = false;
std::atomic<uintptr_t> next = kBegin;
std::atomic<size_t> guarded = 0;

// Is in the page before the block's first page.
struct Header {
  uint8_t* end;
  size_t bytes;
};

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
bool is_guarded(const void* block) {
  return reinterpret_cast<uintptr_t>(block) >= kBegin && reinterpret_cast<uintptr_t>(block) < kEnd;
}
Header* header_of(void* block) {
  auto* const bytes = static_cast<uint8_t*>(block);
  return reinterpret_cast<Header*>(bytes - reinterpret_cast<uintptr_t>(block) % kPage - kPage);
}

void* allocate(size_t bytes, size_t alignment) {
  if (!guarding || bytes < kLeast || alignment > kPage) return __libc_memalign(std::max<size_t>(alignment, 16), bytes);
  const size_t length = round_up(round_up(bytes, alignment), kPage) + kPage;
  // A page between two blocks is not mapped.
  auto* const place = reinterpret_cast<void*>(next.fetch_add(length + kPage));  // NOLINT(performance-no-int-to-ptr)
  void* const mapped =
      mmap(place, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != place) return nullptr;
  auto* const end = static_cast<uint8_t*>(mapped) + length;
  std::memset(static_cast<uint8_t*>(mapped) + kPage, kFill, length - kPage);
  uint8_t* const block = end - round_up(bytes, alignment);
  *header_of(block) = {end, bytes};
  ++guarded;
  return block;
}

void release(void* block) {
  const Header header = *header_of(block);
  auto* const first = reinterpret_cast<uint8_t*>(header_of(block)) + kPage;
  const auto is_filled = [](const uint8_t* from, const uint8_t* to) {
    return std::all_of(from, to, [](uint8_t byte) { return byte == kFill; });
  };
  if (!is_filled(first, static_cast<uint8_t*>(block)) ||
      !is_filled(static_cast<uint8_t*>(block) + header.bytes, header.end)) {
    std::abort();  // written outside of the block
  }
  munmap(header_of(block), header.end - first + kPage);
}

}  // namespace

extern "C" {

void* malloc(size_t bytes) { return guarding ? allocate(bytes, 16) : __libc_malloc(bytes); }
void free(void* block) {
  if (is_guarded(block)) return release(block);
  __libc_free(block);
}
void* calloc(size_t count, size_t bytes) {
  if (!guarding) return __libc_calloc(count, bytes);
  void* const block = allocate(count * bytes, 16);
  return block == nullptr ? nullptr : std::memset(block, 0, count * bytes);
}
void* realloc(void* block, size_t bytes) {
  if (!is_guarded(block)) return __libc_realloc(block, bytes);
  void* const moved = allocate(bytes, 16);
  if (moved != nullptr) {
    std::memcpy(moved, block, std::min(bytes, header_of(block)->bytes));
    release(block);
  }
  return moved;
}
void* memalign(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }
void* aligned_alloc(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = allocate(bytes, alignment);
  return *block == nullptr ? ENOMEM : 0;
}

}  // extern "C"

namespace torch_remote::worker::aten {
namespace {

// Random shapes, dims, strides and batches, with one large dim, for FUZZ_SECONDS (default 4).
TEST(FftMemory, NothingOutsideOfBlocksIsTouched) {
  transform_dims_apart();
  const ir::testing::FuzzOptions options = ir::testing::fuzz_options();
  const auto end = std::chrono::steady_clock::now() + options.time.value_or(std::chrono::seconds(4));
  std::mt19937_64 random(options.seed);
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int64_t count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) {
    const int64_t rank = draw(2, 4);
    std::vector<int64_t> sizes(rank), order(rank), dims;
    for (int64_t& size : sizes) size = draw(1, rank == 2 ? 48 : 8);
    sizes[draw(0, rank - 1)] = draw(1, std::array<int64_t, 3>{64, 512, 2000}[draw(0, 2)]);
    if (draw(0, 1) == 1) sizes.push_back(draw(1, 4)), order.push_back(0);  // a batch
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    dims.assign(order.begin(), order.begin() + rank);
    if (draw(0, 1) == 1) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (const int64_t dim : order) strides[dim] = std::exchange(stride, stride * sizes[dim]);
    const bool is_double = draw(0, 1) == 1;
    const at::ScalarType real = is_double ? at::kDouble : at::kFloat, complex = at::toComplexType(real);
    const at::Tensor self = at::zeros({stride}, complex).as_strided(sizes, strides);
    const at::Tensor reals = at::zeros({stride}, real).as_strided(sizes, strides);
    guarding = true;
    switch (draw(0, 2)) {
      case 0:
        (void)at::_fft_c2c(self, dims, /*normalization=*/0, /*forward=*/draw(0, 1) == 1);
        break;
      case 1:
        (void)at::_fft_c2r(self, dims, 0, std::max<int64_t>(2 * (sizes[dims.back()] - 1) + draw(0, 1), 1));
        break;
      default:
        (void)at::_fft_r2c(reals, dims, 0, /*onesided=*/true);
    }
    guarding = false;
  }
  std::printf("%lld transforms, %zu blocks\n", static_cast<long long>(count), guarded.load());
  EXPECT_GT(guarded.load(), static_cast<size_t>(2 * count));  // the result, and at least one buffer of MKL's
}

}  // namespace
}  // namespace torch_remote::worker::aten
