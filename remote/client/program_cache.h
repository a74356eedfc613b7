#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/trace.h"
#include "remote/client/types.h"
#include "remote/wire/delta.h"

// The programs that the worker has, found by the traces they were built from.
namespace torch_remote::remote {

// What a program's nodes do to whole buffers.
struct ProgramFacts {
  std::vector<bool> written;  // of its input buffers, in the order of the bindings: whether it writes them
  // Fresh buffers that are written once, by a copy of an input: `to` and `from` are views of the trace.
  struct Copy {
    uint32_t input;  // among the input buffers
    uint32_t made;   // among the fresh buffers that survive
    uint32_t from, to;
  };
  std::vector<Copy> copies;
};
ProgramFacts facts_of(const ir::Graph& graph);

// What a program of so many encoded bytes takes on a worker, with its nodes' forms for the runners and their kernels.
inline uint64_t bytes_on_worker(size_t encoded) { return 4096 + 16 * uint64_t{encoded}; }

// A program that the worker has, or is being built for it.
struct CachedProgram {
  uint32_t number = 0;  // from 1
  ir::Hash128 key;
  std::vector<uint32_t> code;       // of the trace
  std::vector<uint64_t> survivors;  // bit i: buffer i outlives the trace
  std::vector<ir::Opcode> ops;      // of each record
  ProgramOptions options;

  bool of_graph = false;  // whoever runs it has it, and nobody finds it

  // For those of traces: grows with each use. Guarded by whoever orders the messages.
  uint64_t used = 0;
  // What it takes on the worker, about: set by the builder.
  std::atomic<uint64_t> takes = 0;

  // What the worker's end of the delta coding holds, too. Guarded by whoever orders the messages.
  LastRun last;
  uint64_t checkpoint = 0;  // what `last` is since; likewise

  // The worker will never have it, because of `failure`; set by the builder, last.
  std::atomic<bool> failed = false;
  Status failure;
  bool ran = false;  // guarded like `last`

  // Set by the builder before `facts_known`.
  ProgramFacts facts;
  std::atomic<bool> facts_known = false;

  // Of the runs from this sequence on. Guarded by the cache.
  std::vector<ir::SourceRef> sources;
  uint64_t sources_since = 0;
};

// Finding and adding is for one thread at a time; `describe` may run beside them.
class ProgramCache {
 public:
  // The program built from such a trace, or null. The hash is confirmed by comparing everything it was made of.
  ProgramPtr find(const ir::Hash128& key, const ir::Trace& trace, std::span<const uint64_t> survivors) const;
  // A new one with the next number. `trace` is copied.
  ProgramPtr add(const ir::Hash128& key, const ir::Trace& trace, std::span<const uint64_t> survivors);
  // A new one of a graph: never found, only described.
  ProgramPtr add(const ir::Graph& graph, std::vector<ir::SourceRef> sources, const ProgramOptions& options);
  // Forgets one that could not be built, so that the next such trace is built again.
  void remove(const ProgramPtr& program);
  // Forgets those of graphs that nobody has any more, and, if the rest take more than `most` bytes on the worker, those
  // of traces that were not used for longest: an eighth more than needed, so that this is seldom. Their numbers are
  // added to *dropped: the worker is to forget them, too. What they were is still described for a while.
  void trim(uint64_t most, std::vector<uint32_t>* dropped);
  size_t size() const;

  // FlushInfo::first_difference of a trace that is not there.
  size_t first_difference(const ir::Trace& trace) const;

  // The program's run of this sequence was recorded from these places. Takes them if they are not the last run's.
  void set_sources(CachedProgram& program, uint64_t sequence, std::vector<ir::SourceRef>& sources);
  // Where a record of a program's run comes from, if that is still known, and its op's name; false if there is no such
  // record.
  bool describe(uint32_t program, uint32_t record, uint64_t sequence, ir::SourceRef* source, std::string* op) const;

 private:
  void number(const ProgramPtr& program);
  void drop(const ProgramPtr& program);
  const CachedProgram* numbered(uint32_t number) const;

  std::unordered_multimap<uint64_t, ProgramPtr> by_key_;  // by the key's lower half
  mutable std::mutex mutex_;                              // for what follows and CachedProgram::sources
  uint32_t last_number_ = 0;
  std::unordered_map<uint32_t, ProgramPtr> by_number_;
  std::deque<ProgramPtr> dropped_;  // lately; without what finds them
  // Of earlier runs: a failure may be told long after.
  struct Earlier {
    uint32_t program;
    uint64_t since, until;  // sequences
    std::vector<ir::SourceRef> sources;
  };
  std::deque<Earlier> earlier_;
};

}  // namespace torch_remote::remote
