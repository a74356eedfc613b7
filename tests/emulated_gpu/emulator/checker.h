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

// What is wrong with an access: the byte, and a text that its description and the instruction complete.
struct AccessError {
  const char* byte = nullptr;
  std::string text;
  explicit operator bool() const { return byte != nullptr; }
};

// Checked mode: whether each access is in bounds, to what was written, and ordered with all others to the same bytes
// that it must be ordered with, in whatever order the threads happened to run.
//
// What a thread does between two synchronisations is a *segment*. Segments are ordered within a thread, by barriers
// within a block, by bar.warp.sync within a warp (each thread has a clock of its warp's lanes), and by fences and
// atomic operations: what comes before a fence is ordered before what follows another fence, if an atomic operation
// behind that one read what an atomic operation behind the first one wrote. Fences and atomic operations may be those
// of different threads between which there is a barrier. Atomic operations alone order nothing; shuffles neither.
//
// Of each byte the last write is known, and the accesses since: one segment, some of a warp, several warps of a block,
// or several blocks. Several only as long as they are unordered among themselves.
class Checker {
 public:
  explicit Checker(DeviceMemory& memory) : memory_(memory) {}

  void begin_launch(const Launch& launch);
  void begin_block(uint64_t block, uint32_t threads);

  void barrier();                                  // all threads of the block that are alive
  void warp_sync(uint32_t first, uint32_t there);  // lanes `there` of the warp that begins with thread `first`
  void fence(uint32_t thread, bool device_wide);
  AccessError access(uint32_t thread, const char* address, uint64_t bytes, AccessKind kind);

 private:
  struct Segment {
    uint64_t block;
    uint32_t thread, barriers, epoch;
  };
  // Of one block: segments before a barrier, and of each thread those before an epoch.
  struct Knowledge {
    uint32_t barriers = 0;
    std::vector<uint32_t> epochs;
  };
  // By block, and whether the whole device may rely on it or the block alone.
  using Known = std::map<std::pair<uint64_t, bool>, std::shared_ptr<const Knowledge>>;
  using KnownPtr = std::shared_ptr<const Known>;
  struct Fences {
    KnownPtr read;      // by atomic operations: a fence makes it acquired
    KnownPtr acquired;  // is ordered before what comes now
    KnownPtr released;  // by fences: atomic operations publish it
  };
  struct Clock {
    uint32_t segment = 0, barriers = 0, epoch = 0;
    bool used = false;                  // the segment has accesses
    std::array<uint32_t, kWarp> lanes;  // segments of this epoch and later ones are not known to be before
    Fences fences;
  };
  // Segments told by 32 bits, as Cell has them: a number, how many they are, and whether they were atomic.
  enum class Group : uint32_t { kOne, kWarp, kBlock, kGrid };

  static constexpr uint32_t kNumberBits = 29;
  static constexpr uint32_t kNumber = (1u << kNumberBits) - 1;
  static constexpr uint32_t kAtomicFlag = 1u << 31;
  static constexpr uint32_t kFirst = kHost + 1;

  static Group group(uint32_t told) { return static_cast<Group>(told >> kNumberBits & 3); }
  static uint32_t tell(Group group, uint32_t number) { return static_cast<uint32_t>(group) << kNumberBits | number; }

  uint32_t segment_of(Clock& clock, uint32_t thread);
  void new_segment(Clock& clock);
  const Segment& segment(uint32_t number) const { return segments_[number - first_]; }
  bool is_before(const Segment& earlier, uint32_t thread) const;
  bool knows(const Known& known, const Segment& earlier) const;
  // Whether all of them are ordered before what `thread` does now; if not, *other is one that is not.
  bool is_before(uint32_t told, uint32_t thread, uint32_t* other) const;
  uint32_t add(uint32_t told, uint32_t thread);
  uint32_t add_to_set(uint32_t told, uint32_t thread);
  const char* check(Cell& cell, uint32_t thread, AccessKind kind, uint32_t* other);
  void publish(const char* address, Clock& clock, AccessKind kind);
  static KnownPtr joined(const KnownPtr& a, const KnownPtr& b);
  static void join(Fences& fences, const Fences& others);

  DeviceMemory& memory_;
  Dim3 grid_, block_size_;
  uint64_t block_ = 0;
  std::vector<Clock> clocks_;
  uint32_t first_ = kFirst;  // number of the first segment, and of the first set, of this launch
  std::vector<Segment> segments_;
  std::vector<std::vector<uint32_t>> sets_;  // of segments of one warp
  std::map<std::vector<uint32_t>, uint32_t> set_numbers_;
  std::unordered_map<const char*, KnownPtr> published_;  // by atomic operations, of each place
};

}  // namespace torch_remote::codegen::emulator
