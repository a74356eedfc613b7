#include "frontend/record/requests.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "frontend/device/device_state.h"
#include "frontend/device/sync_debug.h"
#include "frontend/device/tensor.h"
#include "frontend/record/failure_observer.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/recorder.h"
#include "frontend/record/trace_encoder.h"
#include "frontend/record/trace_sender.h"
#include "frontend/record/wait_span.h"

namespace torch_remote::frontend {

void read_tensor(const at::Tensor& tensor, void* destination, const char* reason) {
  const size_t nbytes = tensor.numel() * tensor.element_size();
  if (nbytes == 0) return;
  before_wait(reason);
  const c10::DeviceIndex device = tensor.device().index();
  RemoteStorage* storage = storage_of(tensor);
  const ir::SourceRef line = wait_line();
  TraceSender& sender = Recorder::get(device).sender();
  uint64_t id;
  std::shared_ptr<remote::Client> worker;  // that has the buffer
  Status status;
  {
    std::unique_lock<FastMutex> lock(sender.traces().mutex());
    ThreadState* own = sender.traces().find_own();
    bool flushed = false;
    status = sender.send_others_of(lock, own, storage, /*writes=*/false, {reason, true}, &flushed);
    if (own != nullptr) {
      const Status sent = sender.send(lock, *own, {reason, true}, nullptr, line);
      if (status.ok()) status = sent;
    }
    id = storage->id;
    if (status.ok() && sender.traces().is_lost(storage)) raise_lost();
    worker = running_client(device);
  }
  report_flushes();
  check(status);
  if (id == 0) {  // never written: undefined like torch.empty's memory, but without another tensor's bytes
    std::memset(destination, 0, nbytes);
    return;
  }
  const auto take = [&](std::span<const std::byte> bytes) {
    TORCH_CHECK(bytes.size() == nbytes, "remote: the worker sent ", bytes.size(), " bytes for a tensor of ", nbytes);
    std::memcpy(destination, bytes.data(), nbytes);
  };
  remote::OpError error;
  const WaitSpan span(reason, line);
  if (worker == nullptr) worker = client(device);  // raises: this is a forked child
  status = worker->read(id, static_cast<uint32_t>(tensor.element_size()), span_of(tensor.sizes()),
                        span_of(tensor.strides()), tensor.storage_offset(), take, keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device, error);
  check(status);
}

remote::MemoryLimits request_memory(c10::DeviceIndex device, const remote::MemoryRequest& request) {
  Recorder::get(device).flush("memory", /*waits=*/true);
  remote::MemoryLimits limits;
  const WaitSpan span("memory", wait_line());
  check(client(device)->memory(request, keep_waiting, &limits));
  return limits;
}

std::array<uint64_t, 3> call_function(c10::DeviceIndex device, std::span<const std::byte> request,
                                      const std::vector<at::Tensor>& tensors) {
  const ir::SourceRef line = wait_line();
  TraceSender& sender = Recorder::get(device).sender();
  std::vector<remote::CallInput> inputs;
  std::shared_ptr<remote::Client> worker;  // that has the inputs
  Status status;
  {
    std::unique_lock<FastMutex> lock(sender.traces().mutex());
    status = sender.send_all(lock, {"function", true}, line);
    for (const at::Tensor& tensor : tensors) {
      RemoteStorage* storage = storage_of(tensor);
      if (sender.traces().is_lost(storage)) raise_lost();
      inputs.push_back({storage->id, static_cast<uint32_t>(tensor.element_size()), tensor.sizes().vec(),
                        tensor.strides().vec(), tensor.storage_offset()});
    }
    worker = running_client(device);
  }
  report_flushes();
  check(status);
  uint64_t ticket = 0, first_result_id = 0;
  if (worker == nullptr) worker = client(device);  // no op was recorded, and there are no inputs
  check(worker->functions().call(request, inputs, &ticket, &first_result_id));
  return {worker->connection().session(), ticket, first_result_id};
}

}  // namespace torch_remote::frontend
