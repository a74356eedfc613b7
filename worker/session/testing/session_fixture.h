#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "remote/wire/delta.h"
#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/session/session.h"

namespace torch_remote::worker {

// A session, and the client's end of its delta coding.
class SessionTest : public ::testing::Test {
 protected:
  explicit SessionTest(uint64_t limit = uint64_t{1} << 32) : device({.trusted = true, .limit = limit}) {
    std::unique_ptr<Runner> runner;
    EXPECT_TRUE(make_plugin_runner(testing::fake_runner(), {.memory = &device.memory()}, &runner).ok());
    runners.push_back(std::move(runner));
    session = std::make_unique<Session>(&device, &runners);
  }

  void load(uint32_t number, const std::string& text) {
    ir::Graph graph;
    const Status status = ir::parse_graph(text, &graph);
    ASSERT_TRUE(status.ok()) << status.message();
    const Status valid = ir::verify(graph);
    ASSERT_TRUE(valid.ok()) << valid.message();
    const std::vector<uint8_t> program = ir::encode_program(graph);
    session->load_program(number, std::as_bytes(std::span(program)));
    clients[number] = {};
  }

  // Runs a program; `first_result_id` is 100 by default. Returns the failure of the last node's results, or null.
  FailurePtr run(uint32_t number, std::vector<int64_t> params, std::vector<uint64_t> inputs,
                 uint64_t first_result_id = 100, std::vector<uint64_t> freed_ids = {}) {
    std::vector<uint8_t> encoded_params, encoded_bindings, encoded_freed_ids;
    remote::encode_params(params, clients[number].params, encoded_params);
    remote::encode_bindings(inputs, first_result_id, clients[number].bindings, encoded_bindings);
    remote::encode_freed_ids(freed_ids, encoded_freed_ids);
    FailurePtr failure;
    const Status status =
        session->run({number, first_result_id, encoded_params, encoded_bindings, encoded_freed_ids, ++sequence},
                     &result_words, &failure);
    EXPECT_TRUE(status.ok()) << status.message();
    return failure;
  }

  void upload(uint64_t id, const std::vector<float>& values) {
    auto floats = std::make_shared<std::vector<float>>(values);
    ASSERT_TRUE(session->buffers().upload(id, std::as_writable_bytes(std::span(*floats)), floats).ok());
  }

  // Reads all elements of a buffer of f32. Sets *failure if it cannot be read.
  std::vector<float> read(uint64_t id, int64_t count, FailurePtr* failure = nullptr) {
    const int64_t one = 1;
    Session::Located located;
    const ReadRequest request{id, 4, {&count, 1}, {&one, 1}, 0};
    FailurePtr why = session->locate(request, ++sequence, &located);
    if (failure) *failure = why;
    if (why) {
      if (!failure) ADD_FAILURE() << why->status.message();
      return {};
    }
    std::vector<float> values(count);
    session->copy_out(request, located, std::as_writable_bytes(std::span(values)), nullptr);
    return values;
  }

  // Returns the first failure that the client does not know, and marks all as known.
  FailurePtr take_failure() {
    uint64_t more = 0;
    const std::vector<FailurePtr> all = session->failures().take(&more);
    for (const FailurePtr& failure : all) session->failures().mark_reported(failure);
    return all.empty() ? nullptr : all[0];
  }

  bool exists(uint64_t id) {
    Session::Located located;
    return session->locate({id, 4, {}, {}, 0}, 0, &located) == nullptr;
  }

  using Floats = std::vector<float>;
  HostDevice device;
  Runners runners;
  std::unique_ptr<Session> session;
  std::map<uint32_t, remote::LastRun> clients;  // By program.
  std::vector<int64_t> result_words;
  uint64_t sequence = 0;
};

// A session with 64 MiB.
class SmallSessionTest : public SessionTest {
 protected:
  SmallSessionTest() : SessionTest(64 << 20) {}
};

// s0 elements, s1 bytes: x + y, then the sum times x.
inline constexpr const char* kTwoOps = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
})";

}  // namespace torch_remote::worker
