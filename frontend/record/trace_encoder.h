#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

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

// Says that a tensor's contents were lost, and what can be done.
[[noreturn]] void raise_lost();

class TraceEncoder;

// What the traces of one device have in common.
struct TraceEncoders {
  uint32_t session = 1;  // counts workers; buffer ids of another session mean nothing
  uint32_t epoch = 0;    // the last trace's
  std::vector<const TraceEncoder*> all;
  bool several = false;  // there have ever been

  // Whether the storage's contents, of which there were some, went with a worker.
  bool is_lost(const RemoteStorage* storage) const {
    return storage->id != 0 && (storage->id == RemoteStorage::kLost || storage->session != session);
  }
};

// Writes calls of ops into a trace that is being recorded: their arguments, the tensors among them as views of
// buffers, and their results. Of one device and thread. Storages and tensors remember where they stand in the first
// trace that they are in; of other threads' traces, while that one is recorded, the encoder knows it. Not thread safe:
// the recorder calls it with its lock held.
class TraceEncoder {
 public:
  // `shared` outlives it.
  explicit TraceEncoder(TraceEncoders& shared) : shared_(shared) {
    shared_.all.push_back(this);
    shared_.several = shared_.all.size() > 1;
    next_epoch();
  }
  ~TraceEncoder() { std::erase(shared_.all, this); }
  TraceEncoder(const TraceEncoder&) = delete;
  TraceEncoder& operator=(const TraceEncoder&) = delete;

  ir::Trace& trace() { return trace_; }
  const ir::Trace& trace() const { return trace_; }

  // Appends one record; see Recorder::record. Raises if it cannot be recorded; the trace is then what it was.
  void append(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
              c10::ArrayRef<uint32_t> list_lengths, const ir::SourceRef& source, std::optional<RandomState> random,
              bool joins);
  // Likewise for an op whose results only the run can tell.
  void append_dynamic(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<c10::Storage> results,
                      const ir::SourceRef& source, std::optional<RandomState> random);

  // Whether the op, one that copies, joins many tensors, none of them made by this trace. Such an op is a trace of its
  // own, in which each tensor is an input of its own: which of them share memory, with each other or with what was
  // recorded before, is chance (a batch out of a replay memory), and not to be in the key.
  bool joins_inputs(const ir::OpDesc& op, const c10::IValue* args) const;

  // The trace is empty from now on: no tensor stands in it.
  void clear() {
    trace_.clear();
    next_epoch();
  }

  // Whether the storage is a buffer of the trace.
  bool holds(const RemoteStorage* storage) const { return find_buffer(storage) != kNone; }
  // Likewise, and a record that writes the storage (`writes`), or reads it, has to come behind the trace.
  bool precedes(const RemoteStorage* storage, bool writes) const {
    const uint32_t buffer = find_buffer(storage);
    return buffer != kNone && (writes || trace_.buffers[buffer].fresh || trace_.buffers[buffer].written);
  }
  // The last record has written the storage.
  void note_written(const RemoteStorage* storage) { trace_.buffers[find_buffer(storage)].written = true; }

  // The storage goes away: its buffer of the trace has no owner from now on. False if it is none.
  bool forget_storage(RemoteStorage* storage);
  // Each gets the other's buffer. No other trace has one of them.
  void swap_buffers(RemoteStorage* a, RemoteStorage* b);

 private:
  // The record's beginning: all but its results.
  void begin(const ir::OpDesc& op, const c10::IValue* args, const ir::SourceRef& source,
             std::optional<RandomState> random);
  void encode(const ir::OpDesc& op, const c10::IValue* args, std::optional<RandomState> random);
  void encode_operand(const at::Tensor& tensor);
  void encode_view(const at::Tensor& tensor);
  void encode_scalar(const c10::Scalar& scalar);
  void encode_value(const ir::ArgDesc& arg, const c10::IValue& value);
  void encode_structural(const ir::ArgDesc& arg, const c10::IValue& value);
  static constexpr uint32_t kNone = ~uint32_t{0};
  using Numbers = std::unordered_map<const void*, uint32_t>;

  // The storage's buffer.
  uint32_t find_buffer(const RemoteStorage* storage) const {
    if (storage->buffer.epoch == epoch_) return storage->buffer.number;
    return apart_ ? find_apart(apart_buffers_, storage) : kNone;
  }
  [[gnu::cold, gnu::noinline]] static uint32_t find_apart(const Numbers& numbers, const void* object);
  // From now on that is the storage's or tensor's number.
  void enter(const void* object, TraceSlot& slot, uint32_t number, Numbers& apart) {
    if (shared_.several && enter_apart(object, slot, number, apart)) [[unlikely]]
      return;
    slot = {epoch_, number};
  }
  // If its slot says where it stands in another trace that is being recorded.
  [[gnu::cold, gnu::noinline]] bool enter_apart(const void* object, const TraceSlot& slot, uint32_t number,
                                                Numbers& apart);
  // The storage is the trace's next buffer.
  void enter_buffer(RemoteStorage* storage) {
    enter(storage, storage->buffer, static_cast<uint32_t>(trace_.buffers.size()), apart_buffers_);
  }
  void next_epoch() {
    if (++shared_.epoch == 0) shared_.epoch = 1;
    epoch_ = shared_.epoch;
    if (!std::exchange(apart_, false)) return;
    apart_buffers_.clear();
    apart_views_.clear();
  }
  // Raises if the storage is lost.
  void check_not_lost(const RemoteStorage* storage);
  // Lost storages that the op overwrites, all of each: from now on they count as never written.
  std::vector<RemoteStorage*> forget_overwritten(const ir::OpDesc& op, const c10::IValue* args) const;

  ir::Trace trace_;
  uint32_t epoch_ = 0;     // of the trace; tensors' slots are valid if they carry it
  bool apart_ = false;     // one of these has something
  Numbers apart_buffers_;  // of storages that another trace's epoch is on
  Numbers apart_views_;    // of tensors
  TraceEncoders& shared_;
  bool met_lost_ = false;  // check_not_lost has raised
  bool joining_ = false;   // the arguments of an op that joins_inputs are written
};

}  // namespace torch_remote::frontend
