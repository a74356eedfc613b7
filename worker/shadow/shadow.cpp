#include "worker/shadow/shadow.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "worker/device/monotonic_clock.h"
#include "worker/shadow/step_check.h"

namespace torch_remote::worker {
namespace {

constexpr uint64_t kMaxStepBytes = 256u << 20;     // Operands and results of one step.
constexpr uint64_t kMaxWaitingBytes = 512u << 20;  // All steps that are being checked or wait.
constexpr double kMaxReferenceNs = 2e9;
constexpr size_t kMaxDifferences = 8;

// A number of failures before the first success, each of which has this probability.
uint64_t draw_failures(double success, std::minstd_rand& random) {
  if (success >= 1) return 0;
  const double uniform = std::uniform_real_distribution<double>(1e-12, 1)(random);
  return static_cast<uint64_t>(std::min(std::log(uniform) / std::log1p(-success), 1e15));
}

}  // namespace

struct Shadow::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Copied>> waiting;
  uint64_t steps = 0;  // Copied steps that exist.
  uint64_t bytes = 0;  // Bytes that they hold.
  bool ends = false;
  ShadowCounts counts;                          // Without differences.
  std::atomic<uint64_t> found_differences = 0;  // Each reply of the session reads it, without the lock.
  std::deque<std::unique_ptr<ShadowDifference>> differences;
};

// A step, with what it read and wrote.
struct Shadow::Copied {
  Copied(std::shared_ptr<Queue> queue, uint64_t bytes) : queue(std::move(queue)), nbytes(bytes) {}
  ~Copied() {
    const std::lock_guard lock(queue->mutex);
    --queue->steps;
    queue->bytes -= nbytes;
    queue->changed.notify_all();
  }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;

  const std::shared_ptr<Queue> queue;
  const uint64_t nbytes;
  IsolatedStep step;
  std::vector<Bytes> inputs;  // Before the step.
  StepResults results;
  std::vector<uint32_t> records;  // By record of the step's graph: the record of the program's trace.
  uint32_t program = 0;
  uint64_t sequence = 0;
  std::string runner;
  ir::MathModes math_modes = 0;
};

Shadow::Shadow(Device& device, const Runners& runners, ReferenceOpener opener)
    : device_(device), runners_(runners), opener_(std::move(opener)), queue_(std::make_shared<Queue>()) {}

Shadow::~Shadow() {
  std::deque<std::shared_ptr<Copied>> dropped;  // Their destructors lock the queue.
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->ends = true;
    dropped.swap(queue_->waiting);
  }
  queue_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Shadow::set(const ShadowSettings& settings) {
  settings_ = settings;
  checked_.clear();
  skip_ = 0;
}

void Shadow::wait() {
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [&] { return queue_->steps == 0; });
}

ShadowCounts Shadow::counts() const {
  const std::lock_guard lock(queue_->mutex);
  ShadowCounts counts = queue_->counts;
  counts.differences = findings();
  return counts;
}

uint64_t Shadow::findings() const { return queue_->found_differences; }

std::unique_ptr<ShadowDifference> Shadow::take() {
  const std::lock_guard lock(queue_->mutex);
  if (queue_->differences.empty()) return nullptr;
  std::unique_ptr<ShadowDifference> first = std::move(queue_->differences.front());
  queue_->differences.pop_front();
  return first;
}

// --- the session's thread --------------------------------------------------------------------------------------------

bool Shadow::begins_run(const LoadedProgram& program) {
  bool checks = false;
  if (settings_.first_runs > 0) {
    // The steps change when a kernel or a plan is ready.
    std::vector<Step>& checked = checked_[program.number];
    checks = checked != program.steps;
    if (checks) {
      checked = program.steps;
      --settings_.first_runs;
    }
  }
  if (!checks && settings_.rate > 0) {
    // A fixed distance could meet the same program of each training step.
    if (skip_ == 0) skip_ = 1 + draw_failures(settings_.rate, random_);
    checks = --skip_ == 0;
  }
  if (!checks) return false;
  const std::lock_guard lock(queue_->mutex);
  ++queue_->counts.runs;
  return true;
}

