#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ir/status.h"

// Memory of a device that devices of other processes on this machine read directly. Copies between two sessions then go
// from device to device (worker/collectives/peer_copies.h). The sender first copies data to such memory, where it stays
// until the other end confirms that it was read.
namespace torch_remote::worker {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // The location of a piece, for the other process. Only the two devices know its format.
  static constexpr size_t kLocationBytes = 96;
  using Location = std::array<std::byte, kLocationBytes>;

  // Memory that another process may be reading. It is reused only after was_read(). Thread safe.
  class Piece {
   public:
    virtual ~Piece() = default;
    virtual void was_read() = 0;
  };
  using PiecePtr = std::shared_ptr<Piece>;

  // -- Thread safe.

  // Stores a few bytes in a new piece. They are there when the call returns.
  virtual Status offer(std::span<const std::byte> content, Location* location, PiecePtr* piece) = 0;
  // Checks that this device reads `content` at `location`. Waits for the read.
  virtual Status verify_readable(const Location& location, std::span<const std::byte> content) = 0;
  // Ok, unless the device is lost.
  virtual Status status() const = 0;

  // -- Queued work, for the device's thread.

  // Copies `nbytes` bytes of the device's other memory to a new piece.
  virtual Status put(const void* source, uint64_t nbytes, Location* location, PiecePtr* piece) = 0;

  // Reads the memory of one other process. It holds that memory open until it is destroyed, after all its reads are
  // done.
  class Reader {
   public:
    virtual ~Reader() = default;
    // Queues a read. `*finish` must be called when the read is done, on any thread, before the other end is notified.
    virtual Status read(const Location& location, void* destination, uint64_t nbytes,
                        std::function<void()>* finish) = 0;
  };
  virtual std::shared_ptr<Reader> make_reader() = 0;
};

}  // namespace torch_remote::worker
