#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <set>
#include <span>

#include "ir/graph.h"
#include "remote/wire/delta.h"
#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/session/loaded_program.h"
#include "worker/session/profile.h"
#include "worker/session/session.h"

// Several runners execute the nodes and groups of one program.
namespace torch_remote::worker {
namespace {

// Accepts ops by name, and groups of these ops if `groups` is set. Computes with the fake runner. Records what it is
// asked to run.
class PartRunner final : public Runner {
 public:
  PartRunner(HostDevice& device, std::set<std::string> ops) : ops_(std::move(ops)) {
    EXPECT_TRUE(make_plugin_runner(testing::fake_runner(), {.memory = &device.memory()}, &inner_).ok());
  }

  std::string name() const override { return "part"; }
  bool accepts(const ir::Graph& graph, uint32_t node) override {
    return ops_.contains(std::string(ir::op_desc(graph.nodes[node].opcode).name));
  }
  bool may_decline() const override { return true; }
  bool accepts_group(const ir::Graph&, const ir::Group&) override { return groups; }
  uint64_t generation() const override { return groups ? 1 : 0; }
  bool has_op(const char* name) override { return ops_.contains(name); }
  uint64_t kernels_compiled() const override { return groups; }

  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    if (out_of_memory) throw std::bad_alloc();
    ++loads;
    std::unique_ptr<RunnerProgram> inner;
    Status status = inner_->load(request, &inner);
    *program = std::make_unique<PartProgram>(*this, std::move(inner), request.graph);
    tunes = request.tune;
    return status;
  }

  struct Ran {
    uint32_t first, last;
    uint64_t missing;  // Number of buffers of these nodes that have no memory.
    bool operator==(const Ran&) const = default;
  };
  std::vector<Ran> ran;
  bool groups = false;
  bool tunes = false;          // The program that was loaded last is to be tuned.
  int64_t takes_up_to = 1000;  // Takes groups up to this value of the first symbol.
  int64_t nodes_up_to = 1000;  // Takes nodes up to this value of the first symbol.
  bool builds = false;         // A plan is being built: declines nodes unless it may wait.
  bool asks_again = false;
  int asked_of_nodes = 0;
  bool repeats = false;        // Reports in a run that a group's nodes must execute one by one.
  bool repeats_nodes = false;  // Reports in a run that it does not execute nodes, either.
  bool out_of_memory = false;  // Loading throws.
  int loads = 0;
  // For a tuned program: its answers, run by run. Then it stops tuning and gives the last answer.
  std::vector<bool> ways;
  size_t asked = 0;
  std::vector<uint32_t> took;  // First nodes of the groups whose nodes were timed.

 private:
  class PartProgram final : public RunnerProgram {
   public:
    PartProgram(PartRunner& runner, std::unique_ptr<RunnerProgram> inner, const ir::Graph& graph)
        : runner_(runner), inner_(std::move(inner)), graph_(graph) {}
    bool allocates_buffer(uint32_t buffer) const override { return inner_->allocates_buffer(buffer); }
    bool takes(uint32_t, uint32_t, std::span<const int64_t> values) override {
      if (runner_.ways.empty()) return values[0] <= runner_.takes_up_to;
      ++runner_.asked;
      return runner_.ways[std::min(runner_.asked, runner_.ways.size()) - 1];
    }
    bool takes_node(uint32_t, std::span<const int64_t> values, bool wait) override {
      ++runner_.asked_of_nodes;
      return values[0] <= runner_.nodes_up_to && (wait || !runner_.builds);
    }
    std::string why_not(uint32_t) const override { return runner_.builds ? "its plan is being built" : "too large"; }
    std::string why_not_group(uint32_t) const override { return "no such group"; }
    bool asks_again() const override { return runner_.asks_again; }
    bool tunes() const override { return runner_.asked < runner_.ways.size(); }
    void report_time(uint32_t first, uint64_t ns) override {
      EXPECT_GT(ns, 0u);
      runner_.took.push_back(first);
    }
    bool run(tr_run& run, tr_error* error) override {
      std::set<uint32_t> missing;
      for (uint32_t n = run.first; n < run.last; ++n) {
        ir::for_each_view(graph_.nodes[n], [&](uint32_t view, bool) {
          if (!run.buffers[graph_.views[view].buffer].data) missing.insert(graph_.views[view].buffer);
        });
      }
      runner_.ran.push_back({run.first, run.last, missing.size()});
      if (runner_.repeats && (run.last - run.first > 1 || runner_.repeats_nodes)) {
        if (runner_.repeats_nodes) runner_.nodes_up_to = 0;
        error->node = run.first;
        error->retry_as_nodes = 1;
        return false;
      }
      return inner_->run(run, error);
    }

