#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/trace.h"
#include "remote/client/channel.h"
#include "remote/client/read_view.h"

// Reads of buffers, with speculative reads of what is likely to be read next (speculative_reads.h).
namespace torch_remote::remote {

// Thread safe, except for on_run.
class BufferReader {
 public:
  explicit BufferReader(Channel& channel) : channel_(channel) {}

  // Says that this run is sent next; requires Channel::order. For `made` see SpeculativeReads::on_run. `trace` is null
  // for the run of a loaded program.
  void on_run(const CachedProgram& program, std::span<const uint64_t> inputs, uint64_t first_result_id,
              std::vector<uint64_t>& made, const ir::Trace* trace);

  // See Client::read. `take` is called on this thread, without a lock.
  Status read(const ReadView& view, const std::function<void(std::span<const std::byte>)>& take,
              const KeepWaiting& keep_waiting, OpError* error);

 private:
  // The following require Channel::order.
  // Sets copies_: the buffers that the trace creates as copies of its inputs.
  void find_copies(const CachedProgram& program, std::span<const uint64_t> inputs, const ir::Trace& trace);
  // Sends a Read. `speculative` marks a speculative read, for which nobody waits yet.
  Status send_read(const ReadView& view, bool speculative, uint64_t* sequence);
  // Sends a Read of a buffer's first `nbytes` bytes, which are cached: *snapshot.
  Status send_read_whole(uint64_t buffer, uint64_t nbytes, bool speculative, SnapshotPtr* snapshot);
  // Send speculative reads. The first function may only follow a message for which Channel::begin reserved space for
  // the reads, too; the second one reserves it.
  Status send_guesses(const std::vector<SpeculativeReads::Guess>& guesses);
  Status reserve_and_send_guesses(const std::vector<SpeculativeReads::Guess>& guesses);
  // Sends a Read of a view, which is in the first `end` bytes of its buffer, unless the bytes are cached or already
  // requested. If `end` is UINT64_MAX, it reads only the view, never the whole buffer. Also sends reads of what is
  // likely to be read next. If *snapshot is not null afterwards, it will contain the view's bytes; otherwise the reply
  // to `sequence` has only the view.
  Status ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot);

  // The following must be called without Channel::order.
  // Waits for the bytes of a snapshot.
  Status wait_for_snapshot(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting, OpError* error);
  // The error to report for a read that failed with `status`.
  Status read_error(uint64_t buffer, Status status, OpError* error) const;

  Channel& channel_;
  std::vector<SpeculativeReads::Copy> copies_;  // reused for its capacity; guarded by Channel::order
};

}  // namespace torch_remote::remote
