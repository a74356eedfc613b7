#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/executor.h"
#include "worker/id_map.h"
#include "worker/memory.h"
#include "worker/profile.h"
#include "worker/program.h"

// What a worker keeps for one client: its buffers and programs. One thread.
//
// Errors of ops do not stop a session. A node that fails poisons what it makes and what it writes; nodes that touch
// poisoned buffers are skipped and poison theirs with the same failure, in this run and in later ones; all others run.
// Reading a poisoned buffer gives the failure that it goes back to.
namespace torch_remote::worker {

// Why a buffer has no contents.
struct Failure {
  Status status;
  uint32_t program = 0;   // 0: no run's
  uint32_t record = 0;    // of that program's trace
  uint64_t sequence = 0;  // of the message
  bool check = false;     // of a node that makes and writes nothing: no buffer is poisoned, nothing that is read tells
};
using FailurePtr = std::shared_ptr<const Failure>;

// Memory of a buffer. Shared between the session and the messages that lend it to the client.
class Memory {
 public:
  // Gives the tr_buffer back when it goes.
  explicit Memory(const tr_buffer& buffer) : data_(buffer.data), nbytes_(buffer.nbytes), buffer_(buffer) {}
  // Memory of somebody else; `keep` holds it. Counted in the allocator's statistics.
  Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  // Notes that this run has it as an input. False if it has it twice.
  bool bind(uint64_t run) { return std::exchange(bound_by_, run) != run; }

 private:
  void* data_;
  uint64_t nbytes_;
  tr_buffer buffer_{};
  std::shared_ptr<void> keep_;
  CachingAllocator* counted_ = nullptr;
  uint64_t bound_by_ = 0;
};
using MemoryPtr = std::shared_ptr<Memory>;

struct RunRequest {
  uint32_t program = 0;
  uint64_t base = 0;
  std::span<const uint8_t> params, bindings, frees;
  uint64_t sequence = 0;
};

struct ReadRequest {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::span<const int64_t> sizes, strides;
  int64_t offset = 0;
};

class Session {
 public:
  // All three outlive the session.
  Session(const tr_executor_api* api, tr_executor* executor, CachingAllocator* memory);
  ~Session();

  // A program that cannot be loaded is no error of the session: its runs fail.
  void load_program(uint32_t number, std::span<const uint8_t> bytes, bool tune = false);

  // Only a message that does not make sense is an error; the session is then useless. `words`: the results that the
  // client wants to know; `failure`: the first of this run, or null.
  Status run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure);

  // A new buffer with these bytes. 0 is no id.
  Status upload(uint64_t id, MemoryPtr memory);

  Status free(std::span<const uint8_t> ids);

  // Where a view's elements lie. `packed`: they are one row-major piece of memory already. The memory is not written to
  // while `keep` is held: a later op that writes the buffer does so to a copy.
  struct Located {
    const std::byte* data = nullptr;
    uint64_t nbytes = 0;  // of the elements, packed
    bool packed = false;
    std::shared_ptr<void> keep;
  };
  FailurePtr locate(const ReadRequest& request, uint64_t sequence, Located* located);
  void pack(const ReadRequest& request, const Located& located, void* destination) const;

  // The failure to tell the client of next, or null: the first check's that it does not know, or else the first of all.
  // It counts as told then.
  FailurePtr take_failure() { return std::exchange(unreported_, nullptr); }
  // Whether that is a check's.
  bool failed_check() const { return unreported_ && unreported_->check; }
  // The client was told of this one by a reply.
  void reported(const FailurePtr& failure) {
    if (unreported_ == failure) unreported_ = nullptr;
  }

  // From now on the executor is asked when its ops run; null: no longer.
  void set_profile(Profile* profile) { profile_ = profile; }
  // Null if there is no such program, or it could not be decoded.
  const LoadedProgram* find_program(uint32_t number) const;

  size_t buffers() const { return buffers_.size(); }

 private:
  struct Entry {
    MemoryPtr memory;
    FailurePtr failure;  // poisoned; `memory` may be there nevertheless
  };
  struct Run;

  FailurePtr note(Failure failure);
  void bind_inputs(Run& run);
  Status prepare(Run& run);
  void unshare_written(Run& run);
  bool allocate_arena(Run& run);
  bool execute(Run& run);
  bool call(Run& run, uint32_t first, uint32_t last);
  void execute_one_by_one(Run& run);
  Failure failure_of(const Run& run, uint32_t node) const;
  static void poison_node(Run& run, uint32_t node, const FailurePtr& failure);
  void fail_all(Run& run, const FailurePtr& failure);
  void finish(Run& run);
  FailurePtr no_such_buffer(uint64_t id, uint64_t sequence) const;
  void put(uint64_t id, Entry entry);

  const tr_executor_api* api_;
  tr_executor* executor_;
  CachingAllocator* memory_;
  Profile* profile_ = nullptr;
  IdMap<Entry> buffers_;
  std::unordered_map<uint32_t, std::unique_ptr<LoadedProgram>> programs_;
  FailurePtr unreported_;
  // A program that could not be decoded does not say which buffers its runs make: those from this id on that do not
  // exist.
  FailurePtr undecoded_failure_;
  uint64_t undecoded_base_ = 0;
  // Scratch of run().
  std::vector<uint64_t> frees_;
  std::vector<uint64_t> nbytes_;
  uint64_t run_count_ = 0;
  tr_error error_{};
};

}  // namespace torch_remote::worker
