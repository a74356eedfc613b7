#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ir/status.h"
#include "remote/capture/replay_transport.h"
#include "remote/client/client.h"

// restore="replay": a device whose worker is lost gets a new worker with the same tensors.
namespace torch_remote::frontend {

struct RestoreOptions {
  bool replay = false;
  std::string folder;  // for the log; empty: the system's folder for temporary files
  // Limit in bytes on the logged messages since the last checkpoint. A checkpoint is due at half of it. Beyond the
  // limit, a lost worker cannot be replaced until the next checkpoint.
  uint64_t limit = uint64_t{1} << 30;
  std::chrono::seconds interval{300};  // a checkpoint is due after this time
};

// Sets the options for later connections of the device. Throws if it is connected. device_state.cpp implements this,
// checkpoint(), end_checkpoints() and times_restored().
void set_restore(c10::DeviceIndex device, const RestoreOptions& options);
// Stores the options without checking for a connection.
void store_restore_options(c10::DeviceIndex device, const RestoreOptions& options);
// Sets *options to what set_restore() set for the device, or else to what the environment says. Fails if
// TORCH_REMOTE_RESTORE_LIMIT is not a number of bytes.
Status restore_options(c10::DeviceIndex device, RestoreOptions* options);

// Makes a checkpoint of the worker's buffers, so that a restore replays only what follows it. Waits for it. Throws,
// without making a checkpoint, if the device has no connection with restore="replay" or if an op failed.
void checkpoint(c10::DeviceIndex device);
// Ends a checkpoint that another thread is making; that thread's call fails. The connection makes no more checkpoints.
// Waits for that thread, which may need the GIL: call it with no lock held and without the GIL.
void end_checkpoints(c10::DeviceIndex device);
// Number of lost workers that were replaced since the device was connected; 0 without restore="replay".
uint64_t times_restored(c10::DeviceIndex device);

// Makes the checkpoints of one connection when they are due, on its own thread. The transport calls this object when a
// checkpoint becomes due.
class Restore {
 public:
  // Connects to another worker; called on a thread of the transport. It stops when `go_on` returns false.
  using Connect = std::function<Status(const remote::KeepWaiting& go_on, std::unique_ptr<remote::Transport>*)>;
  // Replaces *transport, the client's, by one that wraps it and logs and replays messages. The new transport shares the
  // ownership of *restore, because it calls *restore until the client's last message.
  static Status wrap(const RestoreOptions& options, Connect connect, std::unique_ptr<remote::Transport>* transport,
                     std::shared_ptr<Restore>* restore);
  // Starts the thread. `client` is the client that owns the transport. Call end() before that client is destroyed.
  void start(remote::Client& client);
  // Ends the thread and a checkpoint of any thread, and waits for them. They may need the GIL. Thread safe; a second
  // call does nothing.
  void end();

  // Makes a checkpoint now. Thread safe: one call waits for another. Sets *made to false if the worker has failures
  // that were not reported yet; then there is no checkpoint. Returns kInterrupted if `keep_waiting` returns false, and
  // once end() was called.
  Status checkpoint(const remote::KeepWaiting& keep_waiting, bool* made);
  uint64_t restored() const { return transport_->restored(); }

 private:
  Restore() = default;
  void loop();
  bool closing();
  Status make_checkpoint(const remote::KeepWaiting& keep_waiting, bool* made);

  remote::ReplayTransport* transport_ = nullptr;  // owned by the client
  remote::Client* client_ = nullptr;
  std::mutex end_mutex_;         // held during end(); taken before the others
  std::mutex checkpoint_mutex_;  // held while a checkpoint is made
  std::mutex mutex_;
  std::condition_variable changed_;
  bool due_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace torch_remote::frontend
