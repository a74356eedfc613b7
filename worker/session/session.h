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

// What a worker keeps for one client: its buffers and programs. One thread.
//
// Errors of ops do not stop a session. A node that fails poisons what it makes; what it would have written in place
// keeps its bytes, and is *behind*: it lacks that update. A node that reads a poisoned buffer, or one that is behind by
// a failure that the client does not know yet, is skipped as if it had failed likewise. All other nodes run, in this
// run and in later ones. A node that overwrites all of a buffer makes it good again.
//
// Reading a poisoned buffer gives the failure that it goes back to. Reading one that is behind gives the failure if the
// client does not know it yet, and the bytes from then on. So does reading what was written after a failed check (a
// node that makes and writes nothing); its bytes lack nothing. Where two failures meet, the earlier one counts.
//
// From a failure until the client knows it, what is written in place is *kept*: the first node to do so leaves a copy
// of the bytes before. Where a later update of the same buffer is skipped for that failure, the copy comes back. So a
// momentum that decayed for a gradient which is not there is what it was. What the client has read since stays what it
// read; and what was written stays where there was not plenty of memory for a copy.
//
// What is read does not depend on where programs begin and end.
namespace torch_remote::worker {

// Memory of a buffer. Shared between the session and the messages that lend it to the client.
class Memory {
 public:
  // Gives the tr_buffer back when it goes.
  explicit Memory(const tr_buffer& buffer) : data_(buffer.data), nbytes_(buffer.nbytes), buffer_(buffer) {}
  // Of a poisoned buffer: none, only how much it would be.
  explicit Memory(uint64_t nbytes) : data_(nullptr), nbytes_(nbytes) {}
  // Memory of somebody else; `keep` holds it. Counted in the allocator's statistics.
  Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  // Notes that this run has it as an input. False if it has it twice.
  bool bind(uint64_t run) { return std::exchange(bound_by_, run) != run; }
  // An op in the background writes it.
  bool is_being_written() const { return writers_ != 0; }
  void begin_writing() { ++writers_; }
  void end_writing() { --writers_; }
  // What a runner keeps of the contents, as long as they stay.
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
  bool answered = false;  // the client waits for the words of its last node
  bool afresh = false;    // params and bindings are those of a first run
  ir::MathModes math = 0;
};

struct ReadRequest {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::span<const int64_t> sizes, strides;
  int64_t offset = 0;
  bool ahead = false;  // the client may not want it
};

class Session {
 public:
  // Both outlive the session.
  Session(Device* device, const Runners* runners);
  ~Session();

  // A program that cannot be loaded is no error of the session: its runs fail.
  void load_program(uint32_t number, std::span<const std::byte> bytes, bool tune = false);
  // It is not run any more. Nothing, if there is no such program.
  void unload_program(uint32_t number);

  // Only a message that does not make sense is an error; the session is then useless. `words`: the results of the last
  // node that the client wants to know; `failure`: why it must not have them, or null.
  Status run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure);

  // Asked now and then in the middle of a long run: true to drop the rest of it.
  void set_cancelled(std::function<bool(uint64_t sequence)> cancelled) { cancelled_ = std::move(cancelled); }
  // A run that is dropped as a whole.
  Status run_cancelled(const RunRequest& request, FailurePtr* failure);

