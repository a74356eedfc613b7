#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ir/status.h"

// Memory of a device that devices of other processes on this machine read by themselves, so that copies between two
// sessions go from device to device (worker/collectives/peer_copies.h). What is sent is first copied there, and stays
// until the other end says that it was read.
namespace torch_remote::worker {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // Where a piece lies, for the other process: what the two devices alone understand.
  static constexpr size_t kPlaceBytes = 96;
  using Place = std::array<std::byte, kPlaceBytes>;

  // Memory that another process may be reading. It is used again only after was_read(), for any thread.
  class Piece {
   public:
    virtual ~Piece() = default;
    virtual void was_read() = 0;
  };
  using PiecePtr = std::shared_ptr<Piece>;

  // -- for any thread

  // A few bytes, which are there when the call returns.
  virtual Status offer(std::span<const std::byte> content, Place* place, PiecePtr* piece) = 0;
  // Whether this device reads these bytes there. It waits for that.
  virtual Status try_out(const Place& place, std::span<const std::byte> content) = 0;
  // Ok, unless the device is lost.
  virtual Status status() const = 0;

  // -- queued, for the device's thread

  // Copies to such memory.
  virtual Status put(const void* source, uint64_t nbytes, Place* place, PiecePtr* piece) = 0;

  // What reads the memory of one other process, which it keeps open until it goes: when all that it was asked for is
  // done.
  class Reader {
   public:
    virtual ~Reader() = default;
    // `finish` is to be called by any thread when it is done, and before the other end is told that it was read.
    virtual Status take(const Place& place, void* destination, uint64_t nbytes, std::function<void()>* finish) = 0;
  };
  virtual std::shared_ptr<Reader> make_reader() = 0;
};

}  // namespace torch_remote::worker
