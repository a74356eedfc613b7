#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "remote/client/client.h"
#include "remote/testing/fake_worker.h"

// A client with a fake worker at the other end, over the in-process transport and over a Unix socket.
namespace torch_remote::remote {

using namespace std::chrono_literals;
using Type = wire::Type;

inline const KeepWaiting kPatient;  // empty: waits without an end
// Clients of forked children, which are never destroyed; this list keeps them reachable for the leak checker.
inline std::vector<Client*>* const forked_clients = new std::vector<Client*>;

using Pair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

inline Pair unix_pair() {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  return {make_unix_transport(sockets[0]), make_unix_transport(sockets[1])};
}

struct Kind {
  const char* name;
  Pair (*make)();
};
inline constexpr Kind kTransports[] = {{"inproc", make_inproc_transport}, {"unix", unix_pair}};
inline std::string name_of(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

// Appends records as a recorder does. The opcodes are the first ones of the op table; the ops themselves do not matter.
class TraceWriter {
 public:
  explicit TraceWriter(ir::Trace& trace) : trace_(trace) {}

  // Records an op that reads buffer `input`, creates a buffer and has the parameter `value`. `size` is the number of
  // elements of both buffers, and also the stated bytes of the input. `survives`: the new buffer has an owner.
  TraceWriter& op(uint32_t opcode, uint64_t input, int64_t size, bool survives, int64_t value = 0) {
    const int64_t sizes[] = {size}, strides[] = {1};
    trace_.begin_record(opcode, {0xC0DE, static_cast<int32_t>(trace_.records.size()), 0});
    trace_.new_buffer_view(input, &trace_, static_cast<uint64_t>(size), ir::DType::kFloat32, sizes, strides, 0);
    trace_.param(value);
    trace_.new_buffer_view(0, survives ? &trace_ : nullptr, static_cast<uint64_t>(4 * size), ir::DType::kFloat32, sizes,
                           strides, 0);
    trace_.end_record();
    return *this;
  }

 private:
  ir::Trace& trace_;
};

// A graph with one parameter, one input buffer and one fresh buffer. It is not valid: its node has no arguments.
inline std::shared_ptr<const ir::Graph> small_graph() {
  auto graph = std::make_shared<ir::Graph>();
  graph->params = 1;
  graph->buffers.resize(2);
  graph->buffers[0].kind = ir::BufferKind::kInput;
  graph->nodes.resize(1);
  graph->nodes[0].opcode = 3;
  return graph;
}

class ClientTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto [a, b] = GetParam().make();
    transport = a->description();
    worker = std::make_unique<FakeWorker>(std::move(b));
    ASSERT_TRUE(
        Client::connect(std::move(a), [this](auto&&... arguments) { return build(arguments...); }, {}, &client).ok());
  }
  void TearDown() override {
    release_builds();
    client = nullptr;
  }

  Status build(const BuildRequest& request, std::vector<uint8_t>* program) {
    ++builds;
    build_gate.wait();
    built_for = *request.worker;
    if (fail_build) return {ErrorCode::kUnsupported, "remote: no such thing"};
    if (throw_in_build) throw std::runtime_error("out of luck");
    *program = request.trace ? FakeWorker::make_program(*request.trace) : FakeWorker::make_program(*request.graph);
    return {};
  }
  ir::Capabilities built_for;  // capabilities that the last build got
  // Makes builds wait until release_builds(), which TearDown() calls, too.
  void hold_builds() {
    gate = std::promise<void>();
    build_gate = gate.get_future().share();
    held = true;
  }
  void release_builds() {
    if (std::exchange(held, false)) gate.set_value();
  }

  FlushInfo flush(uint64_t* first_result_id_out = nullptr) {
    FlushInfo info;
    uint64_t first_result_id;
    const Status status = client->flush(trace, &first_result_id, &info);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(trace.empty());
    if (first_result_id_out) *first_result_id_out = first_result_id;
    return info;
  }
  Status synchronize() {
    error = OpError();
    return client->synchronize(kPatient, &error);
  }
  uint64_t upload(const std::string& text) {
    uint64_t id = 0;
    EXPECT_TRUE(
        client->upload(text.size(), [&](std::byte* to) { std::memcpy(to, text.data(), text.size()); }, &id).ok());
    return id;
  }
  Status read(uint64_t buffer, size_t size, std::string* text, const KeepWaiting& keep_waiting = kPatient) {
    const int64_t sizes[] = {static_cast<int64_t>(size)}, strides[] = {1};
    const auto take = [&](std::span<const std::byte> bytes) {
      text->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    OpError read_error;
    const Status status = client->read(buffer, 1, sizes, strides, 0, take, keep_waiting, &read_error);
    if (!status && !read_error.status.ok()) error = read_error;
    return status;
  }
  std::vector<Type> types() {
    std::vector<Type> out;
    for (const auto& message : worker->messages()) out.push_back(message.type);
    return out;
  }

  std::promise<void> gate;
  std::shared_future<void> build_gate = [] {
    std::promise<void> open;
    open.set_value();
    return open.get_future().share();
  }();
  bool held = false;
  std::atomic<int> builds = 0;
  std::atomic<bool> fail_build = false, throw_in_build = false;
  std::string transport;
  ir::Trace trace;
  OpError error;
  std::unique_ptr<FakeWorker> worker;  // must outlive the client
  std::unique_ptr<Client> client;
};

}  // namespace torch_remote::remote
