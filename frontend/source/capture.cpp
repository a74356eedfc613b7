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
// number is part of the key.
struct ForwardLine {
  std::atomic<uint64_t> key{0};  // 0: none; torch numbers threads from 1
  std::atomic<uint64_t> code{0};
  std::atomic<int32_t> instruction{-1};
  std::atomic<uint32_t> callers{0};
};
constexpr size_t kForwardLines = 1 << 16;
std::array<ForwardLine, kForwardLines>& forward_lines() {
  static auto* lines = new std::array<ForwardLine, kForwardLines>;
  return *lines;
}

uint64_t key_of(uint64_t thread, uint64_t sequence) { return thread << 40 ^ sequence; }

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
    if (line.key.load(std::memory_order_acquire) == key_of(thread, sequence)) {
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
    if (this_thread == 0) this_thread = at::RecordFunction::currentThreadId();
    ForwardLine& line = forward_line(this_thread, sequence);
    line.code.store(source.code, std::memory_order_relaxed);
    line.instruction.store(source.instruction, std::memory_order_relaxed);
    line.callers.store(source.callers, std::memory_order_relaxed);
    line.key.store(key_of(this_thread, sequence), std::memory_order_release);
  }
  return source;
}

}  // namespace torch_remote::frontend