   private:
    PartRunner& runner_;
    std::unique_ptr<RunnerProgram> inner_;
    const ir::Graph& graph_;
  };

  std::set<std::string> ops_;
  std::unique_ptr<Runner> inner_;
};

// b3 is not needed outside of the group.
constexpr const char* kProgram = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) group_local
  b4: fresh(s1) survives
  b5: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  group pointwise {
    %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
    %4: f32[s0]{1} @b4 = aten::mul.Tensor(%3, %1)
  }
  %5: f32[s0]{1} @b5 = aten::add.Tensor(%4, %0, alpha=1)
})";

class StepsTest : public ::testing::Test {
 protected:
  using Floats = std::vector<float>;
  using Ran = PartRunner::Ran;

  void start(bool with_plugin = true) {
    auto made = std::make_unique<PartRunner>(device, std::set<std::string>{"aten::mul.Tensor", "aten::exp"});
    part = made.get();
    runners.push_back(std::move(made));
    std::unique_ptr<Runner> plugin;
    ASSERT_TRUE(make_plugin_runner(testing::fake_runner(), {.memory = &device.memory()}, &plugin).ok());
    if (with_plugin) runners.push_back(std::move(plugin));
    session = std::make_unique<Session>(&device, &runners);
  }

  void load(uint32_t number, const std::string& text, bool tune = false) {
    ir::Graph graph;
    Status status = ir::parse_graph(text, &graph);
    ASSERT_TRUE(status.ok()) << status.message();
    status = ir::verify(graph);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<uint8_t> program = ir::encode_program(graph);
    session->load_program(number, std::as_bytes(std::span(program)), tune);
  }
  FailurePtr run(uint32_t number, const std::vector<int64_t>& params, const std::vector<uint64_t>& inputs,
                 uint64_t first_result_id) {
    std::vector<uint8_t> encoded_params, encoded_bindings, freed_ids;
    remote::encode_params(params, params_[number], encoded_params);
    remote::encode_bindings(inputs, first_result_id, bindings_[number], encoded_bindings);
    std::vector<uint64_t> none;
    remote::encode_freed_ids(none, freed_ids);
    FailurePtr failure;
    std::vector<int64_t> result_words;
    const Status status = session->run(
        {number, first_result_id, encoded_params, encoded_bindings, freed_ids, ++sequence_}, &result_words, &failure);
    EXPECT_TRUE(status.ok()) << status.message();
    return failure;
  }
  void upload(uint64_t id, const Floats& values) {
    auto floats = std::make_shared<Floats>(values);
    ASSERT_TRUE(session->buffers().upload(id, std::as_writable_bytes(std::span(*floats)), floats).ok());
  }
  Floats read(uint64_t id, int64_t count) {
    const int64_t one = 1;
    const ReadRequest request{id, 4, {&count, 1}, {&one, 1}, 0};
    Session::Located located;
    if (const FailurePtr failure = session->locate(request, ++sequence_, &located)) {
      error = failure->status.message();
      return {};
    }
    Floats values(count);
    session->copy_out(request, located, std::as_writable_bytes(std::span(values)), nullptr);
    return values;
  }

  HostDevice device{{.trusted = true, .limit = uint64_t{1} << 30}};
  Runners runners;
  PartRunner* part = nullptr;
  std::unique_ptr<Session> session;
  std::string error;

