#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "ir/op_table.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

inline std::span<const int64_t> span_of(c10::IntArrayRef values) { return {values.data(), values.size()}; }

// Says that a tensor's contents were lost, and what can be done.
[[noreturn]] void raise_lost();

// Writes calls of ops into the trace that is being recorded: their arguments, the tensors among them as views of
// buffers, and their results. Of one device. Not thread safe: the recorder calls it with its lock held.
class TraceEncoder {
 public:
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
  bool holds(const RemoteStorage* storage) const { return storage->buffer.epoch == epoch_; }
  // The storage goes away: its buffer of the trace has no owner from now on. False if it is none.
  bool forget_storage(RemoteStorage* storage);
  // Each gets the other's buffer.
  void swap_buffers(RemoteStorage* a, RemoteStorage* b);

  // Counts workers; buffer ids of another session mean nothing.
  uint32_t session() const { return session_; }
  void next_session() { ++session_; }
  // Whether the storage's contents, of which there were some, went with a worker.
  bool is_lost(const RemoteStorage* storage) const {
    return storage->id != 0 && (storage->id == RemoteStorage::kLost || storage->session != session_);
  }

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
  void enter_buffer(RemoteStorage* storage);
  void next_epoch() {
    if (++epoch_ == 0) epoch_ = 1;
  }
  // Raises if the storage is lost.
  void check_not_lost(const RemoteStorage* storage);
  // Lost storages that the op overwrites, all of each: from now on they count as never written.
  std::vector<RemoteStorage*> forget_overwritten(const ir::OpDesc& op, const c10::IValue* args) const;

  ir::Trace trace_;
  uint32_t epoch_ = 1;     // of the trace; tensors' slots are valid if they carry it
  uint32_t session_ = 1;   // see session()
  bool met_lost_ = false;  // check_not_lost has raised
  bool joining_ = false;   // the arguments of an op that joins_inputs are written
};

}  // namespace torch_remote::frontend
