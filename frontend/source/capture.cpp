#include <Python.h>
// Python's headers come first.
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <atomic>

#include "frontend/source/source.h"
#include "frontend/source/user_frame.h"

namespace torch_remote::frontend {
namespace {

// Source lines of forward ops by autograd sequence number, for the backward pass.
struct ForwardLine {
  std::atomic<uint64_t> sequence{~uint64_t{0}};
  std::atomic<uint64_t> code{0};
  std::atomic<int32_t> instruction{-1};
  std::atomic<uint32_t> callers{0};
};
constexpr size_t kForwardLines = 1 << 16;
std::array<ForwardLine, kForwardLines>& forward_lines() {
  static auto* lines = new std::array<ForwardLine, kForwardLines>;
  return *lines;
}

}  // namespace

ir::SourceRef capture_source(bool* backward) {
  const auto node = torch::autograd::get_current_node();
  *backward = node != nullptr;
  if (node) {
    const uint64_t sequence = node->sequence_nr();
    const ForwardLine& line = forward_lines()[sequence % kForwardLines];
    if (line.sequence.load(std::memory_order_acquire) == sequence) {
      return {line.code.load(std::memory_order_relaxed), line.instruction.load(std::memory_order_relaxed),
              line.callers.load(std::memory_order_relaxed) | kBackward};
    }
  }
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return {};
  const ir::SourceRef source = frame_source(state);
  if (source.code != 0 && c10::GradMode::is_enabled()) {
    // The op's autograd node exists already: its sequence number is the next one minus 1.
    const uint64_t sequence = at::sequence_number::peek() - 1;
    ForwardLine& line = forward_lines()[sequence % kForwardLines];
    line.code.store(source.code, std::memory_order_relaxed);
    line.instruction.store(source.instruction, std::memory_order_relaxed);
    line.callers.store(source.callers, std::memory_order_relaxed);
    line.sequence.store(sequence, std::memory_order_release);
  }
  return source;
}

}  // namespace torch_remote::frontend
