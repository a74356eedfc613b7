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

// The programs that the worker has, found by the traces from which they were built.
namespace torch_remote::remote {

// Describes what a program's nodes do to whole buffers.
struct ProgramFacts {
  std::vector<bool> written;  // for each input buffer, in the order of the bindings: whether the program writes it
  // Fresh buffers that the program writes once, by copying an input. `to` and `from` are views of the trace.
  struct Copy {
    uint32_t input;  // index among the input buffers
    uint32_t made;   // index among the fresh buffers that survive
    uint32_t from, to;
  };
  std::vector<Copy> copies;
};
ProgramFacts analyze_buffers(const ir::Graph& graph);

// Estimated memory on a worker of a program with this many encoded bytes, including the runners' plans and the kernels.
inline uint64_t bytes_on_worker(size_t encoded) { return 4096 + 16 * uint64_t{encoded}; }

// A program that the worker has, or that is being built for it.
struct CachedProgram {
  uint32_t number = 0;  // from 1
  ir::Hash128 key;
  std::vector<uint32_t> code;       // the code of the trace
  std::vector<uint64_t> survivors;  // bit i: buffer i survives the trace
  std::vector<ir::Opcode> ops;      // opcode of each record
  ProgramOptions options;

  bool of_graph = false;  // made by add(graph) for Client::load(): its callers own it, and find() never returns it

  // For programs of traces: time of the last use, as a counter. Guarded by Channel::order.
  uint64_t last_use = 0;
  // Estimated memory on the worker, in bytes; set by the builder.
  std::atomic<uint64_t> worker_bytes = 0;

  // The last run, from which the next one is delta encoded; the worker stores it as well. Guarded by
  // Channel::order.
  LastRun last;
  // Number of the last checkpoint before the last run. After a later checkpoint the next run sends all parameters,
  // because a replay does not know `last`. Guarded in the same way.
  uint64_t checkpoint = 0;

  // The build failed, so the worker will never have this program; `failure` says why. The builder sets this last.
  std::atomic<bool> failed = false;
  Status failure;
  bool has_run = false;  // guarded in the same way as `last`

  // The builder sets `facts` before `facts_known`.
  ProgramFacts facts;
  std::atomic<bool> facts_known = false;

  // The sources of the runs from `sources_since` on. Guarded by the cache.
  std::vector<ir::SourceRef> sources;
  uint64_t sources_since = 0;
};

// Only one thread at a time may call find(), add(), remove() and trim(); other threads may call describe() meanwhile.
class ProgramCache {
 public:
  // Returns the program built from an equal trace, or null. Compares the traces themselves if the keys are equal.
  ProgramPtr find(const ir::Hash128& key, const ir::Trace& trace, std::span<const uint64_t> survivors) const;
  // Adds a program of a trace, with the next number. Copies `trace`.
  ProgramPtr add(const ir::Hash128& key, const ir::Trace& trace, std::span<const uint64_t> survivors);
  // Adds a program of a graph. find() does not return it; describe() knows it.
  ProgramPtr add(const ir::Graph& graph, std::vector<ir::SourceRef> sources, const ProgramOptions& options);
  // Removes a program that could not be built, so that the next equal trace is built again.
  void remove(const ProgramPtr& program);
  // Removes programs of graphs that nobody references any more. If the others take more than `most` bytes on the
  // worker, it also removes the least recently used programs of traces. It frees an eighth of `most` more than needed,
  // so that this happens rarely. The numbers are appended to *dropped, for the worker to unload. describe() still knows
  // them for a while.
  void trim(uint64_t most, std::vector<uint32_t>* dropped);
  size_t size() const;

  // FlushInfo::first_difference for a trace that is not cached.
  size_t first_difference(const ir::Trace& trace) const;

  // Sets the sources of a program's run with this sequence. Takes `sources` if they differ from the last run's.
  void set_sources(CachedProgram& program, uint64_t sequence, std::vector<ir::SourceRef>& sources);
  // Looks up a record of a program's run: *op gets the op's name, *source the user's line if it is still known. Returns
  // false if there is no such record.
  bool describe(uint32_t program, uint32_t record, uint64_t sequence, ir::SourceRef* source, std::string* op) const;

 private:
  void number(const ProgramPtr& program);
  void drop(const ProgramPtr& program);
  const CachedProgram* numbered(uint32_t number) const;

  std::unordered_multimap<uint64_t, ProgramPtr> by_key_;  // by the lower half of the key
  mutable std::mutex mutex_;                              // guards the following members and CachedProgram::sources
  uint32_t last_number_ = 0;
  std::unordered_map<uint32_t, ProgramPtr> by_number_;
  std::deque<ProgramPtr> dropped_;  // recently dropped programs, without the data that find() needs
  // Sources of earlier runs, because a failure may be reported long after its run.
  struct Earlier {
    uint32_t program;
    uint64_t since, until;  // range of sequences: since <= sequence < until
    std::vector<ir::SourceRef> sources;
  };
  std::deque<Earlier> earlier_;
};

}  // namespace torch_remote::remote
