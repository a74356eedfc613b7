#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <string>

#include "remote/client/client.h"
#include "remote/providers/provider.h"

// The connection of each device: started on first use, ended with the process, or by torch.remote.restart().
namespace torch_remote::frontend {

inline constexpr int kMaxDevices = 16;

// As many as TORCH_REMOTE_WORKER names workers (with commas between them) when this is first called, and those that
// were added since. It never becomes less.
int device_count() noexcept;
// The index, or an error if there is no such device.
c10::DeviceIndex checked_device(int index);

// Set once, by the Python package, before first use.
remote::WorkerFiles& paths();

// The device's client; starts the worker if there is none, which Ctrl-C ends (as it ends any wait). Throws (torch's
// exceptions) if that fails: the message names the fix. Thread safe; call it with no lock held and without the GIL, as
// a worker may take long to start. Threads that want the same device wait for the one that connects; other devices do
// not.
remote::Client& client(c10::DeviceIndex device);
// The same without raising: null and *status set.
remote::Client* connect(c10::DeviceIndex device, Status* status) noexcept;
// The client if there is one; never starts anything.
remote::Client* existing_client(c10::DeviceIndex device) noexcept;
// The device's worker, the last one that there was, makes kernels for CPUs.
bool runs_on_cpu(c10::DeviceIndex device) noexcept;

// Of all workers that the device has had since reset_counters; worker_bytes and its peak of the one that it has.
remote::Counters counters(c10::DeviceIndex device);
void reset_counters(c10::DeviceIndex device);

// The share of its memory, in [0, 1], that this device's worker may use; also of workers that are started later.
double memory_fraction(c10::DeviceIndex device);
void set_memory_fraction(c10::DeviceIndex device, double fraction);

// Ends the worker (if any) and forgets it; the next use starts another one.
void restart(c10::DeviceIndex device);

// Who wants to know of workers.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  // It has just been connected to. Must not wait for long.
  virtual void connected(c10::DeviceIndex device, remote::Client& worker) noexcept = 0;
  // It is about to be ended.
  virtual void ending(remote::Client& worker) noexcept = 0;
};
// At import, or never.
void observe_connections(ConnectionObserver* observer);

// Throws c10::Error / torch.OutOfMemoryError / WorkerLost / KeyboardInterrupt for a failed status.
[[noreturn]] void raise(const Status& status);
[[noreturn]] void raise(const remote::OpError& error);
// What it says: what failed, where it was recorded, which updates were skipped, what else failed. Takes the GIL.
std::string describe(const remote::OpError& error);
inline void check(const Status& status) {
  if (!status) raise(status);
}

// Pid of a local worker, -1 if there is none.
int worker_process(c10::DeviceIndex device);

// Passed to every wait: looks for Ctrl-C.
bool keep_waiting();

// Takes the exception that is set in this thread: what `raise` raises for the next kInterrupted. GIL held.
void keep_raised();

// True in a child of fork() whose parent had used the device. Every use then raises, as CUDA does.
bool in_bad_fork();
void check_not_forked();

}  // namespace torch_remote::frontend
