#include "worker/kernels/kernel_cache.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "codegen/loop/scalar_math.h"
#include "ir/dtype.h"

namespace torch_remote::worker::kernels {
namespace {

namespace fs = std::filesystem;

// A group of 64 nodes has some hundred values; a program some hundred groups.
constexpr size_t kMostValues = 4096, kMostKernels = 1 << 14;

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = seed ^ (text.size() * 0x9E3779B97F4A7C15);
  for (const char c : text) {
    value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3;
    value ^= value >> 29;
  }
  return value * 0x9E3779B97F4A7C15;
}

// What callers must know of a kernel.
void describe(const codegen::Kernel& source, CompiledKernel& compiled) {
  codegen::Kernel kernel = source;
  codegen::expand_functions(kernel);  // as the compiler does: what is kept depends on it
  const codegen::Schedule schedule = codegen::schedule(kernel);
  compiled.has_rows = kernel.rows != 0;
  const auto line = [&](uint32_t value) {
    Line made;
    made.item_size = ir::item_size(kernel.values[value].type);
    made.columns = (schedule.places[value].dims & kernel.column_dims()) >> kernel.rows;
    made.neutral = codegen::identity(kernel.values[value].reduction, kernel.values[value].type).bits;
    return made;
  };
  for (const uint32_t value : schedule.kept) compiled.kept.push_back(line(value));
  for (const uint32_t value : schedule.totals) compiled.totals.push_back(line(value));
  compiled.splits_columns = schedule.phases <= 1 && kernel.columns == 1 && schedule.totals.empty();
  for (const codegen::Value& value : kernel.values) {
    const bool of_column = value.kind == codegen::Kind::kIndex && value.a >= kernel.rows;
    compiled.splits_columns &= value.kind != codegen::Kind::kReduce && !of_column;
  }
  for (const codegen::Store& store : kernel.stores) {
    // A row's own value must be stored once.
    compiled.splits_columns &= (kernel.operands[store.operand].dims & kernel.column_dims()) != 0;
  }
}

// A file of the cache: this, the text, the code.
struct Header {
  char magic[8] = {'T', 'R', 'K', 'E', 'R', 'N', '0', '1'};
  uint64_t checksum = 0;  // of text and code
  uint32_t text_size = 0, code_size = 0;
  uint32_t rows = 0, finish = 0;
};

uint64_t checksum(std::string_view text, std::string_view code) { return hash(code, hash(text, 1)); }

std::string_view as_text(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Others must not be able to put code there.
bool is_private(const fs::path& folder) {
  struct stat info{};
  return ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

KernelCache::KernelCache(CacheOptions options)
    : options_([&] {
        if (options.folder.empty()) return std::move(options);
        std::error_code error;
        fs::create_directories(options.folder, error);
        fs::permissions(options.folder, fs::perms::owner_all, error);
        if (!is_private(options.folder)) options.folder.clear();
        return std::move(options);
      }()) {}

KernelCache::~KernelCache() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

CompiledKernel* KernelCache::get(const std::string& text, const codegen::Kernel& kernel) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(text); found != kernels_.end()) return found->second.get();
    if (kernels_.size() >= kMostKernels) return nullptr;
  }
  if (kernel.values.size() > kMostValues) return nullptr;
  auto made = std::make_unique<CompiledKernel>();
  describe(kernel, *made);
  const bool on_disk = read(text, *made);
  const std::lock_guard lock(mutex_);
  const auto [found, inserted] = kernels_.emplace(text, std::move(made));
  if (inserted && !on_disk) {
    jobs_.push_back({text, found->second.get()});
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    wake_.notify_one();
  }
  return found->second.get();
}

void KernelCache::wait(const CompiledKernel& kernel) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return ends_ || kernel.state.load() != CompiledKernel::State::kWaits; });
}