 private:
  std::map<uint32_t, std::vector<int64_t>> params_;
  std::map<uint32_t, remote::Bindings> bindings_;
  uint64_t sequence_ = 0;
};

TEST_F(StepsTest, EachNodeIsDoneByTheFirstThatAcceptsIt) {
  start();
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}}));
  EXPECT_EQ(read(100, 3), (Floats{11, 22, 33}));
  EXPECT_EQ(read(101, 3), (Floats{110, 880, 2970}));
  EXPECT_EQ(read(102, 3), (Floats{111, 882, 2973}));
}

// A group that is accepted later executes as one from then on, and its inner buffer has no memory.
TEST_F(StepsTest, AGroupIsSwappedInBetweenTwoRuns) {
  start();
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  part->groups = true;
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 200), nullptr);
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 300), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}, {1, 3, 1}, {1, 3, 1}}));
  EXPECT_EQ(part->loads, 2);
  for (const uint64_t first_result_id : {100, 200})
    EXPECT_EQ(read(first_result_id + 2, 3), (Floats{111, 882, 2973})) << first_result_id;
  EXPECT_EQ(read(302, 2), (Floats{111, 882}));
}

// If memory runs out while a group is swapped in, that run fails, and the next one tries again.
TEST_F(StepsTest, AGroupThatCannotBeLoadedIsLoadedLater) {
  start();
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  part->groups = part->out_of_memory = true;
  const FailurePtr failure = run(1, {3, 12}, {1, 2}, 200);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.exception_type(), "OutOfMemoryError");
  part->out_of_memory = false;
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 300), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}, {1, 3, 1}}));
  EXPECT_EQ(read(302, 3), (Floats{111, 882, 2973}));
}

// Whether a group executes as one may depend on sizes: its inner buffer gets memory only in runs in which it does not.
TEST_F(StepsTest, AGroupIsDoneAsOneWhereTheSizesAllowIt) {
  start();
  part->groups = true;
  part->takes_up_to = 2;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 200), nullptr);
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 300), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}, {1, 3, 1}, {1, 3, 0}}));
  EXPECT_EQ(part->loads, 1);
  for (const uint64_t first_result_id : {100, 300})
    EXPECT_EQ(read(first_result_id + 2, 3), (Floats{111, 882, 2973})) << first_result_id;
  EXPECT_EQ(read(202, 2), (Floats{111, 882}));
}

// While a runner times its algorithms it is asked before each run. It learns how long the nodes of a declined group
// took.
TEST_F(StepsTest, GroupsOfTunedProgramsMayChangeFromRunToRun) {
  start();
  part->groups = true;
  part->ways = {true, false, false, true, false};
  load(1, kProgram, /*tune=*/true);
  EXPECT_TRUE(part->tunes);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (uint64_t first_result_id = 100; first_result_id < 900; first_result_id += 100)
    EXPECT_EQ(run(1, {3, 12}, {1, 2}, first_result_id), nullptr);
  const Ran whole{1, 3, 1}, alone{1, 3, 0};
  EXPECT_EQ(part->ran, (std::vector<Ran>{whole, alone, alone, whole, alone, alone, alone, alone}));
  EXPECT_EQ(part->asked, 5u);
  EXPECT_EQ(part->took, (std::vector<uint32_t>{1, 1}));  // In the runs that counted.
  for (uint64_t first_result_id = 100; first_result_id < 900; first_result_id += 100)
    EXPECT_EQ(read(first_result_id + 2, 3), (Floats{111, 882, 2973})) << first_result_id;
  // Programs that are not tuned ask once.
  part->asked = 0;
  part->took.clear();
  load(2, kProgram);
  EXPECT_FALSE(part->tunes);
  for (uint64_t first_result_id = 1000; first_result_id < 1300; first_result_id += 100)
    EXPECT_EQ(run(2, {3, 12}, {1, 2}, first_result_id), nullptr);
  EXPECT_EQ(part->asked, 1u);
  EXPECT_TRUE(part->took.empty());
}