  // A new buffer with these bytes, of which `keep` is the owner: where they lie if the device adopts them, else a copy,
  // for the client may go on writing to what it sent. 0 is no id.
  Status upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep);
  // A new buffer without them, as there is no memory.
  Status upload_failed(uint64_t id, uint64_t nbytes);

  // A new buffer whose bytes `fill` writes, a piece at a time: those from `offset` on. If it fails, that is the
  // buffer's failure; so is `refused`, of one that is not to be filled.
  using Fill = std::function<Status(uint64_t offset, std::span<std::byte> piece)>;
  Status make_buffer(uint64_t id, uint64_t nbytes, uint64_t sequence, const Status& refused, const Fill& fill);

  Status free(std::span<const uint8_t> ids);
  // Those of these numbers that are there.
  void free_range(uint64_t first, uint64_t count);

  // Where a view's elements lie. `packed`: they are one row-major piece of memory already. The memory is not written to
  // while `keep` is held: a later op that writes the buffer does so to a copy.
  struct Located {
    const std::byte* data = nullptr;  // in the device's memory
    uint64_t nbytes = 0;              // of the elements, packed
    bool packed = false;
    std::shared_ptr<void> keep;
  };
  FailurePtr locate(const ReadRequest& request, uint64_t sequence, Located* located);
  // Queues packing the elements into `destination`, which `keep` holds. Once the device's next ticket is done and
  // settle() was called, they are there, or the result says why not. Null: they are there.
  std::shared_ptr<QueuedRead> copy_out(const ReadRequest& request, const Located& located,
                                       std::span<std::byte> destination, std::shared_ptr<void> keep);

  // Keeps what all buffers hold now until drop_checkpoint, and says which these are: who writes to one later writes to
  // a copy. Those that have no contents are left out. There is no failure that the client does not know.
  void keep_checkpoint(std::vector<uint64_t>* buffers, std::vector<uint64_t>* sizes);
  void drop_checkpoint() { checkpoint_.clear(); }
  // All of such a buffer, as it was then.
  FailurePtr locate_kept(uint64_t buffer, uint64_t sequence, Located* located) const;

  // Looks what the device, and what goes on in the background, has done meanwhile, and takes note of what failed there.
  void settle();
  // Whether an op goes on in the background. What it writes is waited for where it is used.
  bool is_at_work() const { return !begun_.empty(); }
  // Returns when none does.
  void wait_for_background();
  // Why the words of the run with this sequence are not what they should be, if that was found late; else null. To be
  // asked once, when its ticket is done.
  FailurePtr take_late_failure(uint64_t sequence);

  // Whether there are failures that the client does not know yet.
  bool has_untold() const { return !untold_.empty() || forgotten_ != 0; }
  // A failure to announce before it is told, once; or null.
  FailurePtr announce();
  // The client knows it from now on.
  void tell(const FailurePtr& failure);
  // The failures that the client does not know yet, in order; the caller tells them. There were `more` than are listed.
  std::vector<FailurePtr> take_failures(uint64_t* more);

  // From now on the runners are asked when their ops run; null: no longer.
  void set_profile(Profile* profile) { profile_ = profile; }
  // Not ok: what the session keeps beside the contents of buffers (their entries, programs, failures) is more than its
  // limit, which only a client that wants that comes to. The session is to end.
  Status within_limit();

  // Null if there is no such program, or it could not be decoded.
  const LoadedProgram* find_program(uint32_t number) const;

  size_t buffers() const { return buffers_.size(); }

 private:
  struct Entry {
    MemoryPtr memory;    // without data: poisoned
    FailurePtr failure;  // why, or which update the contents lack
    FailurePtr check;    // a failed one that they come after
    bool poisoned() const { return memory->data() == nullptr; }
  };
  // What a buffer was.
  struct Kept {
    uint64_t failure;   // number of the last one before the copy was made
    MemoryPtr memory;   // null: there is no copy
    FailurePtr behind;  // which update it lacks
  };
  // An op that goes on in the background.
  struct Begun {
    std::shared_ptr<BackgroundWork> work;
    std::shared_ptr<LoadedProgram> program;
    std::vector<int64_t> values;  // of its symbols
    uint32_t node = 0;
    uint64_t sequence = 0;
    struct Use {
      uint64_t id = 0;
      MemoryPtr memory;
      bool writes = false;
      bool makes = false;  // the buffer is new: without the op it has no contents
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
  void take_apart(Run& run, const Stage& stage);
  bool call_in_pieces(Run& run, uint32_t first, uint32_t last);
  bool look(Run& run);
  bool call(Run& run, uint32_t first, uint32_t last, bool alone = false);
  bool call_alone(Run& run, uint32_t node, uint64_t* times);
  bool call_runner(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times);
  tr_run describe(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) const;
  uint64_t* times_of(Run& run, uint32_t first, uint32_t last);
  void note_in_flight(Run& run);

  // What goes on in the background (session_background.cpp).
  void await_inputs(const LoadedProgram& program);
  bool await_operands(Run& run, uint32_t first, uint32_t last);
  void await_writers(const MemoryPtr& memory);
  uint64_t give_operands(Run& run, uint32_t node);
  bool begin(Run& run, uint32_t node, uint64_t* times);
  bool find_uses(Run& run, uint32_t node, std::vector<Begun::Use>* uses);
  void wait(Begun& begun);
  FailurePtr take_end(Begun& begun);
  void settle_begun();
  void execute_one_by_one(Run& run);
  void finish(Run& run);

  // Failures, and what they leave (session_failures.cpp).
  FailurePtr make_failure(Failure failure) const;
  FailurePtr note(Failure failure);
  FailurePtr cancellation(uint64_t sequence);
  FailurePtr no_such_buffer(uint64_t id, uint64_t sequence) const;
  FailurePtr pending_check();
  uint64_t last_untold() const;
  static void doubt_made_with(Run& run, uint32_t index, const FailurePtr& failure);
  FailurePtr blocked(const Run& run, uint32_t node) const;
  bool covers(const Run& run, uint32_t node, uint32_t buffer) const;
  bool give_memory(Run& run, uint32_t buffer);
  void call_and_repair(Run& run, uint32_t node);
  void keep(Run& run, uint32_t node, uint64_t failure);
  Kept copy_of(const Run& run, uint32_t buffer, uint64_t failure);
  void put_back(Run& run, uint32_t buffer, const FailurePtr& failure);
  void leave_out(const LoadedProgram& program, uint32_t node, const FailurePtr& failure) const;
  void skip(Run& run, uint32_t node, const FailurePtr& failure);
  void keep_older_value(Run& run, uint32_t node, const FailurePtr& failure);
  void pass_on(Run& run, uint32_t first, uint32_t last) const;
  void fail_all(Run& run, const FailurePtr& failure);

  Device* device_;
  const Runners* runners_;
  CachingAllocator* memory_;  // the device's
  Profile* profile_ = nullptr;
  IdMap<Entry> buffers_;
  std::unordered_map<uint64_t, MemoryPtr> checkpoint_;
  std::unordered_map<uint32_t, std::shared_ptr<LoadedProgram>> programs_;
  InFlight in_flight_;
  std::function<void(bool much)> begins_;  // of a runner that lends its threads; may be null
  uint32_t background_runner_ = kNobody;   // of `runners_`: whose nodes are begun
  const bool waits_;                       // for plans that are being built
  std::vector<Begun> begun_;
  std::unordered_map<uint64_t, FailurePtr> late_failures_;  // by sequence; of runs that somebody waits for
  std::unordered_map<uint64_t, std::vector<Kept>> kept_;    // by buffer; the oldest first
  std::vector<FailurePtr> untold_;                          // at most kMaxUntold
  uint64_t forgotten_ = 0;                                  // more than these
  uint64_t failures_ = 0;
  FailurePtr check_;  // the first failed check that the client does not know
  std::function<bool(uint64_t sequence)> cancelled_;
  // A program that could not be decoded does not say which buffers its runs make: those from this id on that do not
  // exist.
  FailurePtr undecoded_failure_;
  uint64_t undecoded_base_ = 0;
  // Scratch of run().
  std::vector<uint64_t> frees_;
  std::vector<uint64_t> nbytes_;
  const LoadedProgram* running_ = nullptr;
  std::thread::id thread_;  // that runs programs
  size_t counted_ = 0;      // buffers that are charged
  uint64_t run_count_ = 0;
  tr_error error_{};
};

}  // namespace torch_remote::worker
