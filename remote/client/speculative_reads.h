#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "remote/client/program_cache.h"

// Speculative reads of small results, for scripts that read several results one after the other. A *round* is the runs
// between two waits of the script. The read that ends a round also requests other results: those that the script read
// after earlier rounds with the same last program. The script then waits only once. A result that was read and not
// written since is not requested again. Only bytes are cached, never an error: a read that must raise an error is sent
// to the worker.
namespace torch_remote::remote {

// Buffers up to this size are read whole, so that later reads of other parts are already cached.
inline constexpr uint64_t kMaxSpeculativeRead = 4096;

// The first bytes of a buffer as of one message.
struct Snapshot {
  enum class State : uint8_t {
    kRequested,  // a speculative read was sent; no thread waits for it
    kWaitedFor,  // one thread waits for it; others send reads of their own
    kReady,
    kFailed
  };
  State state = State::kRequested;
  bool speculative = false;      // a speculative read
  uint64_t sequence = 0;         // of the Read message
  std::vector<std::byte> bytes;  // has its final size from the start; constant once state is kReady
};
using SnapshotPtr = std::shared_ptr<Snapshot>;

// Guarded by Channel::order.
class SpeculativeReads {
 public:
  struct Guess {
    uint64_t buffer;
    uint64_t nbytes;
  };

  // Says that this run is sent next. `made` has the sizes in bytes of the buffers that it creates from
  // `first_result_id` on; the vector is exchanged for an unused one. `copies` lists those of them that are
  // byte-for-byte copies of another buffer.
  struct Copy {
    uint32_t index;
    uint64_t source;
  };
  void on_run(const CachedProgram& program, std::span<const uint64_t> inputs, uint64_t first_result_id,
              std::vector<uint64_t>& made, std::span<const Copy> copies);
  // Says that the next message frees these ids.
  void on_free(std::span<const uint64_t> ids);

  // Returns the cached snapshot of a buffer, or null.
  SnapshotPtr find(uint64_t buffer);
  // Says that the script reads the first `least` bytes of this buffer, which ends the round. Returns what it is likely
  // to read next.
  const std::vector<Guess>& end_round(uint64_t buffer, uint64_t least);
  // Whether programs were run since the last round ended.
  bool round_is_open() const { return number_ != ended_; }
  // Says that the script reads a buffer that was requested speculatively.
  void on_use(uint64_t buffer);
  // How many bytes of the buffer to read if the first `least` bytes are wanted: all of it, if its size is known.
  uint64_t size_of(uint64_t buffer, uint64_t least) const;
  void insert(uint64_t buffer, SnapshotPtr snapshot, uint64_t sequence);
  void drop(uint64_t buffer);

  // Sequences of messages whose replies nobody will want any more; the caller clears the list.
  std::vector<uint64_t>& abandoned_reads() { return abandoned_reads_; }

 private:
  struct Run {
    uint64_t number = 0;
    uint32_t program = 0;
    uint32_t round = 0;  // the program that ended the round of this run; 0: the round is still open
    uint64_t first_result_id = 0;
    std::vector<uint64_t> made;
    std::vector<Copy> copies;
  };
  // One of a program's results that the script reads.
  struct Entry {
    uint32_t program = 0;
    uint32_t index = 0;
    uint64_t nbytes = 0;
    uint32_t unused = 0;  // number of speculative reads of this result since the script last read it
  };
  static constexpr size_t kRuns = 32;  // number of runs whose results are known
  static constexpr size_t kMostSnapshots = 256;
  static constexpr size_t kMostEntries = 8;
  static constexpr uint32_t kMostUnused = 3;

  const Run* find_run(uint64_t buffer) const;
  // The buffer from which this one was copied, over several copies, or the buffer itself.
  uint64_t origin(uint64_t buffer) const;
  Entry* find_entry(const Run& run, uint32_t index);

  std::vector<Run> runs_ = std::vector<Run>(kRuns);  // a ring buffer, by number; the runs between two waits are a round
  uint64_t number_ = 0;                              // of the last run
  uint64_t ended_ = 0;                               // number of the last run of the last round that ended
  std::unordered_map<uint32_t, std::vector<Entry>> read_after_;  // by the program that ended the round
  std::unordered_map<uint64_t, SnapshotPtr> snapshots_;          // by buffer
  std::deque<uint64_t> order_;  // buffers in the order of their snapshots, some of which are gone
  uint64_t filter_ = 0;         // bit id % 64: a buffer with this id may have a snapshot
  std::vector<Guess> guesses_;
  std::vector<uint64_t> abandoned_reads_;
};

}  // namespace torch_remote::remote