// Nodes of a group that is timed are steps of their own, next to other nodes of the same runner.
TEST_F(StepsTest, NodesThatAreTimedAreCutFromTheirNeighbours) {
  start();
  part->groups = true;
  part->ways = {false, false, true};
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::mul.Tensor(%0, %0)
  group pointwise {
    %2: f32[s0]{1} @b2 = aten::mul.Tensor(%1, %0)
  }
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
})",
       /*tune=*/true);
  upload(1, {1, 2, 3});
  for (uint64_t first_result_id = 100; first_result_id < 500; first_result_id += 100)
    EXPECT_EQ(run(1, {3, 12}, {1}, first_result_id), nullptr);
  const Ran before{0, 1, 0}, timed{1, 2, 0}, after{2, 3, 0};
  EXPECT_EQ(part->ran,
            (std::vector<Ran>{before, timed, after, before, timed, after, before, timed, after, before, timed, after}));
  EXPECT_EQ(part->took, (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(read(402, 3), (Floats{1, 16, 81}));
}

TEST_F(StepsTest, AGroupOfOneNodeIsAGroup) {
  start();
  part->groups = true;
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  group pointwise {
    %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  }
})");
  upload(1, {1, 2, 3});
  EXPECT_EQ(run(1, {3, 12}, {1}, 100), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{0, 1, 0}}));
  EXPECT_EQ(read(100, 3), (Floats{2, 4, 6}));
}

// A group that turns out not to execute as one runs node by node, with the same results.
TEST_F(StepsTest, AGroupIsRepeatedNodeByNode) {
  start();
  part->groups = part->repeats = true;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  // The inner buffer gets its memory when it is needed.
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 1}, {1, 2, 1}, {2, 3, 0}}));
  EXPECT_EQ(read(101, 3), (Floats{110, 880, 2970}));
  EXPECT_EQ(read(102, 3), (Floats{111, 882, 2973}));
}

// After a run in which a group could not execute as one, the runner is asked again.
TEST_F(StepsTest, AGroupThatIsDeclinedInARunIsOfferedAgain) {
  start();
  part->groups = part->repeats = true;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  part->ran.clear();
  part->repeats = false;
  part->takes_up_to = 0;
  for (const uint64_t first_result_id : {200, 300}) {
    EXPECT_EQ(run(1, {3, 12}, {1, 2}, first_result_id), nullptr);
    EXPECT_EQ(read(first_result_id + 2, 3), (Floats{111, 882, 2973})) << first_result_id;
  }
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}, {1, 3, 0}}));  // The inner buffer has memory.
}

// If one of a group's nodes must not run, the others execute alone.
TEST_F(StepsTest, AGroupIsTakenApartWhereSomethingIsMissing) {
  start();
  part->groups = true;
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  group pointwise {
    %2: f32[s0]{1} @b2 = aten::mul.Tensor(%0, %0)
    %3: f32[s0]{1} @b3 = aten::mul.Tensor(%1, %1)
  }
})");
  load(2, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
})");
  upload(1, {1, 2, 3});
  EXPECT_NE(run(2, {3, 12}, {1}, 100), nullptr);
  part->ran.clear();
  run(1, {3, 12}, {100, 1}, 200);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 2, 1}}));  // The inner buffer gets its memory when it is needed.
  EXPECT_EQ(read(201, 3), (Floats{1, 4, 9}));
  EXPECT_EQ(read(200, 3), Floats());
  EXPECT_NE(error.find("no exponentials here"), std::string::npos) << error;
}

