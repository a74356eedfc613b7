#include "frontend/record/storages.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "frontend/device/device_state.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/recorder.h"
#include "frontend/record/trace_sender.h"
#include "frontend/source/source.h"
#include "ir/ops/op_table_generated.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {

using at::Tensor;
using c10::IntArrayRef;
using c10::IValue;

namespace {

TraceSender& sender_of(const RemoteStorage* storage) { return Recorder::get(storage->device().index()).sender(); }

// Makes `storage` the owner of a buffer that the worker of this session was asked to make. If that worker was ended
// meanwhile, the contents are lost.
void set_buffer(RemoteStorage* storage, uint64_t session, uint64_t id) {
  TraceSender& sender = sender_of(storage);
  {
    const std::lock_guard<FastMutex> lock(sender.traces().mutex());
    storage->id = session_of(sender.device()) == session ? id : RemoteStorage::kLost;
    storage->session = sender.traces().session();
  }
  sender.throttle();
}

// Called when a storage is destroyed, from any thread, with or without the GIL.
void free_buffer(RemoteStorage* storage) noexcept {
  if (in_bad_fork()) return;
  TraceSender& sender = sender_of(storage);
  ThreadTraces& traces = sender.traces();
  std::unique_lock<FastMutex> lock(traces.mutex());
  ThreadState* holder = &traces.last();
  if (traces.has_several()) {
    holder = nullptr;
    for (size_t i = 0; i < traces.all().size(); ++i) {
      ThreadState& state = *traces.all()[i];
      if (!state.encoder.contains(storage)) continue;
      // The last run that reads the buffer frees it, so send the other traces first.
      if (holder != nullptr) (void)sender.send(lock, *holder, {"another thread"});
      holder = &state;
    }
  }
  const bool recorded = holder != nullptr && holder->encoder.forget_storage(storage);
  if (!recorded && storage->id != 0 && !traces.is_lost(storage)) {
    if (remote::Client* worker = existing_client(sender.device())) worker->free(storage->id);
  }
  storage->id = 0;
  storage->buffer = {};
}

[[maybe_unused]] const bool free_buffer_is_set = [] {
  on_storage_destroyed = free_buffer;
  return true;
}();

}  // namespace

bool has_buffer(const RemoteStorage* storage) {
  ThreadTraces& traces = sender_of(storage).traces();
  const std::lock_guard<FastMutex> lock(traces.mutex());
  return storage->id != 0 ||
         std::ranges::any_of(traces.all(), [&](const auto& state) { return state->encoder.contains(storage); });
}

bool is_lost(const RemoteStorage* storage) {
  ThreadTraces& traces = sender_of(storage).traces();
  const std::lock_guard<FastMutex> lock(traces.mutex());
  return traces.is_lost(storage);
}

void move_buffer(RemoteStorage* from, RemoteStorage* to) {
  TraceSender& sender = sender_of(to);
  Status status;
  bool flushed = false;
  {
    std::unique_lock<FastMutex> lock(sender.traces().mutex());
    ThreadState& own = sender.own(lock, &status);
    for (const RemoteStorage* storage : {from, to}) {
      if (status.ok())
        status = sender.send_others_of(lock, &own, storage, /*writes=*/true, {"another thread"}, &flushed);
    }
    if (status.ok()) own.encoder.swap_buffers(from, to);
  }
  if (flushed) report_flushes();
  check(status);
}

void resize_storage(const c10::Storage& holder, size_t nbytes) {
  RemoteStorage* storage = storage_of(holder);
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex device = storage->device().index();
  const size_t old = storage->nbytes();
  if (nbytes == old) return;
  if (!has_buffer(storage)) {
    storage->set_nbytes(nbytes);
    return;
  }
  // A new buffer with the same first bytes replaces the old one.
  const int64_t kept = static_cast<int64_t>(std::min(old, nbytes));
  Tensor target = make_contiguous_tensor({static_cast<int64_t>(nbytes)}, c10::ScalarType::Byte, device);
  auto* fresh = storage_of(target);
  if (kept > 0) {
    const Tensor from = make_view(target, c10::Storage(holder), target.dtype(), {kept}, {1}, 0);
    const Tensor to = make_view(target, {kept}, {1}, 0);
    const IValue args[] = {to, from, false};
    Recorder::get(device).record(ir::op_desc(ir::ops::aten_copy_), args, {}, {}, std::nullopt);
  }
  move_buffer(fresh, storage);
  storage->set_nbytes(nbytes);
}

void upload_into(const Tensor& cpu, RemoteStorage* storage, c10::DeviceIndex device) {
  const Tensor packed = cpu.contiguous();
  const auto fill = [&](std::byte* destination) { std::memcpy(destination, packed.const_data_ptr(), packed.nbytes()); };
  uint64_t id = 0;
  const std::shared_ptr<remote::Client> worker = client(device);
  {
    remote::EventSpan span(remote::Event::Kind::kUpload);
    if (remote::Event* event = span.event()) {
      event->attachment = packed.nbytes();
      event->source = user_line();
    }
    check(worker->upload(packed.nbytes(), fill, &id));
  }
  set_buffer(storage, worker->connection().session(), id);
}

Tensor upload_tensor(const Tensor& cpu, c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(cpu.sizes(), cpu.scalar_type(), device);
  if (cpu.numel() != 0) upload_into(cpu, storage_of(tensor), device);
  return tensor;
}

Tensor tensor_of_file(const std::string& path, const remote::FileVersion& version, uint64_t offset, IntArrayRef sizes,
                      c10::ScalarType dtype, c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(sizes, dtype, device);
  if (tensor.numel() == 0) return tensor;
  uint64_t id = 0;
  const std::shared_ptr<remote::Client> worker = client(device);
  check(worker->files().read(path, version, offset, tensor.nbytes(), &id));
  set_buffer(storage_of(tensor), worker->connection().session(), id);
  return tensor;
}

Tensor tensor_of_result(uint64_t session, uint64_t id, uint64_t nbytes, IntArrayRef sizes, c10::ScalarType dtype,
                        c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(sizes, dtype, device);
  TORCH_CHECK(tensor.nbytes() == nbytes, "remote: a result of ", tensor.nbytes(), " bytes came as ", nbytes);
  set_buffer(storage_of(tensor), session, id);
  return tensor;
}

Tensor adopt_storage(const c10::Storage& storage, IntArrayRef sizes, IntArrayRef strides, c10::ScalarType dtype) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  storage.unsafeGetStorageImpl()->set_nbytes(at::detail::computeStorageNbytes(sizes, strides, meta.itemsize()));
  return tensor_over_storage(storage, dtype, sizes, strides, 0);
}

void fill_if_unwritten(const Tensor& tensor) {
  RemoteStorage* storage = storage_of(tensor);
  if (storage->id != 0 || has_buffer(storage)) return;
  make_view(tensor, c10::Storage(tensor.storage()), caffe2::TypeMeta::Make<uint8_t>(),
            {static_cast<int64_t>(storage->nbytes())}, {1}, 0)
      .zero_();
}

}  // namespace torch_remote::frontend
