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

// What a worker did and when, while a client records a profile. One thread. Memory is bounded: events that are too many
// are counted and dropped. Now and then it is handed over to the client, which has it then if this process dies.
// Nothing is described while it is recorded: the sizes that a run's ops had are kept as numbers, and become text when
// the client asks.
namespace torch_remote::worker {

class Profile {
 public:
  // Keeps at most `limit` events, and no more than kMaxEvents.
  explicit Profile(uint64_t limit);
  static constexpr uint64_t kMaxEvents = uint64_t{1} << 22;

  void message(wire::Type type, uint64_t sequence, uint64_t begin, uint64_t end);

  // Where a runner puts the times of `nodes` nodes (tr_run::times), all 0.
  uint64_t* times(size_t nodes);
  // The number of a program with these values of its symbols, and with the runners that execute its nodes now.
  uint32_t variant(const LoadedProgram& program, const std::vector<int64_t>& values);
  // The nodes [first, last) of such a program have run, as far as `times` says.
  void ops(const LoadedProgram& program, uint32_t variant, uint64_t sequence, uint32_t first, uint32_t last);

  // Another program takes this number: the ops of the one that had it lose their names.
  void forget(uint32_t program);

  // What was not handed over yet.
  std::span<const wire::ProfileEvent> events() const { return events_; }
  uint64_t dropped() const { return dropped_; }

  // In how many ns events() should be handed over, at the time `now`: 0 when there are many of them or the first is
  // old. Events of handing over alone need not be.
  uint64_t due_in(uint64_t now) const;
  static constexpr uint64_t kNever = UINT64_MAX;
  // They were, and so were the programs.
  void handed_over();
  // They cannot be: counts them as dropped.
  void give_up();

  // ProfileReply::programs, those that were not handed over yet. `find` gives a program by its number, or null if there
  // is none. `runners`: those of the programs.
  using Find = std::function<const LoadedProgram*(uint32_t number)>;
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>> encode_programs(
      flatbuffers::FlatBufferBuilder& builder, const Find& find, const Runners& runners) const;

 private:
  // A program with one set of sizes, and one choice of runners.
  struct Variant {
    uint32_t program = 0;           // 0: forgotten
    std::vector<int64_t> sizes;     // of Known::symbols
    uint64_t choice = 0;            // LoadedProgram's
    std::vector<uint32_t> runners;  // of each node alone, then of each group; kNobody, kUnasked: none
  };
  struct Known {
    std::vector<ir::Sym> symbols;  // that are sizes of its views, each once
    uint32_t variant = 0;          // of its last run
  };

  void add(const wire::ProfileEvent& event);
  // Whether the group was one kernel: all its time is its first node's (tr_run::times); `first` is that of times_.
  bool ran_as_one(const ir::Group& group, uint32_t first) const;

  const size_t limit_;
  std::vector<wire::ProfileEvent> events_;
  uint64_t count_ = 0;  // of all events, also those that were handed over
  uint64_t since_ = 0;  // when the first of events_ ended; 0: none that counts
  uint64_t dropped_ = 0;
  std::vector<uint64_t> times_;
  std::vector<Variant> variants_;
  size_t first_variant_ = 0;                   // that was not handed over
  std::unordered_map<uint32_t, Known> known_;  // by number
  std::vector<int64_t> sizes_;                 // scratch
};

}  // namespace torch_remote::worker
