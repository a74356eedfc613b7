#pragma once

#include <cstdint>
#include <vector>

#include "ir/dtype.h"

// Where plans of nodes find elements.
namespace torch_remote::worker::cuda {

// An address: in a buffer of the graph or, from kScratch on, in memory that the plan wants.
inline constexpr uint32_t kScratch = 0x80000000, kNowhere = 0xFFFFFFFF;
struct Place {
  uint32_t buffer = kNowhere;
  uint64_t offset = 0;  // bytes
};

// Elements from one place to another one.
struct Moved {
  Place from, to;
  ir::DType from_type = ir::DType::kFloat32, to_type = ir::DType::kFloat32;
  std::vector<int64_t> sizes, from_strides, to_strides;  // elements
};

}  // namespace torch_remote::worker::cuda
