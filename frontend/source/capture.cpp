#include <Python.h>
// Python's headers come first.
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <atomic>

#include "frontend/source/source.h"
#include "frontend/source/user_frame.h"

namespace torch_remote::frontend {
namespace {

// Source lines of forward ops, for the backward pass. Sequence numbers of autograd count per thread, so the thread's
// number is part of the key. Threads read and write a line without a lock, so a reader may see fields of two writes.
// Then `check` does not fit the fields.
struct ForwardLine {
  std::atomic<uint64_t> check{0};  // check_of(); 0: none, as torch numbers threads from 1
  std::atomic<uint64_t> code{0};
  std::atomic<int32_t> instruction{-1};
  std::atomic<uint32_t> callers{0};
};
constexpr size_t kForwardLines = 1 << 16;
std::array<ForwardLine, kForwardLines>& forward_lines() {
  static auto* lines = new std::array<ForwardLine, kForwardLines>;
  return *lines;
}

uint64_t check_of(uint64_t thread, uint64_t sequence, const ir::SourceRef& source) {
  const uint64_t place = uint64_t{source.callers} << 32 | static_cast<uint32_t>(source.instruction);
  return (thread << 40 ^ sequence) + source.code * 0x9E37'79B9'7F4A'7C15 + place * 0xC2B2'AE3D'27D4'EB4F;
}

// Consecutive ops of a thread have consecutive lines. The lines of threads begin at different places.
ForwardLine& forward_line(uint64_t thread, uint64_t sequence) {
  return forward_lines()[(sequence + thread * 0x9E37) % kForwardLines];
}

// This thread's number, as in Node::thread_id(); 0 until it is needed.
[[gnu::tls_model("initial-exec")]] constinit thread_local uint64_t this_thread = 0;

}  // namespace

ir::SourceRef capture_source(bool* backward) {
  const auto node = torch::autograd::get_current_node();
  *backward = node != nullptr;
  if (node) {
    const uint64_t thread = node->thread_id(), sequence = node->sequence_nr();
    const ForwardLine& line = forward_line(thread, sequence);
    const ir::SourceRef found{line.code.load(std::memory_order_relaxed),
                              line.instruction.load(std::memory_order_relaxed),
                              line.callers.load(std::memory_order_relaxed)};
    if (found.code != 0 && line.check.load(std::memory_order_relaxed) == check_of(thread, sequence, found)) {
      return {found.code, found.instruction, found.callers | kBackward};
    }
  }
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return {};
  const ir::SourceRef source = frame_source(state);
  if (source.code != 0 && c10::GradMode::is_enabled()) {
    // The op's autograd node exists already: its sequence number is the next one minus 1. If the next one is 0, this
    // thread has made no node, and the difference would be the number of the nodes that accumulate gradients.
    const uint64_t next = at::sequence_number::peek();
    if (next == 0) return source;
    if (this_thread == 0) this_thread = at::RecordFunction::currentThreadId();
    ForwardLine& line = forward_line(this_thread, next - 1);
    line.code.store(source.code, std::memory_order_relaxed);
    line.instruction.store(source.instruction, std::memory_order_relaxed);
    line.callers.store(source.callers, std::memory_order_relaxed);
    line.check.store(check_of(this_thread, next - 1, source), std::memory_order_relaxed);
  }
  return source;
}

}  // namespace torch_remote::frontend
