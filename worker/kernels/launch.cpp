#include "worker/kernels/launch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace torch_remote::worker::kernels {
namespace {

using codegen::Binding;
using codegen::Launch;
using codegen::cpu::Call;
using codegen::cpu::IndexRecord;

constexpr int64_t kGrain = 1 << 14;                    // points that are worth a thread's waking
constexpr int64_t kMostChunks = 64, kLeastChunks = 4;  // of rows whose totals are added up apart
constexpr int64_t kMostTotals = 1 << 22;               // in all chunks, if these are more than the least
constexpr size_t kLineAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kLineAlign - 1) / kLineAlign * kLineAlign; }

// Memory that a thread uses again and again.
class Scratch {
 public:
  std::byte* get(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kLineAlign})));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{kLineAlign}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

class Runner {
 public:
  Runner(const Launch& launch, const CompiledKernel& kernel, std::span<const tr_buffer> buffers,
         const ParallelFor& parallel, IndexRecord* failure)
      : launch_(launch), kernel_(kernel), parallel_(parallel), failure_(failure) {
    rows_ = kernel.has_rows ? launch.sizes[0] : 1;
    columns_ = std::span(launch.sizes).subspan(kernel.has_rows ? 1 : 0);
    for (const int64_t size : columns_) row_points_ *= size;
    for (const int64_t size : launch.outer) lines_ *= size;
    for (size_t i = 0; i < launch.operands.size(); ++i) {
      const Binding& binding = launch.operands[i];
      item_sizes_.push_back(ir::item_size(launch.kernel.operands[i].dtype));
      data_.push_back(static_cast<std::byte*>(buffers[binding.buffer].data) + binding.offset * item_sizes_.back());
      strides_.insert(strides_.end(), binding.strides.begin(), binding.strides.end());
      bounds_.insert(bounds_.end(), binding.bounds.begin(), binding.bounds.end());
    }
  }

