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

// A worker that runs graphs as they are, without passes.
namespace torch_remote::tools {

using Bytes = std::vector<std::byte>;

// A graph that is loaded on a device.
struct LoadedGraph {
  std::shared_ptr<const ir::Graph> graph;
  remote::ProgramPtr program;
  uint64_t survivor_count = 0;  // number of fresh buffers that survive
  bool wants_results = false;   // the last node has dynamic or host results
};

// An error that the worker reported; the session continues.
using WorkerError = std::optional<remote::OpError>;

// Used by one thread. An error status means that the device is unusable. Errors of ops and graphs are WorkerErrors.
class Device {
 public:
  // `name`: "local", "inproc" or "unix://path". A local worker uses the files of package_files().
  static Status open(const std::string& name, int threads, std::unique_ptr<Device>* device);

  const std::string& name() const { return name_; }
  std::string description() const { return client_->connection().description(); }

  Status load(std::shared_ptr<const ir::Graph> graph, LoadedGraph* loaded);
  // The surviving buffers get the ids *first_result_id, *first_result_id + 1, ... If the graph has dynamic or host
  // results, the call waits for them and returns RunReply's result_words (remote/wire/wire.fbs) in *result_words.
  // Otherwise an error may be reported later.
  Status run(const LoadedGraph& loaded, std::span<const int64_t> params, std::span<const uint64_t> inputs,
             uint64_t* first_result_id, remote::ResultWords* result_words, WorkerError* error);
  // Sets the math modes of later runs.
  void set_math_modes(ir::MathModes math_modes) { math_modes_ = math_modes; }
  // Waits until all work is done; *error is the first error that was not reported yet.
  Status synchronize(WorkerError* error);

  Status upload(std::span<const std::byte> bytes, uint64_t* id);
  // Reads a strided view, as contiguous row-major bytes.
  Status read(uint64_t id, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
              int64_t offset, Bytes* bytes, WorkerError* error);
  // Reads the first `nbytes` of a buffer.
  Status read(uint64_t id, uint64_t nbytes, Bytes* bytes, WorkerError* error);
  // Copies a buffer on the worker.
  Status copy(uint64_t id, uint64_t nbytes, uint64_t* made, WorkerError* error);
  // Records what the worker executes and when (remote/client/client.h).
  Status profile(remote::ProfileCommand command, uint64_t limit, remote::WorkerProfile* profile) {
    return client_->profile(command, limit, {}, profile);
  }
  void free(uint64_t id) { client_->free(id); }

 private:
  explicit Device(std::string name) : name_(std::move(name)) {}

  const std::string name_;
  // Declared before client_, so that the worker ends after the client has closed the session.
  std::unique_ptr<remote::WorkerHandle> worker_;
  std::unique_ptr<remote::Client> client_;
  LoadedGraph copy_;
  ir::MathModes math_modes_ = 0;
};

// The message of an error in a run of this graph, with the user's source line if the graph has it.
std::string to_string(const remote::OpError& error, const ir::Graph& graph);

// The package's files: in $TORCH_REMOTE_PACKAGE, or in the package that contains this program (bin/..). libtorch's
// folder is $TORCH_REMOTE_TORCH_LIB, or next to the package.
remote::WorkerFiles package_files();

// The graph's input buffers, and its surviving fresh buffers, in the order of their ids.
std::vector<uint32_t> input_buffers(const ir::Graph& graph);
std::vector<uint32_t> surviving_buffers(const ir::Graph& graph);

}  // namespace torch_remote::tools
