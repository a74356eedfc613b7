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

// restore="replay": a device whose worker is lost gets another one, with the same tensors.
namespace torch_remote::frontend {

struct RestoreOptions {
  bool replay = false;
  std::string folder;  // for the log; empty: the system's for temporary files
  uint64_t limit = uint64_t{1} << 30;
  std::chrono::seconds every{300};
};

// For workers that the device is connected to later. Throws if it has one (device_state.cpp, as the next two).
void set_restore(c10::DeviceIndex device, const RestoreOptions& options);
// Without looking.
void keep_restore_options(c10::DeviceIndex device, const RestoreOptions& options);
// What was set, or what the environment says.
Status restore_options(c10::DeviceIndex device, RestoreOptions* options);

// A checkpoint of what the device's worker has, so that only what follows is done again. Waits. Throws if nothing is
// restored.
void checkpoint(c10::DeviceIndex device);
// How many workers the device has lost and had replaced since it was connected.
uint64_t times_restored(c10::DeviceIndex device);

// Of one connection: makes checkpoints when they are due, on a thread of its own.
class Restore {
 public:
  using Connect = std::function<Status(const remote::KeepWaiting& go_on, std::unique_ptr<remote::Transport>*)>;
  // Puts what restores between the client and its worker.
  static Status wrap(const RestoreOptions& options, Connect connect, std::unique_ptr<remote::Transport>* transport,
                     std::unique_ptr<Restore>* restore);
  // Before the client goes.
  ~Restore();
  // The client that has the transport now.
  void start(remote::Client& client);

  // *kept is false where failures wait to be told.
  Status checkpoint(const remote::KeepWaiting& keep_waiting, bool* kept);
  uint64_t restored() const { return transport_->restored(); }

 private:
  Restore() = default;
  void loop();
  bool closing();

  remote::ReplayTransport* transport_ = nullptr;  // the client's
  remote::Client* client_ = nullptr;
  std::mutex making_;  // a checkpoint
  std::mutex mutex_;
  std::condition_variable changed_;
  bool due_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace torch_remote::frontend
