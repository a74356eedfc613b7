#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/device/deferred_failures.h"
#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/cuda/launch/location.h"

// The steps with which hand-written kernels (worker/targets/cuda/kernels) execute a node.
namespace torch_remote::worker::cuda {

// A kernel launch with its only argument, a struct of kernels/arguments.h.
struct OpLaunch {
  KernelFile file = KernelFile::kFill;
  const char* kernel = "";
  unsigned grid = 1, block = 1;
  std::vector<uint64_t> words;
  // Words that are known only in a run.
  struct Address {
    size_t word = 0;
    Location location;
  };
  struct Parameter {
    size_t word = 0;
    ir::Sym symbol = ir::kNoSym;
  };
  std::vector<Address> addresses;
  std::vector<Parameter> parameters;
  std::optional<size_t> scalars_word;  // WorkItem::scalars_word (work_queue.h). `parameters` are the words after it.
  std::optional<size_t> failure;       // The address of an IndexRecord; its operands are the plan's.
};

// Fills memory with one byte value.
struct OpFill {
  Location to;
  uint64_t nbytes = 0;
  uint8_t value = 0;
};

// Bytes that the host computes from the run's values.
struct OpUpload {
  Location to;
  std::function<std::vector<std::byte>(std::span<const int64_t> values)> make;
};

using OpStep = std::variant<StridedMove, OpLaunch, OpFill, OpUpload>;

// A result whose size depends on data.
struct DynamicResult {
  uint32_t view = 0;
  ir::DType dtype = ir::DType::kInt64;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};   // Empty: contiguous.
  std::optional<int64_t> number = {};  // The result is this number on the host.
};

struct OpPlan {
  std::vector<uint64_t> scratch;  // Bytes of each piece.
  std::vector<OpStep> steps;
  std::vector<IndexedOperand> operands;  // Operands that failures refer to.
  // With dynamic results: the location of an i64 that the host reads after the steps, and a function that plans the
  // rest. The second plan's scratch follows the first one's, and its buffers are those of the results.
  std::optional<Location> count;
  std::function<Status(int64_t count, OpPlan* rest, std::vector<DynamicResult>* results)> plan_rest;
};

inline Status unsupported(std::string what) { return {ErrorCode::kUnsupported, std::move(what)}; }

}  // namespace torch_remote::worker::cuda