// Long runs are cut into pieces, but never inside of a group that executes as one.
TEST_F(StepsTest, RunsAreCutBetweenGroups) {
  start();
  part->groups = true;
  std::string buffers, body;
  constexpr int kGroups = 40, kNodes = 5;
  int view = 1;
  for (int g = 0; g < kGroups; ++g) {
    body += "  group pointwise {\n";
    for (int n = 0; n < kNodes; ++n, ++view) {
      buffers += "  b" + std::to_string(view) + ": fresh(s1) survives\n";
      body += "    %" + std::to_string(view) + ": f32[s0]{1} @b" + std::to_string(view) + " = aten::mul.Tensor(%" +
              std::to_string(view - 1) + ", %0)\n";
    }
    body += "  }\n";
  }
  load(1, "graph(s0, s1) {\n  b0: input survives\n" + buffers + "  %0: f32[s0]{1} @b0\n" + body + "}");
  upload(1, {1, -1});
  for (int round = 0; round < 8; ++round) EXPECT_EQ(run(1, {2, 8}, {1}, 100), nullptr);
  EXPECT_EQ(read(100 + kGroups * kNodes - 1, 2), (Floats{1, -1}));
  EXPECT_FALSE(part->ran.empty());
  for (const Ran& ran : part->ran) {
    EXPECT_EQ(ran.first % kNodes, 0u);
    EXPECT_EQ(ran.last - ran.first, static_cast<uint32_t>(kNodes));
  }
}

// Two runners accept the multiplications: sizes decide which one executes them.
TEST_F(StepsTest, ANodeThatIsDeclinedGoesToTheNextRunner) {
  start();
  part->nodes_up_to = 2;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{}));
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 200), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}}));
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 300), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{1, 3, 0}}));
  for (const uint64_t first_result_id : {100, 300})
    EXPECT_EQ(read(first_result_id + 2, 3), (Floats{111, 882, 2973})) << first_result_id;
  EXPECT_EQ(read(202, 2), (Floats{111, 882}));
}

// A runner is asked when the values change, and in between only if it wants to be.
TEST_F(StepsTest, RunnersAreAskedAboutNodesOnce) {
  start();
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (uint64_t first_result_id = 100; first_result_id < 400; first_result_id += 100)
    EXPECT_EQ(run(1, {3, 12}, {1, 2}, first_result_id), nullptr);
  EXPECT_EQ(part->asked_of_nodes, 2);
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 400), nullptr);
  EXPECT_EQ(part->asked_of_nodes, 4);
  part->asks_again = true;
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 500), nullptr);
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 600), nullptr);
  EXPECT_EQ(part->asked_of_nodes, 8);
}

// A plan that is being built is waited for if no other runner takes the node.
TEST_F(StepsTest, PlansAreWaitedForWhereNobodyElseTakesANode) {
  start();
  part->builds = true;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  EXPECT_TRUE(part->ran.empty());
  EXPECT_EQ(read(102, 3), (Floats{111, 882, 2973}));
  session.reset();
  runners.clear();
  start(/*with_plugin=*/false);
  part->builds = true;
  load(2, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::mul.Tensor(%0, %0)
})");
  upload(1, {1, 2, 3});
  EXPECT_EQ(run(2, {3, 12}, {1}, 100), nullptr);
  EXPECT_EQ(part->ran, (std::vector<Ran>{{0, 1, 0}}));
  EXPECT_EQ(read(100, 3), (Floats{1, 4, 9}));
}

// If a runner finds out only in a run that it cannot execute a node, the next runner does, in the same run.
TEST_F(StepsTest, ANodeThatIsDeclinedInARunGoesToTheNextRunner) {
  start();
  part->repeats = part->repeats_nodes = true;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  EXPECT_FALSE(part->ran.empty());
  EXPECT_EQ(read(101, 3), (Floats{110, 880, 2970}));
  EXPECT_EQ(read(102, 3), (Floats{111, 882, 2973}));
  // Later runs do not try the first runner.
  part->ran.clear();
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 200), nullptr);
  EXPECT_TRUE(part->ran.empty());
  EXPECT_EQ(read(202, 3), (Floats{111, 882, 2973}));
}

