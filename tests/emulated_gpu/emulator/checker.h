#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulated_gpu/emulator/launch.h"
#include "tests/emulated_gpu/emulator/memory.h"

namespace torch_remote::codegen::emulator {

enum class AccessKind : uint32_t { kLoad, kStore, kAtomic, kAtomicLoad, kAtomicStore };

// An error of an access: the byte, and a text. The byte's description and the instruction complete the message.
struct AccessError {
  const char* byte = nullptr;
  std::string text;
  explicit operator bool() const { return byte != nullptr; }
};

// Checked mode: verifies that each access is in bounds, reads only written bytes, and is ordered with all conflicting
// accesses to the same bytes. The result does not depend on the order in which the threads happened to run.
//
// The accesses of a thread between two synchronizations are a *segment*. Segments are ordered within a thread, by
// barriers within a block, and by bar.warp.sync within a warp. Each thread has a vector clock of its warp's lanes.
// Fences and atomic operations order segments, too. Accesses before fence A precede accesses after fence B under one
// condition: an atomic operation after A writes a value that an atomic operation before B reads. A barrier may lie
// between a fence and its atomic operation, so different threads may execute them. Neither atomic operations alone nor
// shuffles order accesses.
//
// For each byte, the checker stores the last write and the accesses since. These are one segment, several of a warp,
// several warps of a block, or several blocks. It stores several only while they are unordered among themselves.
class Checker {
 public:
  explicit Checker(DeviceMemory& memory) : memory_(memory) {}

  void begin_launch(const Launch& launch);
  void begin_block(uint64_t block, uint32_t threads);

  void barrier();                                  // by all live threads of the block
  void warp_sync(uint32_t first, uint32_t there);  // by lanes `there` of the warp whose first thread is `first`
  void fence(uint32_t thread, bool device_wide);
  AccessError access(uint32_t thread, const char* address, uint64_t bytes, AccessKind kind);

 private:
  struct Segment {
    uint64_t block;
    uint32_t thread, barriers, epoch;
  };
  // For one block: the segments before a barrier, and for each thread the segments before an epoch.
  struct BlockOrder {
    uint32_t barriers = 0;
    std::vector<uint32_t> epochs;
  };
  // The key is the block, and whether the knowledge holds for the whole device or only for the block.
  using KnownOrder = std::map<std::pair<uint64_t, bool>, std::shared_ptr<const BlockOrder>>;
  using KnownOrderPtr = std::shared_ptr<const KnownOrder>;
  struct Fences {
    KnownOrderPtr read;      // read by atomic operations; the next fence acquires it
    KnownOrderPtr acquired;  // ordered before what comes now
    KnownOrderPtr released;  // released by fences; atomic operations publish it
  };
  struct Clock {
    uint32_t segment = 0, barriers = 0, epoch = 0;
    bool used = false;                  // the segment has accesses
    std::array<uint32_t, kWarp> lanes;  // segments with this epoch or a later one are not known to be earlier
    Fences fences;
  };
  // A 32-bit encoding of segments, as Cell stores it: a number, how many segments they are, and whether they were
  // atomic.
  enum class Group : uint32_t { kOne, kWarp, kBlock, kGrid };

  static constexpr uint32_t kNumberBits = 29;
  static constexpr uint32_t kNumber = (1u << kNumberBits) - 1;
  static constexpr uint32_t kAtomicFlag = 1u << 31;
  static constexpr uint32_t kFirst = kHost + 1;

  static Group group(uint32_t encoded) { return static_cast<Group>(encoded >> kNumberBits & 3); }
  static uint32_t encode(Group group, uint32_t number) { return static_cast<uint32_t>(group) << kNumberBits | number; }

  uint32_t segment_of(Clock& clock, uint32_t thread);
  void new_segment(Clock& clock);
  const Segment& segment(uint32_t number) const { return segments_[number - first_]; }
  bool is_before(const Segment& earlier, uint32_t thread) const;
  bool knows(const KnownOrder& known, const Segment& earlier) const;
  // Whether all of them are ordered before what `thread` does now. If not, *other is one that is not.
  bool is_before(uint32_t encoded, uint32_t thread, uint32_t* other) const;
  uint32_t add(uint32_t encoded, uint32_t thread);
  uint32_t add_to_set(uint32_t encoded, uint32_t thread);
  const char* check(Cell& cell, uint32_t thread, AccessKind kind, uint32_t* other);
  void publish(const char* address, Clock& clock, AccessKind kind);
  static KnownOrderPtr joined(const KnownOrderPtr& a, const KnownOrderPtr& b);
  static void join(Fences& fences, const Fences& others);

  DeviceMemory& memory_;
  Dim3 grid_, block_size_;
  uint64_t block_ = 0;
  std::vector<Clock> clocks_;
  uint32_t first_ = kFirst;  // number of the first segment, and of the first set, in this launch
  std::vector<Segment> segments_;
  std::vector<std::vector<uint32_t>> sets_;  // sets of segments of one warp
  std::map<std::vector<uint32_t>, uint32_t> set_numbers_;
  std::unordered_map<const char*, KnownOrderPtr> published_;  // by address, what atomic operations published there
};

}  // namespace torch_remote::codegen::emulator
