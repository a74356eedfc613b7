#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "codegen/loop/testing/random_kernel.h"

namespace torch_remote::codegen::testing {

struct TestDataOptions {
  int64_t max_points = 6000;  // of the domain
  // Some indices are out of bounds. If false, indices that are loaded from an operand are in bounds, but computed ones
  // may not be.
  bool wrong_indices = true;
  bool aliases = true;    // a stored operand may share the memory of another operand with the same positions
  bool special = true;    // NaN, infinities, denormals and -0 among floats, extremes among integers
  bool unaligned = true;  // operands begin at any element; otherwise at multiples of 64 bytes
};

// The arguments of a kernel, and their memory. A copy of this object has memory of its own. To compare two executions
// of a kernel, give each of them a copy.
class TestData {
 public:
  // Makes random sizes, numbers and layouts: gaps, any order of dims, negative strides, and stride 0 for operands that
  // are only loaded. If a store does not add and loads its index from an operand, each point has another index.
  TestData(const Kernel& kernel, Rng& rng, const TestDataOptions& options = {});

  // The pointers refer to this object. Call it again after any change or copy.
  Arguments arguments();

  // Describes the first element that differs in its bits (all NaNs are equal); "" if there is none. Compares the memory
  // around the operands, too.
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
    size_t first = 0;  // the element at position 0 of all dims
  };
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Buffer> buffers;
  std::vector<View> views;  // of each operand

 private:
  std::vector<void*> data_;
};

}  // namespace torch_remote::codegen::testing
