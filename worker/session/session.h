#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"
#include "worker/session/background_ops.h"
#include "worker/session/buffers.h"
#include "worker/session/failure_log.h"
#include "worker/session/in_flight.h"
#include "worker/session/loaded_program.h"
#include "worker/session/older_contents.h"
#include "worker/session/profile.h"
#include "worker/session/program_run.h"

// The state that a worker holds for one client: buffers and programs. One thread uses it.
//
// An op that fails does not stop a session. A node that fails poisons the buffers that it creates. A buffer that it
// would have written in place keeps its bytes and is *behind*: it lacks that update. A node that reads a poisoned
// buffer is skipped, with the same consequences. So is a node that reads a buffer that is behind, if the client does
// not know the failure yet. All other nodes run, in this run and in later ones. A node that overwrites all of a buffer
// makes it valid again.
//
// A read of a poisoned buffer returns the original failure. A read of a buffer that is behind returns the failure if
// the client does not know it yet, and the bytes from then on. A *check* is a node that has no results and writes
// nothing. If it fails, later nodes run all the same; until the client knows the failure, a read of a buffer that they
// wrote returns it. Where two failures meet, the earlier one counts.
//
// From a failure until the client knows it, older contents are *kept*. The first node that writes a buffer in place
// leaves a copy of its bytes. If a later update of the same buffer is skipped for that failure, the copy comes back.
// For example, a momentum that decayed for a gradient that does not exist gets its old value. There are two exceptions:
// contents that the client has read since, and contents for which there was not enough memory for a copy.
//
// The results of reads do not depend on where programs begin and end.
namespace torch_remote::worker {

struct ReadRequest {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::span<const int64_t> sizes, strides;
  int64_t offset = 0;
  bool speculative = false;  // The client may not need the contents.
};

class Session {
 public:
  // Device and runners must outlive the session.
  Session(Device* device, const Runners* runners);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Buffers& buffers() { return buffers_; }
  FailureLog& failures() { return failures_; }

  // A program that cannot be loaded is not an error of the session: its runs fail.
  void load_program(uint32_t number, std::span<const std::byte> bytes, bool tune = false);
  // Drops a program; the client runs it no more. Does nothing if there is no such program.
  void unload_program(uint32_t number);
  // Returns null if there is no such program, or it could not be decoded.
  const LoadedProgram* find_program(uint32_t number) const;

  // Returns an error only for a malformed message; the session is then unusable. *result_words gets the results that
  // the client asked for, those of the last node (RunRequest::wants_result_words). *failure is the reason why they are
  // invalid, or null.
  Status run(const RunRequest& request, std::vector<int64_t>* result_words, FailurePtr* failure);
  // Drops a whole run.
  Status run_cancelled(const RunRequest& request, FailurePtr* failure);
  // `cancelled` is called now and then during a long run; it returns true to drop the rest of the run.
  void set_cancelled(std::function<bool(uint64_t sequence)> cancelled) { cancelled_ = std::move(cancelled); }
  // Records when ops run, from now on; null: stops recording.
  void set_profile(Profile* profile) { context_.profile = profile; }

  // Shows operands and results of steps to this object, from now on; null: to none. It must outlive its use.
  void set_watcher(StepWatcher* watcher) { context_.watcher = watcher; }
  const StepWatcher* watcher() const { return context_.watcher; }

  // The location of a view's elements. `packed`: they are contiguous and row-major already. While `keep` is held, the
  // memory is not written: a later op that writes the buffer writes to a copy.
  struct Located {
    const std::byte* data = nullptr;  // In the device's memory.
    uint64_t nbytes = 0;              // Size of the elements, packed.
    bool packed = false;
    std::shared_ptr<void> keep;
  };
  FailurePtr locate(const ReadRequest& request, uint64_t sequence, Located* located);
  // All of a buffer, as it was at the checkpoint.
  FailurePtr locate_in_checkpoint(uint64_t buffer, uint64_t sequence, Located* located) const;
  // Queues packing the elements into `destination`, which `keep` owns. Returns null if the elements are there now.
  // Otherwise the caller waits for the device's next ticket and calls settle(). After that, the returned object has the
  // failure that made the elements invalid, if any.
  std::shared_ptr<QueuedRead> copy_out(const ReadRequest& request, const Located& located,
                                       std::span<std::byte> destination, std::shared_ptr<void> keep);

  // Checks what the device and background ops have done meanwhile, and records their failures.
  void settle();
  // Whether an op is running in the background. Nodes that use what it writes wait for it.
  bool has_background_work() const { return !background_ops_.empty(); }
  // Returns when no op is running in the background.
  void wait_for_background() { background_ops_.wait_for_all(); }

  // Not ok if the session's data besides buffer contents (buffer entries, programs, failures) exceeds its limit. The
  // caller then ends the session. Only a client that intends it gets this far.
  Status within_limit();

 private:
  Status decode(const RunRequest& request, const std::shared_ptr<LoadedProgram>** program);

  Device* device_;
  const Runners* runners_;
  std::function<bool(uint64_t sequence)> cancelled_;
  OlderContents older_contents_;
  FailureLog failures_;
  Buffers buffers_;
  BackgroundOps background_ops_;
  std::unordered_map<uint32_t, std::shared_ptr<LoadedProgram>> programs_;
  InFlight in_flight_;
  RunContext context_;
};

}  // namespace torch_remote::worker
