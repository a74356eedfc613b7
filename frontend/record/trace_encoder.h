#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "ir/ops/op_table.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

inline std::span<const int64_t> span_of(c10::IntArrayRef values) { return {values.data(), values.size()}; }

// Raises an error that says that a tensor's contents were lost, and what to do.
[[noreturn]] void raise_lost();

class TraceEncoder;

// State that the traces of one device share.
struct TraceEncoderGroup {
  uint32_t session = 1;  // counts workers; buffer ids of other sessions are invalid
  uint32_t epoch = 0;    // epoch of the newest trace
  std::vector<const TraceEncoder*> all;
  bool had_several = false;  // there was another encoder when the newest one was made

  // Whether the storage had contents and lost them with a worker.
  bool is_lost(const RemoteStorage* storage) const {
    return storage->id != 0 && (storage->id == RemoteStorage::kLost || storage->session != session);
  }
};

// Encodes the calls of one thread on one device into the trace that is being recorded. It writes their arguments, the
// tensors among them as views of buffers, and their results. Storages and tensors remember their index in the first
// trace that uses them. While that trace is being recorded, an encoder of another thread keeps its own indices for
// them. Not thread safe: the recorder calls it with its lock held.
class TraceEncoder {
 public:
  // `shared` must outlive the encoder.
  explicit TraceEncoder(TraceEncoderGroup& shared) : shared_(shared) {
    shared_.all.push_back(this);
    shared_.had_several = shared_.all.size() > 1;
    next_epoch();
  }
  ~TraceEncoder() { std::erase(shared_.all, this); }
  TraceEncoder(const TraceEncoder&) = delete;
  TraceEncoder& operator=(const TraceEncoder&) = delete;

  ir::Trace& trace() { return trace_; }
  const ir::Trace& trace() const { return trace_; }

  // Appends one record; see Recorder::record. If it cannot be recorded, raises and leaves the trace unchanged. With
  // `joins`, each operand becomes a separate input (see concatenates_many_inputs).
  void append(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
              c10::ArrayRef<uint32_t> list_lengths, const ir::SourceRef& source, std::optional<RandomState> random,
              bool joins);
  // The same for an op whose result shapes depend on data.
  void append_dynamic(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<c10::Storage> results,
                      const ir::SourceRef& source, std::optional<RandomState> random);

  // Whether an op of Family::kCopy joins many tensors, all of which the worker has, and none of which this trace has
  // created. The recorder makes such an op a trace of its own, in which each tensor is a separate input. Which of the
  // tensors share memory is random, for example in a batch sampled from a replay buffer. So it must not be part of the
  // key.
  bool concatenates_many_inputs(const ir::OpDesc& op, const c10::IValue* args) const;

  // Empties the trace. No tensor has an index in it afterwards.
  void clear() {
    trace_.clear();
    next_epoch();
  }

  // Whether the storage is a buffer of the trace.
  bool contains(const RemoteStorage* storage) const { return find_buffer(storage) != kNone; }
  // Whether this trace must run before another thread's record that uses the storage. `writes`: that record writes it.
  bool must_precede(const RemoteStorage* storage, bool writes) const {
    const uint32_t buffer = find_buffer(storage);
    return buffer != kNone && (writes || trace_.buffers[buffer].fresh || trace_.buffers[buffer].written);
  }
  // Notes that the last record writes the storage, which the trace contains.
  void note_written(const RemoteStorage* storage) { trace_.buffers[find_buffer(storage)].written = true; }

  // The storage is destroyed: its buffer in the trace has no owner any more. Returns false if it is not in the trace.
  bool forget_storage(RemoteStorage* storage);
  // Exchanges the buffers of two storages, with their contents. No other trace may use either of them.
  void swap_buffers(RemoteStorage* a, RemoteStorage* b);

 private:
  // Encodes a record without its results.
  void begin(const ir::OpDesc& op, const c10::IValue* args, const ir::SourceRef& source,
             std::optional<RandomState> random);
  void encode(const ir::OpDesc& op, const c10::IValue* args, std::optional<RandomState> random);
  // `first` is the op's first argument. Its dtype decides how an integer beyond the range of int64 is encoded.
  void encode_operand(const at::Tensor& tensor, const c10::IValue& first);
  void encode_view(const at::Tensor& tensor);
  void encode_scalar(const c10::Scalar& scalar);
  [[gnu::cold, gnu::noinline]] void encode_large_operand(const c10::Scalar& number, bool wrapped,
                                                         const c10::IValue& first);
  [[gnu::cold, gnu::noinline]] void encode_large_scalar(const c10::Scalar& number, const c10::IValue& first);
  void encode_value(const ir::ArgDesc& arg, const c10::IValue& value, const c10::IValue& first);
  void encode_structural(const ir::ArgDesc& arg, const c10::IValue& value);
  static constexpr uint32_t kNone = ~uint32_t{0};
  using Numbers = std::unordered_map<const void*, uint32_t>;

  // The index of the storage's buffer, or kNone.
  uint32_t find_buffer(const RemoteStorage* storage) const {
    if (storage->buffer.epoch == epoch_) return storage->buffer.index;
    return has_local_indices_ ? find_local(local_buffers_, storage) : kNone;
  }
  [[gnu::cold, gnu::noinline]] static uint32_t find_local(const Numbers& numbers, const void* object);
  // Makes `number` the index of the storage or tensor.
  void enter(const void* object, TraceSlot& slot, uint32_t number, Numbers& local) {
    if (shared_.had_several && enter_local(object, slot, number, local)) [[unlikely]]
      return;
    std::atomic_ref(slot).store({epoch_, number}, std::memory_order_relaxed);  // a copy of the tensor takes no lock
  }
  // Stores the index in `local` if the object's slot belongs to another trace that is being recorded. Returns whether
  // it did.
  [[gnu::cold, gnu::noinline]] bool enter_local(const void* object, const TraceSlot& slot, uint32_t number,
                                                Numbers& local);
  // Makes the storage the trace's next buffer.
  void enter_buffer(RemoteStorage* storage) {
    enter(storage, storage->buffer, static_cast<uint32_t>(trace_.buffers.size()), local_buffers_);
  }
  void next_epoch() {
    if (++shared_.epoch == 0) shared_.epoch = 1;
    epoch_ = shared_.epoch;
    if (!std::exchange(has_local_indices_, false)) return;
    local_buffers_.clear();
    local_views_.clear();
  }
  // Raises if the storage's contents are lost.
  void check_not_lost(const RemoteStorage* storage);
  // Returns the lost storages that the op overwrites completely and does not read. From now on they count as never
  // written.
  std::vector<RemoteStorage*> forget_overwritten(const ir::OpDesc& op, const c10::IValue* args) const;

  ir::Trace trace_;
  uint32_t epoch_ = 0;              // of the trace; a slot is valid if it has this epoch
  bool has_local_indices_ = false;  // an index was entered in one of the maps below during this trace
  Numbers local_buffers_;           // indices of storages whose slots belong to another trace
  Numbers local_views_;             // the same for tensors
  TraceEncoderGroup& shared_;
  bool raised_lost_ = false;    // check_not_lost has raised
  bool encoding_join_ = false;  // the arguments of an op with concatenates_many_inputs are being encoded
};

}  // namespace torch_remote::frontend