std::shared_ptr<void> Shadow::before(const LoadedProgram& program, std::span<const tr_buffer> buffers, uint32_t runner,
                                     uint32_t first, uint32_t last, uint64_t sequence) {
  const uint64_t began = monotonic_ns();
  std::optional<IsolatedStep> step = isolate_step(program.graph, program.values, first, last);
  if (!step) return nullptr;
  uint64_t nbytes = 0;
  for (const uint32_t b : step->inputs) nbytes += buffers[b].nbytes;
  for (const uint32_t i : step->updated) nbytes += buffers[step->inputs[i]].nbytes;
  for (const uint32_t b : step->created) nbytes += program.nbytes[b];
  {
    const std::lock_guard lock(queue_->mutex);
    if (step->reference_ns > kMaxReferenceNs || nbytes > kMaxStepBytes || queue_->bytes + nbytes > kMaxWaitingBytes) {
      ++queue_->counts.left_out;
      return nullptr;
    }
    ++queue_->steps;
    queue_->bytes += nbytes;
  }
  const auto copied = std::make_shared<Copied>(queue_, nbytes);
  copied->step = std::move(*step);
  for (uint32_t n = first; n < last; ++n) {
    const uint32_t record = copied->step.graph.nodes[n - first].record;
    if (record >= copied->records.size()) copied->records.resize(record + 1);
    copied->records[record] = program.graph.nodes[n].record;
  }
  copied->program = program.number;
  copied->sequence = sequence;
  copied->runner = runners_[runner]->name();
  copied->math_modes = program.math_modes;
  copied->inputs.resize(copied->step.inputs.size());
  for (size_t i = 0; i < copied->step.inputs.size(); ++i) {
    copy_out(buffers[copied->step.inputs[i]], copied, &copied->inputs[i]);
  }
  const std::lock_guard lock(queue_->mutex);
  queue_->counts.bytes += nbytes;
  queue_->counts.copying_ns += monotonic_ns() - began;
  return copied;
}

void Shadow::after(std::shared_ptr<void> step, std::span<const tr_buffer> buffers) {
  const uint64_t began = monotonic_ns();
  const auto copied = std::static_pointer_cast<Copied>(std::move(step));
  StepResults& results = copied->results;
  results.inputs.resize(copied->step.inputs.size());
  results.created.resize(copied->step.created.size());
  for (const uint32_t i : copied->step.updated) {
    copy_out(buffers[copied->step.inputs[i]], copied, &results.inputs[i]);
  }
  for (size_t i = 0; i < copied->step.created.size(); ++i) {
    copy_out(buffers[copied->step.created[i]], copied, &results.created[i]);
  }
  device_.notify(device_.record(), [copied] {
    const std::lock_guard lock(copied->queue->mutex);
    if (!copied->queue->ends) copied->queue->waiting.push_back(copied);
    copied->queue->changed.notify_all();
  });
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  const std::lock_guard lock(queue_->mutex);
  queue_->counts.copying_ns += monotonic_ns() - began;
}

void Shadow::copy_out(const tr_buffer& buffer, const std::shared_ptr<Copied>& keep, Bytes* bytes) {
  bytes->resize(buffer.nbytes);
  if (bytes->empty() || buffer.data == nullptr) return;
  const auto size = static_cast<int64_t>(buffer.nbytes);
  const int64_t one = 1;
  device_.copy_out({buffer.data, 1, {&size, 1}, {&one, 1}}, bytes->data(), keep);
}

// --- the thread that checks ------------------------------------------------------------------------------------------

void Shadow::work() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);  // Without it, the thread only takes more from others.
  std::unique_ptr<Reference> reference;
  Status opened = Reference::open(opener_, &reference);
  for (;;) {
    std::shared_ptr<Copied> next;
    {
      std::unique_lock lock(queue_->mutex);
      queue_->changed.wait(lock, [&] { return queue_->ends || !queue_->waiting.empty(); });
      if (queue_->ends) return;
      next = std::move(queue_->waiting.front());
      queue_->waiting.pop_front();
    }
    const uint64_t began = monotonic_ns();
    std::optional<StepDifference> found;
    Status status = opened;
    if (status.ok()) status = check_step(*reference, next->step, next->inputs, next->results, next->math_modes, &found);
    std::unique_ptr<ShadowDifference> difference;
    if (status.ok() && found) {
      std::vector<int64_t> values;
      (void)ir::evaluate(next->step.graph, next->step.params.data(), &values);
      difference = std::make_unique<ShadowDifference>(ShadowDifference{
          next->program, next->sequence, next->records, next->step.graph.nodes[found->node].record, next->runner,
          describe_node(next->step.graph, next->step.graph.nodes[found->node], values), std::move(found->what),
          std::move(next->step.graph), std::move(next->step.params), std::move(next->inputs), next->math_modes});
    }
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->counts.checking_ns += monotonic_ns() - began;
      ++(status.ok() ? queue_->counts.steps : queue_->counts.left_out);
      if (difference) {
        ++queue_->found_differences;
        if (queue_->differences.size() < kMaxDifferences) queue_->differences.push_back(std::move(difference));
      }
    }
    next.reset();  // Without the lock, which its destructor takes.
  }
}

}  // namespace torch_remote::worker
