#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "remote/wire/wire.h"
#include "remote/wire/wire_generated.h"
#include "worker/device/monotonic_clock.h"
#include "worker/session/loaded_program.h"

// Records what a worker does and when, while a client records a profile. For one thread. Events beyond a limit are
// counted and dropped. There are at most as many variants (see `variant`); they stay until the profile ends. Events are
// handed over to the client now and then, so that it has them if this process dies. Recording formats nothing: the
// sizes of a run's ops are stored as numbers, and become text when the events are handed over.
namespace torch_remote::worker {

class Profile {
 public:
  // Records at most `limit` events in all, and no more than kMaxEvents. Events that were handed over count, too.
  explicit Profile(uint64_t limit);
  static constexpr uint64_t kMaxEvents = uint64_t{1} << 22;

  // Adds the handling of a message. Times are in ns of CLOCK_MONOTONIC.
  void message(wire::Type type, uint64_t sequence, uint64_t begin, uint64_t end);

  // Returns where a runner writes the times of `nodes` nodes (tr_run::times): nodes + 1 numbers, all of them 0. They
  // are valid until the next call.
  uint64_t* times(size_t nodes);
  // Returns the number of a variant: a program with these sizes, and with the current runners of its nodes. Makes a
  // variant if there is none. kNoVariant: there are too many events or variants.
  uint32_t variant(const LoadedProgram& program, const std::vector<int64_t>& values);
  static constexpr uint32_t kNoVariant = UINT32_MAX;
  // Adds the nodes [first, last) of the variant that ran, according to the times from the last call of times(). Counts
  // them as dropped if the variant is kNoVariant.
  void ops(const LoadedProgram& program, uint32_t variant, uint64_t sequence, uint32_t first, uint32_t last);

  // The program with this number was unloaded or replaced: those of its ops that were not handed over lose their names.
  void forget(uint32_t program);

  // Events that were not handed over yet. Valid until one of the other functions that are not const is called.
  std::span<const wire::ProfileEvent> events() const { return events_; }
  // Number of events that were dropped since the profile began.
  uint64_t dropped() const { return dropped_; }

  // Nanoseconds from `now` until events() should be handed over. It is 0 from 2^14 events on, or if the first one is
  // 100 ms old, and kNever if there are none. Events that record a hand-over do not make another one due.
  uint64_t next_hand_over_in(uint64_t now) const;
  static constexpr uint64_t kNever = UINT64_MAX;
  // Call it after events() and encode_programs() were copied to a message for the client: forgets the events, and marks
  // the variants as handed over.
  void handed_over();
  // The events cannot be handed over: counts them as dropped.
  void drop_events();

  // Encodes ProfileReply::programs: the variants that were not handed over yet. `find` returns the program with a
  // number, or null if there is none. `runners` are those that executed the programs.
  using Find = std::function<const LoadedProgram*(uint32_t number)>;
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>> encode_programs(
      flatbuffers::FlatBufferBuilder& builder, const Find& find, const Runners& runners) const;

 private:
  // A program with one set of sizes and one choice of runners.
  struct Variant {
    uint32_t program = 0;        // 0: forget() was called.
    std::vector<int64_t> sizes;  // Values of Known::symbols.
    uint64_t choice = 0;         // LoadedProgram::choice in the variant's last run.
    std::vector<uint32_t>
        runners;  // The runner of each node alone, then of each group; kNoRunner, kUnknownRunner: none.
  };
  // What makes a variant of a program different from the others. Runners decline nodes for other reasons after their
  // generations have changed.
  struct Key {
    std::vector<int64_t> sizes;      // As Variant::sizes.
    std::vector<uint32_t> runners;   // As Variant::runners.
    std::vector<uint64_t> accepted;  // LoadedProgram::accepted.
    auto operator<=>(const Key&) const = default;
  };
  struct Known {
    std::vector<ir::Sym> symbols;  // Symbols that are sizes of the program's views, each once.
    std::map<Key, uint32_t> variants;
    uint32_t last = kNoVariant;  // The variant of the last run that had one.
  };

  void add(const wire::ProfileEvent& event);

  const size_t limit_;
  std::vector<wire::ProfileEvent> events_;
  uint64_t count_ = 0;  // Number of all events, including those that were handed over.
  uint64_t since_ = 0;  // When the first entry of events_ that counts ended; 0: none counts.
  uint64_t dropped_ = 0;
  std::vector<uint64_t> times_;
  std::vector<Variant> variants_;
  size_t first_variant_ = 0;                   // Index of the first variant that was not handed over.
  std::unordered_map<uint32_t, Known> known_;  // By program number.
  std::vector<int64_t> sizes_;                 // Scratch.
};

}  // namespace torch_remote::worker
