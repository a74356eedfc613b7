#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "remote/client/client.h"
#include "remote/providers/provider.h"

// A worker that runs graphs as they are given, without passes.
namespace torch_remote::tools {

using Bytes = std::vector<std::byte>;

// A graph that a device has.
struct LoadedGraph {
  std::shared_ptr<const ir::Graph> graph;
  remote::ProgramPtr program;
  uint64_t made = 0;           // fresh buffers that survive
  bool wants_results = false;  // the last node has dynamic or host results
};

// An error that the worker reported: the session goes on.
using WorkerError = std::optional<remote::OpError>;

// One thread. A status that is not ok means that the device is of no use any more; what ops and graphs do wrong is a
// WorkerError.
class Device {
 public:
  // "local", "inproc" or "unix://path". The worker's files are those of package_files.
  static Status open(const std::string& name, int threads, std::unique_ptr<Device>* device);

  const std::string& name() const { return name_; }
  std::string description() const { return client_->description(); }

  Status load(std::shared_ptr<const ir::Graph> graph, LoadedGraph* loaded);
  // The survivors get the ids *base, *base + 1, ... `words` are those of RunReply (remote/wire/wire.fbs), if the graph
  // has any; then this waits, else an error comes later.
  Status run(const LoadedGraph& loaded, std::span<const int64_t> params, std::span<const uint64_t> inputs,
             uint64_t* base, remote::Words* words, WorkerError* error);
  // Of runs from now on.
  void set_math(ir::MathModes math) { math_ = math; }
  // Waits until all is done; the first error not reported yet.
  Status settle(WorkerError* error);

  Status upload(std::span<const std::byte> bytes, uint64_t* id);
  // A strided view, packed, row-major.
  Status read(uint64_t id, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
              int64_t offset, Bytes* bytes, WorkerError* error);
  // The first `nbytes` of a buffer.
  Status read(uint64_t id, uint64_t nbytes, Bytes* bytes, WorkerError* error);
  // A new buffer with the same bytes, made by the worker.
  Status copy(uint64_t id, uint64_t nbytes, uint64_t* made, WorkerError* error);
  // What the worker does and when (remote/client/client.h).
  Status profile(remote::ProfileCommand command, uint64_t limit, remote::WorkerProfile* profile) {
    return client_->profile(command, limit, {}, profile);
  }
  void free(uint64_t id) { client_->free(id); }

 private:
  explicit Device(std::string name) : name_(std::move(name)) {}

  const std::string name_;
  // The worker ends after the client has said goodbye.
  std::unique_ptr<remote::Worker> worker_;
  std::unique_ptr<remote::Client> client_;
  LoadedGraph copy_;
  ir::MathModes math_ = 0;
};

// An error of a run of this graph, with the user's line if the graph knows it.
std::string to_string(const remote::OpError& error, const ir::Graph& graph);

// Where the files of the package lie: in $TORCH_REMOTE_PACKAGE, or the package that this program is in (bin/..).
// libtorch's folder is $TORCH_REMOTE_TORCH_LIB, or beside the package.
remote::WorkerFiles package_files();

// The input buffers of a graph, and the fresh ones that survive, in the order of their ids.
std::vector<uint32_t> input_buffers(const ir::Graph& graph);
std::vector<uint32_t> surviving_buffers(const ir::Graph& graph);

}  // namespace torch_remote::tools
