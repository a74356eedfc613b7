#include <algorithm>

#include "tests/emulated_gpu/emulator/worker.h"

// Computes warp operations from the operands of all participating lanes. See PTX ISA: shfl.sync, vote.sync, match.sync,
// redux.sync.
namespace torch_remote::codegen::emulator {
namespace {

constexpr uint64_t kHigh = uint64_t{1} << 32;  // the predicate, for operations that return one, too

// The lane that a shuffle reads, and whether it is inside its segment.
struct Source {
  uint32_t lane;
  bool inside;
};
Source source(const Thread& thread) {
  const uint32_t lane = thread.registers.lane, segment = thread.clamp >> 8 & 31, b = thread.lane & 31;
  const uint32_t low = lane & segment;
  const auto high = static_cast<int>(low | (thread.clamp & 31 & ~segment));
  int from = 0;
  switch (thread.op) {
    case WarpOp::kShuffleUp:
      from = static_cast<int>(lane) - static_cast<int>(b);
      break;
    case WarpOp::kShuffleDown:
      from = static_cast<int>(lane + b);
      break;
    case WarpOp::kShuffleButterfly:
      from = static_cast<int>(lane ^ b);
      break;
    default:
      from = static_cast<int>(low | (b & ~segment));
      break;
  }
  const bool inside = thread.op == WarpOp::kShuffleUp ? from >= high : from <= high;
  return {inside ? static_cast<uint32_t>(from) : lane, inside};
}

uint32_t reduce(WarpOp op, uint32_t a, uint32_t b) {
  const auto x = static_cast<int32_t>(a), y = static_cast<int32_t>(b);
  switch (op) {
    case WarpOp::kAdd:
      return a + b;
    case WarpOp::kMin:
      return static_cast<uint32_t>(std::min(x, y));
    case WarpOp::kMax:
      return static_cast<uint32_t>(std::max(x, y));
    case WarpOp::kUnsignedMin:
      return std::min(a, b);
    case WarpOp::kUnsignedMax:
      return std::max(a, b);
    case WarpOp::kAnd:
      return a & b;
    case WarpOp::kOr:
      return a | b;
    default:
      return a ^ b;
  }
}

}  // namespace

// `there`: the participating lanes.
uint64_t Worker::warp_result(Thread& thread, uint32_t there) {
  const Thread* lanes = &thread - thread.registers.lane;
  const auto lanes_with = [&](auto condition) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < kWarp; ++i) {
      if ((there >> i & 1) != 0 && condition(lanes[i].value)) result |= 1u << i;
    }
    return result;
  };
  const auto is_true = [](uint64_t value) { return (value & 1) != 0; };
  const auto is_equal = [&](uint64_t value) { return value == thread.value; };
  switch (thread.op) {
    case WarpOp::kShuffleUp:
    case WarpOp::kShuffleDown:
    case WarpOp::kShuffleButterfly:
    case WarpOp::kShuffleIndex: {
      const Source from = source(thread);
      if ((there >> from.lane & 1) == 0) {
        self_ = &thread;
        stop("reads lane " + std::to_string(from.lane) + ", which takes no part: " + (*launch_->sites)[thread.site]);
      }
      return static_cast<uint32_t>(lanes[from.lane].value) | (from.inside ? kHigh : 0);
    }
    case WarpOp::kAll:
      return lanes_with(is_true) == there ? 1 : 0;
    case WarpOp::kAny:
      return lanes_with(is_true) != 0 ? 1 : 0;
    case WarpOp::kUniform: {
      const uint32_t votes = lanes_with(is_true);
      return votes == there || votes == 0 ? 1 : 0;
    }
    case WarpOp::kBallot:
      return lanes_with(is_true);
    case WarpOp::kMatchAny:
      return lanes_with(is_equal);
    case WarpOp::kMatchAll:
      return lanes_with(is_equal) == there ? there | kHigh : 0;
    case WarpOp::kSync:
      return 0;
    default: {
      bool first = true;
      uint32_t result = 0;
      for (uint32_t i = 0; i < kWarp; ++i) {
        if ((there >> i & 1) == 0) continue;
        const auto value = static_cast<uint32_t>(lanes[i].value);
        result = first ? value : reduce(thread.op, result, value);
        first = false;
      }
      return result;
    }
  }
}

}  // namespace torch_remote::codegen::emulator
