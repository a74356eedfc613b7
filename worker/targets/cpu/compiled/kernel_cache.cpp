#include "worker/targets/cpu/compiled/kernel_cache.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "codegen/loop/facts.h"
#include "codegen/loop/scalar_math.h"
#include "ir/dtype.h"

namespace torch_remote::worker::kernels {
namespace {

// Bounds: a group of 64 nodes has some hundred values, and a program has some hundred groups.
constexpr size_t kMostValues = 4096, kMostKernels = 1 << 14;

// Fills in what callers need to know about a kernel.
void describe(const codegen::Kernel& source, CompiledKernel& compiled) {
  codegen::Kernel kernel = source;
  codegen::expand_functions(kernel);  // as the compiler does, because the saved values depend on it
  const codegen::Schedule schedule = codegen::schedule(kernel);
  compiled.has_rows = kernel.rows != 0;
  const auto line = [&](uint32_t value) {
    Line made;
    made.item_size = ir::item_size(kernel.values[value].type);
    made.columns = (schedule.values[value].dims & kernel.column_dims()) >> kernel.rows;
    made.identity = codegen::identity(kernel.values[value].reduction, kernel.values[value].type).bits;
    return made;
  };
  for (const uint32_t value : schedule.spilled) compiled.saved_values.push_back(line(value));
  for (const uint32_t value : schedule.totals) compiled.totals.push_back(line(value));
  compiled.splits_columns = schedule.phases <= 1 && kernel.columns == 1 && schedule.totals.empty();
  for (const codegen::Value& value : kernel.values) {
    const bool of_column = value.kind == codegen::Kind::kIndex && value.a >= kernel.rows;
    compiled.splits_columns &=
        value.kind != codegen::Kind::kReduce && value.kind != codegen::Kind::kRunning && !of_column;
  }
  const std::vector<codegen::Facts> facts = codegen::facts(kernel);
  for (const codegen::Store& store : kernel.stores) {
    compiled.needs_row_order |= !store.indices.empty();
    for (const uint32_t index : store.indices) {
      compiled.splits_columns &= (facts[index].dims & kernel.column_dims()) == 0;
    }
    // A value of the whole row must be stored only once.
    compiled.splits_columns &= (kernel.operands[store.operand].dims & kernel.column_dims()) != 0;
  }
}

std::string key_of(const std::string& text, const codegen::cpu::Variant& variant) {
  std::string key = text;
  if (variant.streams) key += "\nstreams";
  if (variant.columns != 0) key += "\ncolumns " + std::to_string(variant.columns);
  return key;
}

// Offsets of the kernel's functions, at the end of its file.
struct Trailer {
  uint32_t rows = 0, finish = 0;
};

}  // namespace

KernelCache::KernelCache(CacheOptions options)
    : options_(std::move(options)),
      files_(options_.folder, options_.limit, options_.target + '\n' + options_.version) {}

KernelCache::~KernelCache() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KernelCache::sweep() {
  if (kernels_.size() < sweep_at_) return;
  // Only this table and a waiting job refer to the kernel.
  std::erase_if(jobs_, [&](const Job& job) { return job.kernel.use_count() == 2; });
  std::erase_if(kernels_, [](const auto& entry) { return entry.second.use_count() == 1; });
  sweep_at_ = std::max(kFirstSweep, 2 * kernels_.size());
}

size_t KernelCache::size() const {
  const std::lock_guard lock(mutex_);
  return kernels_.size();
}

std::shared_ptr<CompiledKernel> KernelCache::get(const std::string& text, const codegen::Kernel& kernel,
                                                 const codegen::cpu::Variant& variant) {
  const std::string key = key_of(text, variant);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(key); found != kernels_.end()) return found->second;
    sweep();
    if (kernels_.size() >= kMostKernels) return nullptr;
  }
  if (kernel.values.size() > kMostValues) return nullptr;
  auto made = std::make_shared<CompiledKernel>();
  describe(kernel, *made);
  made->variant = variant;
  const bool on_disk = read(key, *made);
  const std::lock_guard lock(mutex_);
  const auto [found, inserted] = kernels_.emplace(key, std::move(made));
  if (inserted && !on_disk) {
    jobs_.push_back({key, text, found->second, std::chrono::steady_clock::now() + options_.delay});
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    wake_.notify_one();
  }
  return found->second;
}

