#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <string>

#include "remote/client/client.h"
#include "remote/providers/provider.h"

// The connection of each device. It starts at the device's first use, and ends with the process or with
// torch.remote.restart().
namespace torch_remote::frontend {

inline constexpr int kMaxDevices = 16;

// Number of devices: one for each worker in the comma-separated TORCH_REMOTE_WORKER when this is first called, and one
// for each that was added later. It never decreases.
int device_count() noexcept;
// Returns the index, or raises if there is no such device.
c10::DeviceIndex checked_device(int index);

// The files of the installed package. The Python package sets them once, before the first use of a device.
remote::WorkerFiles& paths();

// The device's client. Starts the worker if there is none; Ctrl-C interrupts the start, as it does any wait. A failure
// raises an exception, as raise() does; its message names the fix. Thread safe. Call it with no lock held, because a
// worker may take long to start. It releases the GIL meanwhile. One thread connects a device, and other threads that
// need this device wait for it. Threads that use other devices do not wait.
// After a restart, the calls of the old client return kLost. Its last owner ends the worker.
std::shared_ptr<remote::Client> client(c10::DeviceIndex device);
// Like client(), but returns whether there is a worker, and sets *status instead of raising. It returns false with an
// unchanged *status if another thread has ended the worker meanwhile.
bool connect(c10::DeviceIndex device, Status* status) noexcept;
// The client if there is one, else null. Never starts a worker.
std::shared_ptr<remote::Client> running_client(c10::DeviceIndex device) noexcept;
// The same without a reference. Use the client only with the lock of the device's traces held: it lives until
// detach_worker(), which requires this lock.
remote::Client* existing_client(c10::DeviceIndex device) noexcept;
// The client's session, 0 if there is none. Takes no lock.
uint64_t session_of(c10::DeviceIndex device) noexcept;
// Whether the device's current or last worker computes on a CPU.
bool runs_on_cpu(c10::DeviceIndex device) noexcept;

// Counters over all workers that the device has had since reset_counters. Levels (CounterField::level) are those of the
// current worker.
remote::Counters counters(c10::DeviceIndex device);
void reset_counters(c10::DeviceIndex device);

// The fraction of its memory, in [0, 1], that the device's worker may use. It also applies to workers that start later.
// Setting it starts the worker if there is none, waits for its reply, and raises on failure.
double memory_fraction(c10::DeviceIndex device);
void set_memory_fraction(c10::DeviceIndex device, double fraction);

// The runs that the workers check (remote/client/shadow.h): those of running workers, and of workers that start later.
// Raises if a running worker has no reference.
void set_shadow(const remote::ShadowSettings& settings);

// The next three functions end the device's worker, if there is one. The next use of the device starts another worker.
//
// Cancels a start of the worker. Ends the waits of other threads, which return kLost. Call it with no lock held and
// without the GIL.
void begin_restart(c10::DeviceIndex device);
struct DeviceConnection;
// Removes the worker from the device. Call it with the lock of the device's traces held.
[[nodiscard]] std::shared_ptr<DeviceConnection> detach_worker(c10::DeviceIndex device);
// Ends the worker. Waits for threads that may need the GIL: call it with no lock held and without the GIL.
void end_worker(std::shared_ptr<DeviceConnection> connection);

// An observer of connections. Its functions are called by the thread that connects or restarts the device.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  // Called after the worker is connected, before other threads can use it. It must return quickly, and use `worker`
  // instead of client(device), which would wait for this connection.
  virtual void connected(c10::DeviceIndex device, remote::Client& worker) noexcept = 0;
  // Called by begin_restart(). The package ends all workers at the end of the process, too.
  virtual void ending(remote::Client& worker) noexcept = 0;
};
// Sets the only observer, which must live as long as the process. Call it during import, before other threads use a
// device.
void observe_connections(ConnectionObserver* observer);

// Throws the exception for a failed status: c10::Error, torch.OutOfMemoryError, WorkerLost or KeyboardInterrupt.
[[noreturn]] void raise(const Status& status);
[[noreturn]] void raise(const remote::OpError& error);
// The error message: what failed, where it was recorded, which updates were skipped, and what else failed. Takes the
// GIL.
std::string describe(const remote::OpError& error);
inline void check(const Status& status) {
  if (!status) raise(status);
}

// Pid of a local worker, -1 if there is none.
int worker_process(c10::DeviceIndex device);

// Every wait for a worker calls this now and then. It takes the GIL and runs Python's signal handlers. Returns false if
// one of them raised, as after Ctrl-C; store_python_error() has then stored the exception.
bool keep_waiting();

// Stores the Python exception that is set in this thread. The next raise() of kInterrupted in this thread throws it.
// Requires the GIL.
void store_python_error();

// Whether this process is a child of fork() whose parent had used a device. Every use of a device then raises, as on
// CUDA. check_not_forked() raises that error.
bool in_bad_fork();
void check_not_forked();

}  // namespace torch_remote::frontend
