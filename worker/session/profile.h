#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "remote/wire/wire.h"
#include "remote/wire/wire_generated.h"
#include "worker/device/monotonic_clock.h"
#include "worker/session/loaded_program.h"

// Records what a worker does and when, while a client records a profile. For one thread. Memory is bounded: events
// beyond the limit are counted and dropped. Events are handed over to the client now and then, so that it has them if
// this process dies. Recording formats nothing: the sizes of a run's ops are stored as numbers, and become text when
// the client asks.
namespace torch_remote::worker {

class Profile {
 public:
  // Stores at most `limit` events, and no more than kMaxEvents.
  explicit Profile(uint64_t limit);
  static constexpr uint64_t kMaxEvents = uint64_t{1} << 22;

  void message(wire::Type type, uint64_t sequence, uint64_t begin, uint64_t end);

  // Returns where a runner writes the times of `nodes` nodes (tr_run::times), all of them 0.
  uint64_t* times(size_t nodes);
  // Returns the number of the variant: a program with these symbol values, and with the current runners of its nodes.
  uint32_t variant(const LoadedProgram& program, const std::vector<int64_t>& values);
  // Adds the nodes [first, last) of the variant, as far as `times` says that they ran.
  void ops(const LoadedProgram& program, uint32_t variant, uint64_t sequence, uint32_t first, uint32_t last);

  // Another program takes this number: ops of the previous one lose their names.
  void forget(uint32_t program);

  // Events that were not handed over yet.
  std::span<const wire::ProfileEvent> events() const { return events_; }
  uint64_t dropped() const { return dropped_; }

  // Nanoseconds after `now` when events() should be handed over. 0 if there are many events or the first one is old;
  // kNever if nothing is due. Events that record a hand-over do not make another one due.
  uint64_t next_hand_over_in(uint64_t now) const;
  static constexpr uint64_t kNever = UINT64_MAX;
  // Call it after events() and encode_programs() were sent to the client: forgets the events, and marks the variants as
  // sent.
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
    uint64_t choice = 0;         // LoadedProgram::choice.
    std::vector<uint32_t>
        runners;  // The runner of each node alone, then of each group; kNoRunner, kUnknownRunner: none.
  };
  struct Known {
    std::vector<ir::Sym> symbols;  // Symbols that are sizes of the program's views, each once.
    uint32_t variant = 0;          // The variant of the last run.
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