void KernelCache::wait(const CompiledKernel& kernel) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  wake_.notify_one();
  done_.wait(lock, [&] { return ends_ || kernel.state.load() != CompiledKernel::State::kPending; });
  --waiting_;
}

bool KernelCache::next_job(std::unique_lock<std::mutex>& lock, Job* job) {
  for (;;) {
    if (ends_) return false;
    if (jobs_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const auto begins = jobs_.front().begins;  // of the first job; later jobs begin later
    if (waiting_ > 0 || std::chrono::steady_clock::now() >= begins) break;
    wake_.wait_until(lock, begins);
  }
  *job = std::move(jobs_.front());
  jobs_.pop_front();
  return true;
}

void KernelCache::work() {
  // Compilation uses only idle CPU time. On a busy machine that may be none for a long time.
  const sched_param none{};
  if (!options_.urgent) ::sched_setscheduler(0, SCHED_IDLE, &none);
  std::unique_lock lock(mutex_);
  bool wrote = false;
  for (;;) {
    if (jobs_.empty() && wrote) {
      lock.unlock();
      files_.prune();
      lock.lock();
      wrote = false;
    }
    Job job;
    if (!next_job(lock, &job)) return;
    lock.unlock();
    std::vector<uint8_t> bytes;
    uint32_t rows = 0, last = 0;
    const Status status = options_.compile(job.text, job.kernel->variant, &bytes, &rows, &last);
    if (!status.ok()) {
      fail(*job.kernel, status);
    } else if (finish(*job.kernel, bytes, rows, last); job.kernel->ready()) {
      write(job.key, std::move(bytes), rows, last);
      compiled_.fetch_add(1, std::memory_order_relaxed);
      wrote = true;
    }
    lock.lock();
    generation_.fetch_add(1, std::memory_order_release);
    done_.notify_all();
  }
}

void KernelCache::finish(CompiledKernel& kernel, const std::vector<uint8_t>& bytes, uint32_t rows, uint32_t last) {
  if (const Status status = codegen::cpu::ExecutableCode::load(bytes, &kernel.code); !status.ok()) {
    return fail(kernel, status);
  }
  kernel.rows = kernel.code.function<codegen::cpu::RowsFunction>(rows);
  if (last != rows) kernel.finish = kernel.code.function<codegen::cpu::FinishFunction>(last);
  kernel.state.store(CompiledKernel::State::kReady, std::memory_order_release);
}

void KernelCache::fail(CompiledKernel& kernel, const Status& why) {
  kernel.status = why;
  kernel.state.store(CompiledKernel::State::kFailed, std::memory_order_release);
  if (failed_.fetch_add(1, std::memory_order_relaxed) == 0 && options_.on_failure) options_.on_failure(why);
}

bool KernelCache::read(const std::string& key, CompiledKernel& kernel) {
  std::vector<uint8_t> bytes;
  Trailer trailer;
  if (!files_.read(key, &bytes) || bytes.size() < sizeof(trailer)) return false;
  const size_t code = bytes.size() - sizeof(trailer);
  std::memcpy(&trailer, bytes.data() + code, sizeof(trailer));
  if (trailer.rows >= code || trailer.finish >= code) return false;
  bytes.resize(code);
  finish(kernel, bytes, trailer.rows, trailer.finish);
  return kernel.ready();
}

void KernelCache::write(const std::string& key, std::vector<uint8_t> bytes, uint32_t rows, uint32_t last) const {
  const Trailer trailer{rows, last};
  const auto* const first = reinterpret_cast<const uint8_t*>(&trailer);
  bytes.insert(bytes.end(), first, first + sizeof(trailer));
  files_.write(key, bytes);
}

}  // namespace torch_remote::worker::kernels
