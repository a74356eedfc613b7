#include "tools/runs/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "remote/wire/environment.h"

namespace torch_remote::tools {
namespace {

const remote::KeepWaiting kPatient;

// Bound on a graph's records: a hand-written graph may contain any number.
constexpr uint32_t kMaxRecords = 1 << 20;

// Splits a status: errors that the worker reported go to *error, others are returned.
Status sort(Status status, remote::OpError& reported, WorkerError* error) {
  if (status.ok() || reported.status.ok() || status.code() == ErrorCode::kLost) return status;
  *error = std::move(reported);
  return {};
}

bool has_results(const ir::Graph& graph) {
  if (graph.nodes.empty()) return false;
  const ir::Node& last = graph.nodes.back();
  for (const ir::ResultDesc& result : ir::op_desc(last.opcode).results) {
    if (result.alias < 0 && result.kind > ir::ResultKind::kTensorList) return true;
  }
  bool dynamic = false;
  ir::for_each_view(last, [&](uint32_t view, bool) { dynamic |= graph.views[view].dynamic; });
  return dynamic;
}

std::shared_ptr<const ir::Graph> copy_graph() {
  auto graph = std::make_shared<ir::Graph>();
  (void)ir::parse_graph(R"(graph(bytes) {
  b0: input survives
  b1: fresh(bytes) survives
  %0: u8[bytes] @b0
  %1: u8[bytes] @b1
  aten::copy_(%1!, %0)
})",
                        graph.get());
  return graph;
}

}  // namespace

remote::WorkerFiles package_files() {
  const char* torch = std::getenv("TORCH_REMOTE_TORCH_LIB");
  const std::filesystem::path package = remote::package_folder();
  return {package / "bin/torch-remote-worker", remote::aten_plugin(), package / "lib/libtorch_remote_inproc.so",
          torch ? torch : "", ""};
}

Status Device::open(const std::string& name, int threads, std::unique_ptr<Device>* device) {
  std::unique_ptr<Device> made(new Device(name));
  if (Status status = remote::start_worker(name, package_files(), threads, {}, &made->worker_); !status) return status;
  const auto encode = [](const remote::BuildRequest& request, std::vector<uint8_t>* program) {
    *program = ir::encode_program(*request.graph);
    return Status();
  };
  if (Status status = remote::Client::connect(made->worker_->take_transport(), encode, {}, &made->client_); !status) {
    return status;
  }
  *device = std::move(made);
  return {};
}

Status Device::load(std::shared_ptr<const ir::Graph> graph, LoadedGraph* loaded) {
  loaded->graph = graph;
  loaded->survivor_count = surviving_buffers(*graph).size();
  loaded->wants_results = has_results(*graph);
  uint32_t records = 0;
  for (const ir::Node& node : graph->nodes) records = std::max(records, node.record + 1);
  std::vector<ir::SourceRef> sources(std::min(records, kMaxRecords));
  for (uint32_t record = 0; record < sources.size(); ++record) sources[record].code = record + 1;
  return client_->load(std::move(graph), std::move(sources), {}, {}, &loaded->program);
}

Status Device::run(const LoadedGraph& loaded, std::span<const int64_t> params, std::span<const uint64_t> inputs,
                   uint64_t* first_result_id, remote::ResultWords* result_words, WorkerError* error) {
  error->reset();
  result_words->clear();
  if (Status status = client_->throttle(kPatient); !status) return status;
  remote::FlushInfo info;
  uint64_t ticket;
  Status sent = client_->run(loaded.program, {params, inputs, loaded.survivor_count, math_modes_}, first_result_id,
                             &info, loaded.wants_results ? &ticket : nullptr);
  if (!sent || !loaded.wants_results) return sent;
  remote::OpError reported;
  return sort(client_->wait_results(ticket, result_words, kPatient, &reported), reported, error);
}

Status Device::synchronize(WorkerError* error) {
  error->reset();
  remote::OpError reported;
  return sort(client_->synchronize(kPatient, &reported), reported, error);
}

Status Device::upload(std::span<const std::byte> bytes, uint64_t* id) {
  if (Status status = client_->throttle(kPatient); !status) return status;
  const auto fill = [&](std::byte* to) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  };
  return client_->upload(bytes.size(), fill, id);
}

Status Device::read(uint64_t id, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                    int64_t offset, Bytes* bytes, WorkerError* error) {
  error->reset();
  remote::OpError reported;
  const auto take = [&](std::span<const std::byte> from) { bytes->assign(from.begin(), from.end()); };
  return sort(client_->read(id, item_size, sizes, strides, offset, take, kPatient, &reported), reported, error);
}

Status Device::read(uint64_t id, uint64_t nbytes, Bytes* bytes, WorkerError* error) {
  const auto size = static_cast<int64_t>(nbytes);
  const int64_t one = 1;
  return read(id, 1, {&size, 1}, {&one, 1}, 0, bytes, error);
}

Status Device::copy(uint64_t id, uint64_t nbytes, uint64_t* made, WorkerError* error) {
  // The program's key treats sizes 0 and 1 as constants, so they cannot be parameters.
  if (nbytes < 2) {
    Bytes bytes;
    if (Status status = read(id, nbytes, &bytes, error); !status || *error) return status;
    return upload(bytes, made);
  }
  error->reset();
  if (!copy_.program) {
    if (Status status = load(copy_graph(), &copy_); !status) return status;
  }
  const auto size = static_cast<int64_t>(nbytes);
  remote::ResultWords result_words;
  return run(copy_, {&size, 1}, {&id, 1}, made, &result_words, error);
}

std::string to_string(const remote::OpError& error, const ir::Graph& graph) {
  std::string text = error.status.message();
  const uint64_t record = error.source.code;  // see load
  if (record > 0 && record <= graph.source_lines.size()) text += " at " + graph.source_lines[record - 1];
  return text;
}

std::vector<uint32_t> input_buffers(const ir::Graph& graph) {
  std::vector<uint32_t> found;
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) found.push_back(b);
  }
  return found;
}

std::vector<uint32_t> surviving_buffers(const ir::Graph& graph) {
  std::vector<uint32_t> found;
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kFresh && graph.buffers[b].survives) found.push_back(b);
  }
  return found;
}

}  // namespace torch_remote::tools
