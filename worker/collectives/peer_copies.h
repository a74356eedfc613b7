#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"
#include "worker/collectives/op_queue.h"
#include "worker/device/device.h"

// Copies between two devices that read each other's memory. The connection between their workers carries only the
// location of a piece, and later the confirmation that it was read.
//
//   sender                                     receiver
//   its device copies to a PeerMemory piece
//   when that is done: kLocation, number ->       its device reads the piece, in the order of the session
//   the piece is free again       <- kReadDone, number     when that is done
//
// For the session's thread, except `test_access`.
namespace torch_remote::worker {

class PeerCopies {
 public:
  // `peer`: rank of the other end. The queue must be connected. The device must have peer_memory(), and outlive this.
  PeerCopies(Device& device, std::shared_ptr<OpQueue> queue, int peer);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Tests whether both devices can read each other's memory. Both ends call it once they are connected. `mine`: this
  // device's memory, or null if it has none. *why must be empty. It stays empty if both can; otherwise it receives the
  // reason, or "-" if neither device has such memory. Errors are those of the connection.
  static Status test_access(Mesh& mesh, int peer, PeerMemory* mine, const OpLimits& limits, std::string* why);

  // Queues a copy of `data`, an address on the device, and returns. The location is sent when the device has made the
  // copy. The call returns kOutOfMemory, and sends nothing, if there is no memory for the copy.
  Status send(const Label& label, const void* data, uint64_t nbytes, const OpLimits& limits);
  // Waits until the other end has the data ready, then queues the read to `data`, an address on the device. `look`: see
  // BackgroundWork::wait. Returns the error of the connection, the error that the other end sent instead of the copy,
  // or that of the read.
  Status receive(const Label& label, void* data, uint64_t nbytes, const OpLimits& limits,
                 const std::function<void()>& look);
  // Call it instead of receive(): returns at once, and later confirms the copy to the sender without reading the data.
  void drop(const Label& label, const OpLimits& limits);

  // Returns when this device has done all its reads, and the confirmations are queued.
  void finish_reading();

 private:
  struct Reading;  // Reads that are not done yet.

  Device& device_;
  const std::shared_ptr<OpQueue> queue_;
  const int peer_;
  const std::shared_ptr<Reading> reading_;
  std::shared_ptr<PeerMemory::Reader> reader_;
};

}  // namespace torch_remote::worker