void KernelCache::work() {
  // What it takes is what nobody else wants. (On a busy machine that may be nothing for long.)
  const sched_param none{};
  if (!options_.urgent) ::sched_setscheduler(0, SCHED_IDLE, &none);
  std::unique_lock lock(mutex_);
  bool wrote = false;
  for (;;) {
    if (jobs_.empty() && wrote) {
      lock.unlock();
      prune();
      lock.lock();
      wrote = false;
    }
    wake_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::vector<uint8_t> bytes;
    uint32_t rows = 0, last = 0;
    const Status status = options_.compile(job.text, &bytes, &rows, &last);
    if (status.ok()) {
      finish(*job.kernel, bytes, rows, last);
      write(job.text, bytes, rows, last);
      compiled_.fetch_add(1, std::memory_order_relaxed);
      wrote = true;
    } else {
      job.kernel->status = status;
      job.kernel->state.store(CompiledKernel::State::kFailed, std::memory_order_release);
    }
    lock.lock();
    generation_.fetch_add(1, std::memory_order_release);
    done_.notify_all();
  }
}

void KernelCache::finish(CompiledKernel& kernel, const std::vector<uint8_t>& bytes, uint32_t rows, uint32_t last) {
  using State = CompiledKernel::State;
  kernel.status = codegen::cpu::PlacedCode::place(bytes, &kernel.code);
  if (kernel.status.ok()) {
    kernel.rows = kernel.code.function<codegen::cpu::RowsFunction>(rows);
    if (last != rows) kernel.finish = kernel.code.function<codegen::cpu::FinishFunction>(last);
  }
  kernel.state.store(kernel.status.ok() ? State::kReady : State::kFailed, std::memory_order_release);
}

// -- on disk

std::string KernelCache::path_of(const std::string& text) const {
  const std::string about = options_.target + '\n' + options_.version + '\n' + text;
  char name[64];
  std::snprintf(name, sizeof(name), "%016llx%016llx.kernel", static_cast<unsigned long long>(hash(about, 2)),
                static_cast<unsigned long long>(hash(about, 3)));
  return options_.folder + "/" + name;
}

bool KernelCache::read(const std::string& text, CompiledKernel& kernel) {
  if (options_.folder.empty()) return false;
  std::ifstream file(path_of(text), std::ios::binary);
  Header header;
  const Header expected;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header)) ||
      std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0 || header.text_size != text.size() ||
      header.code_size > (64u << 20) || header.rows >= header.code_size || header.finish >= header.code_size) {
    return false;
  }
  std::string stored(header.text_size, '\0');
  std::vector<uint8_t> bytes(header.code_size);
  if (!file.read(stored.data(), static_cast<std::streamsize>(stored.size())) || stored != text ||
      !file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())) ||
      header.checksum != checksum(stored, as_text(bytes))) {
    return false;  // damaged: it is compiled again, and written over
  }
  finish(kernel, bytes, header.rows, header.finish);
  return kernel.ready();
}

// Under a name of its own first, so that others never see half of it.
void KernelCache::write(const std::string& text, const std::vector<uint8_t>& bytes, uint32_t rows, uint32_t last) {
  if (options_.folder.empty()) return;
  Header header;
  header.checksum = checksum(text, as_text(bytes));
  header.text_size = static_cast<uint32_t>(text.size());
  header.code_size = static_cast<uint32_t>(bytes.size());
  header.rows = rows;
  header.finish = last;
  const std::string path = path_of(text);
  const std::string made = path + "." + std::to_string(::getpid());
  std::ofstream file(made, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (file) fs::rename(made, path, error);
  if (!file || error) fs::remove(made, error);
}

void KernelCache::prune() {
  if (options_.folder.empty()) return;
  struct File {
    fs::file_time_type time;
    uint64_t size;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const uint64_t size = entry.file_size(error);
    if (error) continue;  // another process has removed it
    files.push_back({entry.last_write_time(error), size, entry.path()});
    total += size;
  }
  if (total <= options_.limit) return;
  std::ranges::sort(files, {}, &File::time);
  for (const File& file : files) {
    if (total <= options_.limit / 2) break;
    if (fs::remove(file.path, error)) total -= file.size;
  }
}

}  // namespace torch_remote::worker::kernels
