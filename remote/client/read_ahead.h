#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "remote/client/program_cache.h"

// Small results that a script reads one after the other. What was read after a program's last runs is asked for behind
// the first read, so that the script waits once; and what is read again, and was not written since, is not asked for
// again. Only bytes are kept, never an error: a read that has to raise asks the worker.
namespace torch_remote::remote {

// Buffers up to this size are read whole: what else is read of them is there then.
inline constexpr uint64_t kMostReadAhead = 4096;

// The first bytes of a buffer as they were at one message.
struct Snapshot {
  enum class State : uint8_t {
    kAsked,      // ahead: nobody waits for it
    kWaitedFor,  // by one thread; others read in the plain way
    kThere,
    kFailed
  };
  State state = State::kAsked;
  bool ahead = false;
  uint64_t sequence = 0;         // of the Read message
  std::vector<std::byte> bytes;  // of the right size from the beginning; they do not change once they are there
};
using SnapshotPtr = std::shared_ptr<Snapshot>;

// Guarded by whoever orders the messages.
class ReadAhead {
 public:
  struct Guess {
    uint64_t buffer;
    uint64_t nbytes;
  };

  // This run is sent next. `made`: sizes of the buffers from `base` on that it makes; exchanged for another vector.
  // `copied`: of these, which are copies of which buffer, byte for byte.
  struct Copy {
    uint32_t index;
    uint64_t source;
  };
  void runs(const CachedProgram& program, std::span<const uint64_t> inputs, uint64_t base, std::vector<uint64_t>& made,
            std::span<const Copy> copies);
  // These ids are freed by the next message.
  void freed(std::span<const uint64_t> ids);

  // What is kept of a buffer, or null.
  SnapshotPtr find(uint64_t buffer);
  // The script reads the first `least` bytes of this buffer, which ends the round. What it is likely to read next.
  const std::vector<Guess>& waits_for(uint64_t buffer, uint64_t least);
  // Whether programs were sent since the last round ended.
  bool round_is_open() const { return number_ != ended_; }
  // The script reads what was asked for ahead.
  void used(uint64_t buffer);
  // How much of the buffer to read, of which the first `least` bytes are wanted: all of it, as far as is known.
  uint64_t size_of(uint64_t buffer, uint64_t least) const;
  void keep(uint64_t buffer, SnapshotPtr snapshot, uint64_t sequence);
  void drop(uint64_t buffer);

  // Messages whose replies nobody will want any more; the caller clears the list.
  std::vector<uint64_t>& unwanted() { return unwanted_; }

 private:
  struct Run {
    uint64_t number = 0;
    uint32_t program = 0;
    uint32_t round = 0;  // the program that ended its round; 0: the round goes on
    uint64_t base = 0;
    std::vector<uint64_t> made;
    std::vector<Copy> copies;
  };
  // One of a program's results.
  struct Entry {
    uint32_t program = 0;
    uint32_t index = 0;
    uint64_t nbytes = 0;
    uint32_t unused = 0;  // how often it was asked for since it was read
  };
  static constexpr size_t kRuns = 32;  // whose results are known
  static constexpr size_t kMostSnapshots = 256;
  static constexpr size_t kMostEntries = 8;
  static constexpr uint32_t kMostUnused = 3;

  const Run* find_run(uint64_t buffer) const;
  // What a buffer is a copy of, or itself.
  uint64_t origin(uint64_t buffer) const;
  Entry* find_entry(const Run& run, uint32_t index);

  std::vector<Run> runs_ = std::vector<Run>(kRuns);  // a ring, by number. Runs between two waits are a round
  uint64_t number_ = 0;                              // of the last run
  uint64_t ended_ = 0;                               // the last run of the last round that ended
  std::unordered_map<uint32_t, std::vector<Entry>> read_after_;  // by the program that ended the round
  std::unordered_map<uint64_t, SnapshotPtr> snapshots_;          // by buffer
  std::deque<uint64_t> order_;                                   // of their buffers; some are gone
  uint64_t filter_ = 0;                                          // bit id % 64: there may be one
  std::vector<Guess> guesses_;
  std::vector<uint64_t> unwanted_;
};

}  // namespace torch_remote::remote