// The error is the node's alone: the other nodes run.
TEST_F(StepsTest, WhatEverybodyDeclinesIsAnErrorWithTheReasons) {
  start(/*with_plugin=*/false);
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::mul.Tensor(%0, %0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
})");
  upload(1, {1, 2, 3});
  EXPECT_NE(run(1, {2, 8}, {1}, 100), nullptr);  // No runner accepts the sum.
  EXPECT_EQ(read(100, 2), (Floats{1, 4}));
  EXPECT_EQ(read(101, 2), Floats());
  EXPECT_NE(error.find("'aten::add.Tensor' like this (it has part)"), std::string::npos) << error;
  part->nodes_up_to = 2;
  EXPECT_NE(run(1, {3, 12}, {1}, 200), nullptr);  // Now no runner takes the multiplication, either.
  EXPECT_EQ(read(200, 3), Floats());
  EXPECT_NE(error.find("'aten::mul.Tensor' like this (part: too large)"), std::string::npos) << error;
  EXPECT_NE(run(1, {2, 8}, {1}, 300), nullptr);
  EXPECT_EQ(read(300, 2), (Floats{1, 4}));
}

// For nodes of runs with other values, and of a group that is declined first and taken later.
TEST_F(StepsTest, AProfileSaysWhoExecutedANodeAndWhyOthersDidNot) {
  start();
  part->nodes_up_to = 2;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  Profile profile(100);
  session->set_profile(&profile);
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
  const auto described = [&] {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(
        profile.encode_programs(builder, [&](uint32_t number) { return session->find_program(number); }, runners));
    using Programs = flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>;
    std::vector<std::string> all;
    for (const wire::ProfileProgram* program : *flatbuffers::GetRoot<Programs>(builder.GetBufferPointer())) {
      for (uint32_t i = 0; i < program->labels()->size(); ++i) {
        all.push_back(program->runners()->Get(i)->str() + "|" + program->declined()->Get(i)->str());
      }
    }
    profile.handed_over();
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(described(), (Texts{"fake|", "fake|part: too large", "fake|part: too large", "fake|", "|"}));
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 200), nullptr);
  EXPECT_EQ(described(), (Texts{"fake|", "part|", "part|", "fake|", "|"}));
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 300), nullptr);
  EXPECT_EQ(described(), Texts());  // Nothing has changed.
  part->groups = true;
  part->takes_up_to = 2;
  EXPECT_EQ(run(1, {2, 8}, {1, 2}, 400), nullptr);
  EXPECT_EQ(described(), (Texts{"fake|", "part|", "part|", "fake|", "part|"}));
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 500), nullptr);
  EXPECT_EQ(described()[1], "fake|part: no such group; part: too large");
  session->set_profile(nullptr);
}

// Two sizes alternate, and with them the runners.
TEST_F(StepsTest, AProfileHasOneVariantPerSizeAndAtMostAsManyAsEvents) {
  start();
  part->nodes_up_to = 2;
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (const uint64_t limit : {100, 1}) {
    Profile profile(limit);
    session->set_profile(&profile);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(run(1, {3, 12}, {1, 2}, 100), nullptr);
      EXPECT_EQ(run(1, {2, 8}, {1, 2}, 200), nullptr);
    }
    session->set_profile(nullptr);
    std::set<uint32_t> variants;
    for (const wire::ProfileEvent& event : profile.events()) variants.insert(event.program);
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(
        profile.encode_programs(builder, [&](uint32_t number) { return session->find_program(number); }, runners));
    using Programs = flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>;
    EXPECT_EQ(flatbuffers::GetRoot<Programs>(builder.GetBufferPointer())->size(), limit == 1 ? 1u : 2u);
    EXPECT_EQ(variants.size(), limit == 1 ? 1u : 2u);
    EXPECT_EQ(profile.events().size() + profile.dropped(), 24u);  // Four nodes in each of six runs.
  }
}

TEST_F(StepsTest, WhatNobodyDoesIsNamed) {
  start(/*with_plugin=*/false);
  load(1, kProgram);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  const FailurePtr failure = run(1, {3, 12}, {1, 2}, 100);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.exception_type(), "NotImplementedError");
  EXPECT_NE(failure->status.message().find("'aten::add.Tensor'"), std::string::npos) << failure->status.message();
  EXPECT_NE(failure->status.message().find("part"), std::string::npos) << failure->status.message();
  part->groups = true;
  const FailurePtr again = run(1, {3, 12}, {1, 2}, 200);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->status.message(), failure->status.message());
}

}  // namespace
}  // namespace torch_remote::worker
