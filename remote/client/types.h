#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/capabilities.h"
#include "ir/graph.h"
#include "ir/status.h"
#include "ir/trace.h"
#include "remote/transport/transport.h"  // KeepWaiting

// What the parts of the client's end share.
namespace torch_remote::remote {

// How far the client may run ahead of the worker: about three steps of training, which are some 10 runs each. Twice as
// many as the worker acknowledges at once (wire.fbs), so that it never runs dry.
inline constexpr size_t kMaxUnacknowledged = 64;
// Bytes of uploads that the worker has not acknowledged; a single larger one may go alone.
inline constexpr size_t kMaxUnacknowledgedBytes = size_t{512} << 20;

// What programs may take on a worker, unless the user says otherwise: hundreds of the largest traces.
inline constexpr uint64_t kMostProgramBytes = uint64_t{512} << 20;

// A failure on the worker, with where it was recorded.
struct OpError {
  Status status;
  ir::SourceRef source;  // of the record that failed
  std::string op;        // schema name; empty if no single op is to blame
  uint64_t skipped = 0;  // updates in place that depend on it and did not happen
  // Of synchronize: the other failures that no wait has told.
  std::vector<OpError> more = {};
  uint64_t not_listed = 0;  // and how many there are beside these
};

// A program to be built: of a recorded trace, or of a graph that came by another way.
struct BuildRequest {
  uint32_t program = 0;  // its number
  const ir::Trace* trace = nullptr;
  const std::vector<uint64_t>* survivors = nullptr;  // of `trace`
  const ir::Graph* graph = nullptr;                  // instead of a trace
  std::span<const int64_t> sample;                   // parameters of the first run
  std::span<const ir::SourceRef> sources;            // one a record
  const ir::Capabilities* worker = nullptr;          // whom it is for
  bool deterministic = false;                        // ProgramOptions
};

// What `Client` needs to know to build: runs on the builder's thread. `program` gets the encoded flatbuffer.
using BuildFunction = std::function<Status(const BuildRequest& request, std::vector<uint8_t>* program)>;

// Which of a path's contents is meant.
struct FileVersion {
  uint64_t size = 0;  // bytes
  uint64_t inode = 0;
  int64_t modified = 0;  // ns since 1970
};

// A file as the worker sees it.
struct FoundFile {
  FileVersion version;
  bool readable = false;  // for its client
  bool allowed = false;   // it reads files for its clients at all
  std::string why;        // not readable
};

// A tensor that a Python function beside the worker gets: a strided view of a buffer.
struct CallInput {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // elements
};

// Resulting tensors of one call, at most.
inline constexpr uint64_t kMostResults = 4096;

// What a call came to.
struct CallResult {
  std::vector<std::byte> answer;  // what the function's process says
  std::vector<uint64_t> sizes;    // bytes of the resulting buffers
};

// What is asked of the worker for a program.
struct ProgramOptions {
  // From now on both ends wait busily for what comes soon (Transport::busy_wait), for all programs of the session:
  // calls are answered sooner, for up to a millisecond of a core whenever one waits.
  bool low_latency = false;
  // The worker may time several ways to run it and keep the fastest, so that results' last bits differ between runs.
  bool tune = false;
  // The bits of an op must depend on its operands alone, so the program changes no op because of its neighbours.
  bool deterministic = false;
};

// A program that was loaded by itself, for runs that are not recorded. Belongs to one client.
struct CachedProgram;
using ProgramPtr = std::shared_ptr<CachedProgram>;

}  // namespace torch_remote::remote
