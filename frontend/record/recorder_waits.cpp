// The recorder's waits for the worker, and its transfers of bytes apart from traces.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "frontend/device/sync_debug.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/recorder.h"
#include "frontend/record/wait_span.h"
#include "frontend/source/source.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

FailureObserver* failure_observer = nullptr;

[[noreturn]] void raise_observed(c10::DeviceIndex device, remote::OpError& error) {
  if (failure_observer != nullptr) failure_observer->raises(device, error);
  raise(error);
}

}  // namespace

void observe_failures(FailureObserver* observer) { failure_observer = observer; }

std::vector<int64_t> Recorder::record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                               c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random) {
  before_wait("an op whose result's size depends on data");
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  uint64_t ticket = 0;
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = connect_locked(lock);  // connect before recording: the record must be the trace's last one
    if (status.ok()) {
      ThreadState& thread_state = this->thread_state(lock, &status);
      bool flushed = false;
      if (status.ok() && others_record(thread_state)) status = send_before(lock, thread_state, op, args, &flushed);
      if (const ir::MathModes now = determinism(); status.ok() && now != thread_state.determinism) {
        status = enter_determinism(lock, thread_state, now, &flushed);
      }
      if (status.ok()) {
        thread_state.encoder.append_dynamic(op, args, results, source, random);
        (void)thread_state.cuts.after(op.opcode);
        status = flush_locked(lock, thread_state, {"dynamic", true}, &ticket);
      }
    }
  }
  records_.fetch_add(1, std::memory_order_relaxed);
  report_flushes();
  check(status);
  std::vector<int64_t> words;
  remote::OpError error;
  const WaitSpan span("dynamic", source);
  status = client(device_).wait_results(ticket, &words, keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device_, error);
  check(status);
  return words;
}

remote::MemoryLimits Recorder::memory(const remote::MemoryRequest& request) {
  flush("memory", /*waits=*/true);
  remote::MemoryLimits room;
  const WaitSpan span("memory", wait_line());
  check(client(device_).memory(request, keep_waiting, &room));
  return room;
}

std::array<uint64_t, 3> Recorder::call(std::span<const std::byte> request, const std::vector<at::Tensor>& tensors) {
  const ir::SourceRef line = wait_line();
  std::vector<remote::CallInput> inputs;
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = flush_all_locked(lock, {"function", true}, line);
    for (const at::Tensor& tensor : tensors) {
      RemoteStorage* storage = storage_of(tensor);
      if (encoders_.is_lost(storage)) raise_lost();
      inputs.push_back({storage->id, static_cast<uint32_t>(tensor.element_size()), tensor.sizes().vec(),
                        tensor.strides().vec(), tensor.storage_offset()});
    }
  }
  report_flushes();
  check(status);
  uint64_t ticket = 0, base = 0;
  remote::Client& worker = client(device_);
  check(worker.call(request, inputs, &ticket, &base));
  return {worker.session(), ticket, base};
}

remote::FoundFile Recorder::find_file(const std::string& path) {
  remote::FoundFile file;
  check(client(device_).find_file(path, keep_waiting, &file));
  return file;
}

void Recorder::synchronize() {
  flush("synchronize", /*waits=*/true);
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return;
  remote::OpError error;
  const WaitSpan span("synchronize", wait_line());
  const Status status = worker->synchronize(keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device_, error);
  check(status);
}

void Recorder::cancel() {
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return;
  if (failure_observer != nullptr) failure_observer->cancels(device_);
  check(worker->cancel());  // frees space for the messages below
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    if (std::ranges::all_of(thread_states_, [](const auto& thread_state) { return thread_state->empty(); })) return;
    status = flush_all_locked(lock, {"cancel"});
  }
  report_flushes();
  check(status);
  check(worker->cancel());
}

void Recorder::print_unreported() noexcept try {
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr || !worker->health()) return;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    if (!flush_all_locked(lock, {"exit"})) return;
  }
  report_flushes();
  remote::OpError error;
  (void)worker->synchronize(keep_waiting, &error);
  if (error.status.ok()) return;
  const uint64_t count = 1 + error.more.size() + error.not_listed;
  std::fprintf(stderr,
               "remote: %llu op%s failed on the worker, and nothing that was read has told of %s "
               "(torch.remote.synchronize() raises it):\n%s\n",
               static_cast<unsigned long long>(count), count == 1 ? "" : "s", count == 1 ? "it" : "them",
               describe(error).c_str());
} catch (...) {
  return;  // the process exits in any case
}

void Recorder::read(const at::Tensor& tensor, void* destination, const char* reason) {
  const size_t nbytes = tensor.numel() * tensor.element_size();
  if (nbytes == 0) return;
  before_wait(reason);
  RemoteStorage* storage = storage_of(tensor);
  const ir::SourceRef line = wait_line();
  uint64_t id;
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    ThreadState* own = existing_thread_state();
    bool flushed = false;
    status = send_others_of(lock, own, storage, /*writes=*/false, {reason, true}, &flushed);
    if (own != nullptr) {
      const Status sent = flush_locked(lock, *own, {reason, true}, nullptr, line);
      if (status.ok()) status = sent;
    }
    id = storage->id;
    if (status.ok() && encoders_.is_lost(storage)) raise_lost();
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
  status = client(device_).read(id, static_cast<uint32_t>(tensor.element_size()), span_of(tensor.sizes()),
                                span_of(tensor.strides()), tensor.storage_offset(), take, keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device_, error);
  check(status);
}

void Recorder::upload(RemoteStorage* storage, size_t nbytes, const std::function<void(std::byte*)>& fill) {
  uint64_t id = 0;
  remote::Client& worker = client(device_);
  {
    remote::EventSpan span(remote::Event::Kind::kUpload);
    if (remote::Event* event = span.event()) {
      event->attachment = nbytes;
      event->source = user_line();
    }
    check(worker.upload(nbytes, fill, &id));
  }
  set_buffer(storage, id);
}

void Recorder::read_file(RemoteStorage* storage, size_t nbytes, const std::string& path,
                         const remote::FileVersion& version, uint64_t offset) {
  uint64_t id = 0;
  check(client(device_).read_file(path, version, offset, nbytes, &id));
  set_buffer(storage, id);
}

void Recorder::set_buffer(RemoteStorage* storage, uint64_t id) {
  {
    std::lock_guard<FastMutex> lock(mutex_);
    storage->id = id;
    storage->session = encoders_.session;
  }
  throttle();
}

}  // namespace torch_remote::frontend
