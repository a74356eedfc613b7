#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"
#include "worker/session/id_map.h"
#include "worker/session/in_flight.h"
#include "worker/session/loaded_program.h"
#include "worker/session/profile.h"

// The state that a worker holds for one client: buffers and programs. For one thread.
//
// An op that fails does not stop a session. A node that fails poisons the buffers that it creates. A buffer that it
// would have written in place keeps its bytes and is *behind*: it lacks that update. A node that reads a poisoned
// buffer is skipped, with the same consequences. So is a node that reads a buffer that is behind, if the client does
// not know the failure yet. All other nodes run, in this run and in later ones. A node that overwrites all of a buffer
// makes it valid again.
//
// A read of a poisoned buffer returns the original failure. A read of a buffer that is behind returns the failure if
// the client does not know it yet, and the bytes from then on. The same holds for a buffer that was written after a
// failed check (a node without results that writes nothing), but its bytes lack nothing. Where two failures meet, the
// earlier one counts.
//
// From a failure until the client knows it, older contents are *kept*. The first node that writes a buffer in place
// leaves a copy of its bytes. If a later update of the same buffer is skipped for that failure, the copy comes back.
// For example, a momentum that decayed for a gradient that does not exist gets its old value. There are two exceptions:
// contents that the client has read since, and contents for which there was not enough memory for a copy.
//
// The results of reads do not depend on where programs begin and end.
namespace torch_remote::worker {

// The memory of a buffer. Shared between the session and the messages that lend it to the client.
class Memory {
 public:
  // Releases the tr_buffer on destruction.
  explicit Memory(const tr_buffer& buffer) : data_(buffer.data), nbytes_(buffer.nbytes), buffer_(buffer) {}
  // A poisoned buffer: only a size, no memory.
  explicit Memory(uint64_t nbytes) : data_(nullptr), nbytes_(nbytes) {}
  // Memory owned by `keep`. Counted in the allocator's statistics.
  Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  // Records that this run has it as an input. Returns false if the run has it as an input already.
  bool bind(uint64_t run) { return std::exchange(bound_by_, run) != run; }
  // Whether an op in the background writes it.
  bool is_being_written() const { return writers_ != 0; }
  void begin_writing() { ++writers_; }
  void end_writing() { --writers_; }
  // Data that a runner derives from the contents; dropped when they change.
  tr_attachment* attachment() { return &attachment_; }
  void contents_change() {
    if (attachment_.release) attachment_.release(attachment_.data);
    attachment_ = {};
  }

 private:
  void* data_;
  uint64_t nbytes_;
  tr_buffer buffer_{};
  std::shared_ptr<void> keep_;
  CachingAllocator* counted_ = nullptr;
  uint64_t bound_by_ = 0;
  uint32_t writers_ = 0;
  tr_attachment attachment_{};
};
using MemoryPtr = std::shared_ptr<Memory>;

struct RunRequest {
  uint32_t program = 0;
  uint64_t base = 0;
  std::span<const uint8_t> params, bindings, frees;
  uint64_t sequence = 0;
  bool wants_words = false;  // The client waits for the result words of the last node.
  bool afresh = false;       // Params and bindings are encoded as for a first run.
  ir::MathModes math = 0;
};

struct ReadRequest {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::span<const int64_t> sizes, strides;
  int64_t offset = 0;
  bool prefetch = false;  // A prefetch: the client may not need it.
};

class Session {
 public:
  // Device and runners must outlive the session.
  Session(Device* device, const Runners* runners);
  ~Session();

  // A program that cannot be loaded is not an error of the session: its runs fail.
  void load_program(uint32_t number, std::span<const std::byte> bytes, bool tune = false);
  // The program does not run any more. Does nothing if there is no such program.
  void unload_program(uint32_t number);

  // Returns an error only for a malformed message; the session is then unusable. `words` receives the results of the
  // last node that the client wants to know. `failure` is the reason why they are invalid, or null.
  Status run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure);

  // `cancelled` is called now and then during a long run; it returns true to drop the rest of the run.
  void set_cancelled(std::function<bool(uint64_t sequence)> cancelled) { cancelled_ = std::move(cancelled); }
  // Drops a whole run.
  Status run_cancelled(const RunRequest& request, FailurePtr* failure);

