#include "tests/emulated_gpu/emulator/worker.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/emulated_gpu/emulator/permutation.h"

namespace torch_remote::codegen::emulator {
namespace {

// Shared memory of a block: the GPU's size, and the gaps between variables in checked mode.
constexpr uint64_t kSharedBuffer = kMaxShared + (64 << 10);
constexpr uint64_t kLoopIterationsAtOnce = 1024;
constexpr size_t kMostNamed = 24;  // threads named in a message

}  // namespace

Status Worker::prepare(Launch& launch, Checker* checker) {
  launch_ = &launch;
  checker_ = checker;
  if (shared_ == nullptr) {
    void* shared = nullptr;
    if (Status status = memory_.allocate(kSharedBuffer, &shared, "shared memory", true); !status) return status;
    shared_ = static_cast<char*>(shared);
  }
  if (launch.shared_bytes() > kSharedBuffer) {
    return Status::invalid("emulator: too many variables in shared memory for checked mode");
  }
  if (checker != nullptr)
    memory_.mark(shared_, kSharedBuffer, kUnallocated);  // bytes of variables are marked for each block
  const auto count = static_cast<uint32_t>(launch.block.count());
  if (!stacks_.resize(launch.kernel->fibers ? count : 1)) {
    return {ErrorCode::kOutOfMemory, "emulator: no memory for the stacks of " + std::to_string(count) + " threads"};
  }
  threads_.assign(count, {});
  warps_.assign((count + kWarp - 1) / kWarp, {});
  ready_.assign(std::bit_ceil(count), nullptr);
  ready_mask_ = static_cast<uint32_t>(ready_.size()) - 1;
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    const Dim3 tid = split(i, launch.block), &ntid = launch.block, &nctaid = launch.grid;
    thread.index = i;
    thread.registers = {{tid.x, tid.y, tid.z},
                        {ntid.x, ntid.y, ntid.z},
                        {0, 0, 0},
                        {nctaid.x, nctaid.y, nctaid.z},
                        i % kWarp,
                        i / kWarp,
                        shared_};
  }
  return {};
}

void Worker::fill_shared() {
  std::memset(shared_, 0xFF, launch_->shared_bytes());  // NaN
  if (checker_ == nullptr) return;
  for (const SharedVariable& variable : launch_->kernel->shared) {
    memory_.mark(shared_ + variable.offset, variable.bytes, kUninitialized);
  }
  memory_.mark(shared_ + launch_->kernel->dynamic_offset, launch_->dynamic_shared, kUninitialized);
}

void Worker::start_threads(bool fibers) {
  const Dim3 place = split(block_, launch_->grid);
  ready_head_ = ready_count_ = 0;
  warps_.assign(warps_.size(), {});
  for (Thread& thread : threads_) {
    warps_[thread.registers.warp].running |= 1U << thread.registers.lane;
    thread.registers.ctaid[0] = place.x;
    thread.registers.ctaid[1] = place.y;
    thread.registers.ctaid[2] = place.z;
    thread.loop_iterations = 0;
    thread.state = Thread::State::kReady;
    if (!fibers && thread.index != 0) continue;
    thread.stack_pointer = stacks_.prepare(thread.index, thread_main);
    push(thread);
  }
}

void Worker::run(uint64_t block) {
  const bool fibers = launch_->kernel->fibers;
  current_ = this;
  block_ = block;
  random_.seed(static_cast<uint32_t>(launch_->options.seed * 0x9E3779B97F4A7C15u >> 32) + static_cast<uint32_t>(block) +
               1);
  alive_ = static_cast<uint32_t>(threads_.size());
  at_barrier_ = barrier_true_ = 0;
  fill_shared();
  if (checker_ != nullptr) checker_->begin_block(block, alive_);
  start_threads(fibers);
  next();
  self_ = nullptr;
  current_ = nullptr;
  if (!launch_->stop && alive_ != 0) launch_->report(stuck());
}

// Begins on its own stack, and ends by leaving it.
void Worker::thread_main() {
  Worker& worker = *current_;
  const Launch& launch = *worker.launch_;
  if (launch.kernel->fibers) {
    launch.kernel->run(launch.arguments);
    worker.leave();
  }
  // No thread waits for another, so all threads share one stack and run one after the other.
  const Permutation order(worker.threads_.size(), launch.options.seed);
  for (size_t i = 0; i < worker.threads_.size(); ++i) {
    worker.self_ = &worker.threads_[order(i)];
    launch.kernel->run(launch.arguments);
    worker.self_->state = Thread::State::kDone;
  }
  worker.alive_ = 0;
  worker.next();
}

// -- Scheduling -------------------------------------------------------------------------------------------------------

void Worker::push(Thread& thread) {
  thread.state = Thread::State::kReady;
  ready_[(ready_head_ + ready_count_++) & ready_mask_] = &thread;
}

