#pragma once

#include <cstdint>
#include <vector>

#include "ir/dtype.h"

// Where the plan of a node finds elements.
namespace torch_remote::worker::cuda {

// A location in a buffer of the graph or, from kScratch on, in scratch memory that the plan requests.
inline constexpr uint32_t kScratch = 0x80000000, kNoLocation = 0xFFFFFFFF;
struct Location {
  uint32_t buffer = kNoLocation;
  uint64_t offset = 0;  // bytes
};

// A strided copy of elements from one location to another.
struct StridedMove {
  Location from, to;
  ir::DType from_type = ir::DType::kFloat32, to_type = ir::DType::kFloat32;
  std::vector<int64_t> sizes, from_strides, to_strides;  // elements
};

}  // namespace torch_remote::worker::cuda