  // Creates a buffer with these bytes, which `keep` owns. If the device adopts memory, the buffer uses the bytes where
  // they lie. Otherwise it gets a copy, because the client may write to what it sent. An id of 0 is invalid.
  Status upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep);
  // Creates a buffer without contents, because memory ran out.
  Status upload_failed(uint64_t id, uint64_t nbytes);

  // Creates a buffer whose bytes `fill` writes, one piece at a time; a piece begins at `offset`. If `fill` fails, that
  // is the buffer's failure. If `refused` is not ok, it is the failure, and nothing is filled.
  using Fill = std::function<Status(uint64_t offset, std::span<std::byte> piece)>;
  Status make_buffer(uint64_t id, uint64_t nbytes, uint64_t sequence, const Status& refused, const Fill& fill);

  Status free(std::span<const uint8_t> ids);
  // Frees the buffers with these ids that exist.
  void free_range(uint64_t first, uint64_t count);

  // The location of a view's elements. `packed`: they are contiguous and row-major already. While `keep` is held, the
  // memory is not written: a later op that writes the buffer writes to a copy.
  struct Located {
    const std::byte* data = nullptr;  // In the device's memory.
    uint64_t nbytes = 0;              // Size of the elements, packed.
    bool packed = false;
    std::shared_ptr<void> keep;
  };
  FailurePtr locate(const ReadRequest& request, uint64_t sequence, Located* located);
  // Queues packing the elements into `destination`, which `keep` owns. Afterwards the caller waits for the device's
  // next ticket and calls settle(); then the result says why the elements are invalid. A null result: they are there
  // now.
  std::shared_ptr<QueuedRead> copy_out(const ReadRequest& request, const Located& located,
                                       std::span<std::byte> destination, std::shared_ptr<void> keep);

  // Retains the present contents of all buffers until drop_checkpoint(), and lists them. Later writes go to a copy.
  // Buffers without contents are left out. The caller makes sure that the client knows all failures.
  void make_checkpoint(std::vector<uint64_t>* buffers, std::vector<uint64_t>* sizes);
  void drop_checkpoint() { checkpoint_.clear(); }
  // All of a buffer of the checkpoint, as it was then.
  FailurePtr locate_in_checkpoint(uint64_t buffer, uint64_t sequence, Located* located) const;

  // Checks what the device and background ops have done meanwhile, and records their failures.
  void settle();
  // Whether an op is running in the background. Nodes that use what it writes wait for it.
  bool has_background_work() const { return !background_ops_.empty(); }
  // Returns when no op is running in the background.
  void wait_for_background();
  // The failure that invalidates the result words of the run with this sequence, if it was found after the run
  // returned; else null. Call it once, when the run's ticket is done.
  FailurePtr take_deferred_failure(uint64_t sequence);

  // Whether there are failures that the client does not know yet.
  bool has_unreported_failures() const { return !unreported_.empty() || unlisted_failures_ != 0; }
  // Returns a failure that was not announced yet, and marks it as announced; null if there is none.
  FailurePtr announce();
  // Marks the failure as known to the client.
  void mark_reported(const FailurePtr& failure);
  // Returns the failures that the client does not know yet, in order; the caller marks them as known. `more` counts
  // failures that are not in the list.
  std::vector<FailurePtr> take_failures(uint64_t* more);

  // Records when ops run, from now on; null: stops recording.
  void set_profile(Profile* profile) { profile_ = profile; }
  // Not ok if the session's data besides buffer contents (buffer entries, programs, failures) exceeds its limit. Only a
  // client that provokes it gets there. The caller ends the session.
  Status within_limit();

  // Returns null if there is no such program, or it could not be decoded.
  const LoadedProgram* find_program(uint32_t number) const;

  size_t buffers() const { return buffers_.size(); }

 private:
  struct Entry {
    MemoryPtr memory;    // Without data: poisoned.
    FailurePtr failure;  // The reason for the poison, or the failure whose update the contents lack.
    FailurePtr check;    // The failed check after which the contents were written.
    bool poisoned() const { return memory->data() == nullptr; }
  };
  // Older contents of a buffer.
  struct OlderContents {
    uint64_t failure;           // Number of the last failure before the copy was made.
    MemoryPtr memory;           // Null: there is no copy.
    FailurePtr missing_update;  // The failure whose update the copy lacks.
  };
  // An op that runs in the background.
  struct BackgroundOp {
    std::shared_ptr<BackgroundWork> work;
    std::shared_ptr<LoadedProgram> program;
    std::vector<int64_t> values;  // Values of the program's symbols.
    uint32_t node = 0;
    uint64_t sequence = 0;
    struct Use {
      uint64_t id = 0;
      MemoryPtr memory;
      bool writes = false;
      bool creates = false;  // The buffer is new: without the op it has no contents.
    };
    std::vector<Use> uses = {};
  };
  struct Run;

  void put(uint64_t id, Entry entry) {
    if (id != 0) buffers_[id] = std::move(entry);
  }
  Status put_failed(uint64_t id, uint64_t nbytes, Status why, uint64_t sequence);
  void erase_freed();
  bool reclaim();

  // A run (session_run.cpp).
  Status decode(const RunRequest& request, LoadedProgram** program);
  void run_decoded(LoadedProgram& program, const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure);
  void drop(LoadedProgram& program, const RunRequest& request, const FailurePtr& why, FailurePtr* failure);
  void bind_inputs(Run& run);
  Status prepare(Run& run);
  void unshare_written(Run& run);
  bool allocate_arena(Run& run);
  bool execute(Run& run);
  bool take_memory(Run& run, const Stage& stage);
  void unshare_group_memory(Run& run, const Stage& stage);
  bool call_in_pieces(Run& run, uint32_t first, uint32_t last);
  bool check_cancelled(Run& run);
  bool call(Run& run, uint32_t first, uint32_t last, bool alone = false);
  bool call_alone(Run& run, uint32_t node, uint64_t* times);
  bool call_runner(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times);
  tr_run describe(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) const;
  uint64_t* times_of(Run& run, uint32_t first, uint32_t last);
  void note_in_flight(Run& run);

  // Background ops (session_background.cpp).
  void await_inputs(const LoadedProgram& program);
  bool await_operands(Run& run, uint32_t first, uint32_t last);
  void await_writers(const MemoryPtr& memory);
  uint64_t give_operands(Run& run, uint32_t node);
  bool begin(Run& run, uint32_t node, uint64_t* times);
  bool find_uses(Run& run, uint32_t node, std::vector<BackgroundOp::Use>* uses);
  void wait(BackgroundOp& op);
  FailurePtr finish_background(BackgroundOp& op);
  void settle_background();
  void execute_one_by_one(Run& run);
  void finish(Run& run);

  // Failures and their consequences (session_failures.cpp).
  FailurePtr make_failure(Failure failure) const;
  FailurePtr note(Failure failure);
  FailurePtr cancellation(uint64_t sequence);
  FailurePtr no_such_buffer(uint64_t id, uint64_t sequence) const;
  FailurePtr pending_check();
  uint64_t last_unreported() const;
  static void mark_results_doubtful(Run& run, uint32_t index, const FailurePtr& failure);
  FailurePtr blocked(const Run& run, uint32_t node) const;
  bool overwrites_whole_buffer(const Run& run, uint32_t node, uint32_t buffer) const;
  bool give_memory(Run& run, uint32_t buffer);
  void call_and_repair(Run& run, uint32_t node);
  void save_older_contents(Run& run, uint32_t node, uint64_t failure);
  OlderContents copy_of(const Run& run, uint32_t buffer, uint64_t failure);
  void restore_older_contents(Run& run, uint32_t buffer, const FailurePtr& failure);
  void notify_skipped(const LoadedProgram& program, uint32_t node, const FailurePtr& failure) const;
  void skip(Run& run, uint32_t node, const FailurePtr& failure);
  void copy_older_value(Run& run, uint32_t node, const FailurePtr& failure);
  void pass_on(Run& run, uint32_t first, uint32_t last) const;
  void fail_all(Run& run, const FailurePtr& failure);

  Device* device_;
  const Runners* runners_;
  CachingAllocator* memory_;  // The device's.
  Profile* profile_ = nullptr;
  IdMap<Entry> buffers_;
  std::unordered_map<uint64_t, MemoryPtr> checkpoint_;
  std::unordered_map<uint32_t, std::shared_ptr<LoadedProgram>> programs_;
  InFlight in_flight_;
  std::function<void(bool much)> notify_threads_;  // From a runner that lends its threads; may be null.
  uint32_t background_runner_ = kNoRunner;  // Index into `runners_`: the runner whose nodes execute in the background.
  const bool waits_for_plans_;              // Runs wait for plans that are being built.
  std::vector<BackgroundOp> background_ops_;
  // By sequence; only for runs whose words the client waits for.
  std::unordered_map<uint64_t, FailurePtr> deferred_failures_;
  std::unordered_map<uint64_t, std::vector<OlderContents>> older_contents_;  // By buffer id; the oldest first.
  std::vector<FailurePtr> unreported_;                                       // At most kMaxUnreported.
  uint64_t unlisted_failures_ = 0;  // Failures that unreported_ had no space for.
  uint64_t failures_ = 0;
  FailurePtr check_;  // The first failed check that the client does not know.
  std::function<bool(uint64_t sequence)> cancelled_;
  // A program that could not be decoded does not say which buffers its runs create. Ids from this one on that do not
  // exist fail with this failure.
  FailurePtr undecoded_failure_;
  uint64_t undecoded_base_ = 0;
  // Scratch of run().
  std::vector<uint64_t> frees_;
  std::vector<uint64_t> nbytes_;
  const LoadedProgram* running_ = nullptr;
  std::thread::id thread_;  // The thread that runs programs.
  size_t counted_ = 0;      // Number of buffers that are charged.
  uint64_t run_count_ = 0;
  tr_error error_{};
};

}  // namespace torch_remote::worker