void Worker::push_front(Thread& thread) {
  thread.state = Thread::State::kReady;
  ++ready_count_;
  ready_[--ready_head_ & ready_mask_] = &thread;
}

// Switches to a ready thread's stack, or to the scheduler's if no thread is ready.
void Worker::next() {
  void** from = self_ != nullptr ? &self_->stack_pointer : &scheduler_;
  if (ready_count_ == 0 || launch_->stop) {
    if (self_ != nullptr) torch_remote_emulator_switch(from, scheduler_);
    return;
  }
  if (launch_->options.seed != 0) {
    const auto chosen = static_cast<uint32_t>(random_() % ready_count_);
    std::swap(ready_[ready_head_ & ready_mask_], ready_[(ready_head_ + chosen) & ready_mask_]);
  }
  Thread* to = ready_[ready_head_++ & ready_mask_];
  --ready_count_;
  if (to == self_) return;
  self_ = to;
  torch_remote_emulator_switch(from, to->stack_pointer);
}

void Worker::yield() {
  if (!launch_->kernel->fibers) return;
  push(*self_);
  next();
}

void Worker::leave() {
  Thread& thread = *self_;
  thread.state = Thread::State::kDone;
  --alive_;
  // Waiting threads need not wait for this one any more.
  release_barrier();
  const uint32_t warp = thread.registers.warp;
  warps_[warp].running &= ~(1U << thread.registers.lane);
  for (uint32_t lane = 0; lane < kWarp && warps_[warp].waiting != 0; ++lane) {
    if ((warps_[warp].waiting >> lane & 1) != 0) release_warp(warp, threads_[warp * kWarp + lane].mask);
  }
  next();
  __builtin_unreachable();
}

void Worker::exit() {
  leave();
  __builtin_unreachable();
}

void Worker::stop(const std::string& what) {
  launch_->report(where(self_->index) + what);
  torch_remote_emulator_switch(&self_->stack_pointer, scheduler_);
  __builtin_unreachable();
}

// -- Barriers ---------------------------------------------------------------------------------------------------------

uint32_t Worker::barrier(uint32_t site, BarrierOp op, bool predicate) {
  if (at_barrier_ != 0 && barrier_site_ != site) {
    stop("barriers that differ: this thread is at " + (*launch_->sites)[site] + ", others wait at " +
         (*launch_->sites)[barrier_site_]);
  }
  ++at_barrier_;
  barrier_site_ = site;
  barrier_true_ += predicate ? 1 : 0;
  self_->state = Thread::State::kAtBarrier;
  self_->site = site;
  release_barrier();
  Thread& thread = *self_;
  next();
  const auto trues = static_cast<uint32_t>(thread.result), all = static_cast<uint32_t>(thread.value);
  switch (op) {
    case BarrierOp::kAnd:
      return trues == all ? 1 : 0;
    case BarrierOp::kOr:
      return trues != 0 ? 1 : 0;
    default:
      return trues;
  }
}

void Worker::release_barrier() {
  if (at_barrier_ == 0 || at_barrier_ != alive_) return;
  if (checker_ != nullptr) checker_->barrier();
  for (Thread& thread : threads_) {
    if (thread.state != Thread::State::kAtBarrier) continue;
    thread.result = barrier_true_;
    thread.value = alive_;
    push(thread);
  }
  at_barrier_ = barrier_true_ = 0;
}

// -- Warp operations --------------------------------------------------------------------------------------------------

uint64_t Worker::warp(uint32_t site, WarpOp op, uint32_t mask, uint64_t value, uint32_t lane, uint32_t clamp) {
  Thread& thread = *self_;
  if ((mask >> thread.registers.lane & 1) == 0) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", mask);
    stop("the mask " + std::string(text) + " lacks the calling lane: " + (*launch_->sites)[site]);
  }
  thread.state = Thread::State::kAtWarpOp;
  thread.site = site;
  thread.op = op;
  thread.mask = mask;
  thread.value = value;
  thread.lane = lane;
  thread.clamp = clamp;
  warps_[thread.registers.warp].waiting |= 1U << thread.registers.lane;
  release_warp(thread.registers.warp, mask);
  next();
  return thread.result;
}

// Releases the operation if all threads of the mask that still run have arrived.
void Worker::release_warp(uint32_t warp, uint32_t mask) {
  WarpState& state = warps_[warp];
  const uint32_t there = mask & state.running, first = warp * kWarp;
  if (there == 0 || (there & ~state.waiting) != 0) return;
  const WarpOp op = threads_[first + static_cast<uint32_t>(std::countr_zero(there))].op;
  for (uint32_t rest = there; rest != 0; rest &= rest - 1) {
    const Thread& thread = threads_[first + static_cast<uint32_t>(std::countr_zero(rest))];
    if (thread.mask != mask || thread.op != op) return;
  }
  for (uint32_t rest = there; rest != 0; rest &= rest - 1) {
    Thread& thread = threads_[first + static_cast<uint32_t>(std::countr_zero(rest))];
    thread.result = warp_result(thread, there);
  }
  state.waiting &= ~there;
  // Without a seed, the warp continues at once, because its stacks are in the cache.
  const bool at_once = launch_->options.seed == 0;
  for (uint32_t rest = there; rest != 0;) {
    const auto lane = static_cast<uint32_t>(at_once ? std::bit_width(rest) - 1 : std::countr_zero(rest));
    rest &= ~(1U << lane);
    Thread& thread = threads_[first + lane];
    at_once ? push_front(thread) : push(thread);
  }
  if (op == WarpOp::kSync && checker_ != nullptr) checker_->warp_sync(first, there);
}