  void run() {
    if (!kernel_.totals.empty()) return run_with_totals();
    if (rows_ * lines_ == 1 && kernel_.splits_columns) return run_columns();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_points_));
    for_parts(rows_ * lines_, grain, [&](int64_t begin, int64_t end) {
      std::vector<void*> data(data_.size());
      while (begin < end) {
        const int64_t line = begin / rows_, row = begin % rows_;
        const int64_t last = std::min(rows_, row + end - begin);
        at_line(line, data);
        call(data, columns_, nullptr, row, last);
        begin += last - row;
      }
    });
  }

 private:
  void for_parts(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) const {
    if (parallel_ && count > grain) {
      parallel_(count, grain, body);
    } else if (count > 0) {
      body(0, count);
    }
  }

  // The operands at one place of the outer dims.
  void at_line(int64_t line, std::vector<void*>& data) const {
    for (size_t i = 0; i < data.size(); ++i) data[i] = data_[i];
    for (size_t d = launch_.outer.size(); d-- > 0;) {
      const int64_t place = line % launch_.outer[d];
      line /= launch_.outer[d];
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<std::byte*>(data[i]) + place * launch_.operands[i].outer[d] * item_sizes_[i];
      }
    }
  }

  // A single row, in parts.
  void run_columns() const {
    for_parts(columns_.empty() ? 1 : columns_[0], kGrain, [&](int64_t begin, int64_t end) {
      std::vector<void*> data(data_.size());
      const int64_t size = end - begin;
      for (size_t i = 0; i < data.size(); ++i) {
        const Binding& binding = launch_.operands[i];
        const int64_t stride = columns_.empty() ? 0 : binding.strides[kernel_.has_rows ? 1 : 0];
        data[i] = static_cast<std::byte*>(data_[i]) + begin * stride * item_sizes_[i];
      }
      call(data, columns_.empty() ? columns_ : std::span(&size, 1), nullptr, 0, 1);
    });
  }

  // Rows chunk by chunk, each adding to lines of its own; then all chunks' lines are added up.
  void run_with_totals() {
    int64_t chunk = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_points_));
    const int64_t most = std::clamp(kMostTotals / std::max<int64_t>(1, row_points_), kLeastChunks, kMostChunks);
    chunk = std::max(chunk, (rows_ + most - 1) / most);
    const int64_t full = (rows_ + chunk - 1) / chunk, chunks = full + (launch_.rest != 0 ? 1 : 0);
    std::vector<int64_t> sizes;
    std::vector<size_t> offsets;
    size_t bytes = 0;
    for (const Line& line : kernel_.totals) {
      sizes.push_back(static_cast<int64_t>(aligned(size_t{line.item_size} * (line.per_column ? row_points_ : 1))));
      offsets.push_back(bytes);
      bytes += static_cast<size_t>(sizes.back() * chunks);
    }
    thread_local Scratch memory;
    std::byte* const lines = memory.get(bytes);
    for_parts(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        std::vector<void*> totals;
        for (size_t t = 0; t < sizes.size(); ++t) {
          totals.push_back(lines + offsets[t] + c * sizes[t]);
          clear(kernel_.totals[t], static_cast<std::byte*>(totals.back()));
        }
        if (c < full) {
          call(data_, columns_, totals.data(), c * chunk, std::min(rows_, (c + 1) * chunk));
        } else {
          call_rest(totals.data());
        }
      }
    });
    std::vector<void*> first(offsets.size());
    for (size_t t = 0; t < first.size(); ++t) first[t] = lines + offsets[t];
    Call finish = make_call(data_, columns_, first.data());
    finish.lines = sizes.data();
    IndexRecord record;
    finish.failure = &record;
    Kept kept(*this, finish);
    kernel_.finish(&finish, chunks);
    note(record);
  }

  void call_rest(void* const* totals) const {
    std::vector<void*> data(data_.size());
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<std::byte*>(data_[i]) + rows_ * launch_.operands[i].strides[0] * item_sizes_[i];
    }
    call(data, std::span(&launch_.rest, 1), totals, 0, 1);
  }

  void clear(const Line& line, std::byte* data) const {
    const int64_t count = line.per_column ? row_points_ : 1;
    for (int64_t i = 0; i < count; ++i) std::memcpy(data + i * line.item_size, &line.neutral, line.item_size);
  }

  Call make_call(const std::vector<void*>& data, std::span<const int64_t> columns, void* const* totals) const {
    Call call{};
    call.data = data.data();
    call.sizes = columns.data();
    call.strides = strides_.data();
    call.bounds = bounds_.data();
    call.scalars = launch_.scalars.data();
    call.totals = totals;
    return call;
  }

  // Lines of this thread for the values that a row keeps.
  struct Kept {
    Kept(const Runner& runner, Call& call) {
      if (runner.kernel_.kept.empty()) return;
      size_t bytes = 0;
      std::vector<size_t> offsets;
      for (const Line& line : runner.kernel_.kept) {
        offsets.push_back(bytes);
        bytes += aligned(size_t{line.item_size} * runner.row_points_);
      }
      thread_local Scratch memory;
      std::byte* const data = memory.get(bytes);
      for (const size_t offset : offsets) lines.push_back(data + offset);
      call.kept = lines.data();
    }
    std::vector<void*> lines;
  };

  void call(const std::vector<void*>& data, std::span<const int64_t> columns, void* const* totals, int64_t begin,
            int64_t end) const {
    Call call = make_call(data, columns, totals);
    IndexRecord record;
    call.failure = &record;
    const Kept kept(*this, call);
    kernel_.rows(&call, begin, end);
    note(record);
  }

  void note(const IndexRecord& record) const {
    if (record.operand == codegen::cpu::kNoFailure) return;
    const std::lock_guard lock(mutex_);
    if (failure_->operand == codegen::cpu::kNoFailure) *failure_ = record;
  }

  const Launch& launch_;
  const CompiledKernel& kernel_;
  const ParallelFor& parallel_;
  IndexRecord* const failure_;
  mutable std::mutex mutex_;  // of *failure_
  int64_t rows_ = 1, lines_ = 1, row_points_ = 1;
  std::span<const int64_t> columns_;
  std::vector<uint32_t> item_sizes_;
  std::vector<void*> data_;
  std::vector<int64_t> strides_, bounds_;
};

}  // namespace

void run(const Launch& launch, const CompiledKernel& kernel, std::span<const tr_buffer> buffers,
         const ParallelFor& parallel, IndexRecord* failure) {
  Runner(launch, kernel, buffers, parallel, failure).run();
}

}  // namespace torch_remote::worker::kernels
