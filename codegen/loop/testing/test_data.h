#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "codegen/loop/testing/random_kernel.h"

namespace torch_remote::codegen::testing {

struct TestDataOptions {
  int64_t max_points = 6000;  // of the domain
  // Some indices are out of their bounds. Without it, those that are elements of an operand of indices are not (but
  // what is computed may be).
  bool wrong_indices = true;
  bool aliases = true;    // what is stored may lie where another operand of the same places lies
  bool special = true;    // NaN, infinities, denormals, -0 among floats, extremes among integers
  bool unaligned = true;  // operands begin at any element, else at multiples of 64 bytes
};

// What a kernel is called with, and the memory of it. A copy has memory of its own: call two copies in two ways, and
// compare.
class TestData {
 public:
  // Random sizes, layouts (gaps, any order of dims, negative strides, stride 0 for what is only loaded) and numbers. An
  // index of a store that does not add is another one for each point, if it is an element of an operand.
  TestData(const Kernel& kernel, Rng& rng, const TestDataOptions& options = {});

  // Points into this object; any change to it or copy of it needs another call.
  Arguments arguments();

  // The first element that is not the same bit for bit (all NaNs are); "" if there is none. Of all memory, around the
  // operands, too.
  std::string difference(const TestData& other) const;

  // Sizes and strides, for messages.
  std::string describe() const;

  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  struct Buffer {
    ir::DType dtype = ir::DType::kUInt8;
    size_t elements = 0;
    std::vector<Line> lines = {};
    uint8_t* begin() { return lines.data()->bytes; }
    const uint8_t* begin() const { return lines.data()->bytes; }
  };
  struct View {
    uint32_t buffer = 0;
    size_t first = 0;  // element at place 0 of all dims
  };
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Buffer> buffers;
  std::vector<View> views;  // of each operand

 private:
  std::vector<void*> data_;
};

}  // namespace torch_remote::codegen::testing