// -- Other operations of threads --------------------------------------------------------------------------------------

void Worker::access(const void* address, uint64_t bytes, AccessKind kind, uint64_t alignment, uint32_t site) {
  if (stacks_.contains(launch_->kernel->fibers ? self_->index : 0, address)) return;  // the thread's own stack
  const char* begin = static_cast<const char*>(address);
  AccessError error;
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
    error = {begin, "is misaligned (" + std::to_string(alignment) + " bytes are asked for):"};
  } else {
    error = checker_->access(self_->index, begin, bytes, kind);
  }
  if (error) stop(error.text + " " + describe(error.byte) + "; " + (*launch_->sites)[site]);
}

void Worker::local_out_of_bounds(int64_t offset, uint64_t size, uint32_t site) {
  stop("is out of bounds: byte " + std::to_string(offset) + " of a local variable (" + std::to_string(size) +
       " bytes); " + (*launch_->sites)[site]);
}

void Worker::trap(uint32_t site) { stop("stops itself: " + (*launch_->sites)[site]); }

void Worker::fence(bool device_wide) {
  if (checker_ != nullptr) checker_->fence(self_->index, device_wide);
}

void Worker::loop_iteration(uint32_t site) {
  Thread& thread = *self_;
  if (++thread.loop_iterations % kLoopIterationsAtOnce != 0) return;
  if (thread.loop_iterations >= launch_->options.max_loop_iterations || launch_->timed_out) {
    stop("runs too long (an endless loop, or it waits for what cannot come): " + (*launch_->sites)[site]);
  }
  yield();
}

// -- Messages ---------------------------------------------------------------------------------------------------------

std::string Worker::where(uint32_t thread) const {
  return "emulator: kernel '" + launch_->kernel->name + "', block " + text(split(block_, launch_->grid)) + ", thread " +
         text(split(thread, launch_->block)) + ": ";
}

std::string Worker::describe(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  if (byte < shared_ || byte >= shared_ + kSharedBuffer) return memory_.describe(address);
  const auto description = [&](const std::string& name, const char* begin, uint64_t bytes) {
    return "byte " + std::to_string(byte - begin) + " of " + name + " (" + std::to_string(bytes) + " bytes, shared)";
  };
  const KernelImage& kernel = *launch_->kernel;
  if (launch_->dynamic_shared != 0 && byte >= shared_ + kernel.dynamic_offset) {
    return description("dynamic shared memory", shared_ + kernel.dynamic_offset, launch_->dynamic_shared);
  }
  const SharedVariable* before = nullptr;
  for (const SharedVariable& variable : kernel.shared) {
    if (shared_ + variable.offset <= byte) before = &variable;
  }
  if (before == nullptr) return description("shared memory", shared_, launch_->shared_bytes());
  return description("'" + before->name + "'", shared_ + before->offset, before->bytes);
}

std::string Worker::describe_fault(const void* address) {
  for (size_t i = 0; i < (launch_->kernel->fibers ? threads_.size() : 1); ++i) {
    if (stacks_.is_guard(i, address)) {
      return "its local memory is more than the " + std::to_string(Stacks::kBytes) + " bytes that the emulator has";
    }
  }
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return "touches address " + std::string(text) + ", " + describe(address) + "; checked mode names the instruction";
}

std::string Worker::stuck() const {
  std::map<std::string, std::vector<uint32_t>> waiting;
  uint32_t first = 0;
  for (const Thread& thread : threads_) {
    if (thread.state == Thread::State::kDone) continue;
    if (waiting.empty()) first = thread.index;
    char mask[32] = "";
    if (thread.state == Thread::State::kAtWarpOp) std::snprintf(mask, sizeof mask, " with mask %08x", thread.mask);
    waiting[(*launch_->sites)[thread.site] + mask].push_back(thread.index);
  }
  std::string result = where(first) + "deadlock";
  for (const auto& [what, threads] : waiting) {
    result += "\n  threads";
    for (size_t i = 0; i < std::min(threads.size(), kMostNamed); ++i) result += " " + std::to_string(threads[i]);
    result += std::string(threads.size() > kMostNamed ? " ..." : "") + " wait at " + what;
  }
  return result;
}

}  // namespace torch_remote::codegen::emulator
