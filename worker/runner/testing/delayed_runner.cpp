#include "worker/runner/testing/delayed_runner.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker/runner/plugin_runner.h"

namespace torch_remote::worker::testing {
namespace {

// Lists the values that must exist before the nodes of a program are queued.
struct Needs {
  explicit Needs(const ir::Graph& graph)
      : symbols(graph.symbols()), dynamic(graph.buffers.size()), nodes(graph.nodes.size()) {
    for (const ir::Buffer& buffer : graph.buffers) nbytes.push_back(buffer.nbytes);
    for (size_t n = 0; n < nodes.size(); ++n) {
      const ir::Node& node = graph.nodes[n];
      nodes[n].has_host_results = (ir::op_desc(node.opcode).flags & ir::kOpHostResult) != 0;
      ir::for_each_view(node, [&](uint32_t view, bool) {
        const uint32_t b = graph.views[view].buffer;
        if (graph.buffers[b].kind == ir::BufferKind::kFresh) nodes[n].fresh.push_back(b);
        if (!graph.views[view].dynamic) return;
        dynamic[b] = nodes[n].has_host_results = true;
      });
    }
  }

  struct OfNode {
    std::vector<uint32_t> fresh;  // Fresh buffers that the node touches.
    bool has_host_results = false;
  };
  size_t symbols;
  std::vector<ir::Sym> nbytes;  // One per buffer.
  std::vector<bool> dynamic;    // One per buffer: the op allocates it.
  std::vector<OfNode> nodes;
};

// A queued run.
struct Call {
  tr_run run{};
  std::vector<int64_t> symbols;
  std::vector<tr_buffer> buffers;
  std::vector<int64_t> result_words;
  bool good = true;
  tr_error error{};
};

class DelayedProgram final : public RunnerProgram {
 public:
  DelayedProgram(DelayedDevice& device, std::unique_ptr<RunnerProgram> inner, const ir::Graph& graph)
      : device_(device), inner_(std::move(inner)), needs_(std::make_shared<Needs>(graph)) {}
  ~DelayedProgram() override {
    device_.enqueue([inner = std::move(inner_)]() mutable { inner = nullptr; });
  }

  bool allocates_buffer(uint32_t buffer) const override { return needs_->dynamic[buffer]; }

  bool run(tr_run& run, tr_error* error) override {
    run.result_word_count = 0;
    if (!allocate_missing(run, error)) return false;
    auto call = std::make_shared<Call>();
    call->symbols.assign(run.symbols, run.symbols + needs_->symbols);
    call->buffers.assign(run.buffers, run.buffers + run.buffer_count);
    call->result_words.resize(run.result_word_capacity);
    call->run = run;
    call->run.symbols = call->symbols.data();
    call->run.buffers = call->buffers.data();
    call->run.result_words = call->result_words.data();
    // The buffers stay owned by the caller.
    for (tr_buffer& buffer : call->buffers) buffer = {device_.reachable(buffer.data), buffer.nbytes, nullptr, nullptr};
    const auto work = [call, inner = inner_, needs = needs_, device = &device_] {
      do_run(*call, *inner, *needs, *device);
    };
    if (std::none_of(needs_->nodes.begin() + run.first, needs_->nodes.begin() + run.last,
                     [](const Needs::OfNode& node) { return node.has_host_results; })) {
      device_.enqueue(work);
      return true;
    }
    device_.enqueue_and_wait(work);
    run.result_word_count = call->run.result_word_count;
    std::copy_n(call->result_words.begin(), run.result_word_count, run.result_words);
    for (uint32_t b = 0; b < run.buffer_count; ++b) {
      if (needs_->dynamic[b] && call->buffers[b].release) run.buffers[b] = hand_over(call->buffers[b]);
    }
    *error = call->error;
    return call->good;
  }

 private:
  bool allocate_missing(tr_run& run, tr_error* error) {
    for (uint32_t n = run.first; n < run.last; ++n) {
      for (const uint32_t b : needs_->nodes[n].fresh) {
        if (run.buffers[b].data || needs_->dynamic[b]) continue;
        const auto nbytes = static_cast<uint64_t>(run.symbols[needs_->nbytes[b]]);
        if (device_.memory().allocate(nbytes, &run.buffers[b])) continue;
        error->node = n;
        std::snprintf(error->exception_type, sizeof(error->exception_type), "OutOfMemoryError");
        std::snprintf(error->message, sizeof(error->message), "the device has no %llu bytes left",
                      static_cast<unsigned long long>(nbytes));
        return false;
      }
    }
    return true;
  }

  // Runs on the device's thread.
  static void do_run(Call& call, RunnerProgram& inner, const Needs& needs, DelayedDevice& device) {
    const uint32_t first = call.run.first, last = call.run.last;
    uint64_t* const times = call.run.times;
    uint32_t result_words = 0;
    for (uint32_t next = first; next < last;) {
      call.run.first = next;
      call.run.result_words = call.result_words.data() + result_words;
      call.run.result_word_capacity = static_cast<uint32_t>(call.result_words.size()) - result_words;
      call.run.times = times ? times + (next - first) : nullptr;
      call.error = {};
      call.error.struct_size = sizeof(call.error);
      call.error.node = next;
      const bool good = inner.run(call.run, &call.error);
      result_words += call.run.result_word_count;
      if (good) break;
      const uint32_t failed = call.error.node;
      if (needs.nodes[failed].has_host_results) {
        call.good = false;
        break;
      }
      device.fail({call.run.run_id, failed, runner_error(call.error)});
      next = failed + 1;
    }
    call.run.result_word_count = result_words;
  }

  // Hands memory that an op allocated to the caller. It is released when the device is done with work that uses it.
  tr_buffer hand_over(const tr_buffer& made) {
    struct Owner {
      DelayedDevice* device;
      tr_buffer made;
    };
    const auto release = [](void* owner) {
      const std::unique_ptr<Owner> held(static_cast<Owner*>(owner));
      held->device->enqueue([made = held->made] { made.release(made.owner); });
    };
    return {device_.address(made.data), made.nbytes, new Owner{&device_, made}, release};
  }

  DelayedDevice& device_;
  std::shared_ptr<RunnerProgram> inner_;
  std::shared_ptr<const Needs> needs_;
};

class DelayedRunner final : public Runner {
 public:
  DelayedRunner(DelayedDevice& device, std::unique_ptr<Runner> inner) : device_(device), inner_(std::move(inner)) {}
  ~DelayedRunner() override {
    device_.enqueue_and_wait([this] { inner_ = nullptr; });
  }

  std::string name() const override { return inner_->name() + ", delayed"; }
  bool accepts(const ir::Graph& graph, uint32_t node) override { return inner_->accepts(graph, node); }
  bool has_op(const char* name) override {
    bool has = false;
    device_.enqueue_and_wait([&] { has = inner_->has_op(name); });
    return has;
  }
  void on_idle() override {
    device_.enqueue([this] { inner_->on_idle(); });
  }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    Status status;
    std::unique_ptr<RunnerProgram> loaded;
    device_.enqueue_and_wait([&] { status = inner_->load(request, &loaded); });
    if (status.ok()) *program = std::make_unique<DelayedProgram>(device_, std::move(loaded), request.graph);
    return status;
  }

 private:
  DelayedDevice& device_;
  std::unique_ptr<Runner> inner_;
};

}  // namespace

std::unique_ptr<Runner> make_delayed_runner(DelayedDevice& device, std::unique_ptr<Runner> inner) {
  return std::make_unique<DelayedRunner>(device, std::move(inner));
}

Status make_delayed_plugin(const tr_runner_api* api, int threads, const DelayedDevice::Options& options,
                           std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  auto delayed = std::make_unique<DelayedDevice>(options);
  std::unique_ptr<Runner> plugin;
  Status status = make_plugin_runner(api, {.threads = threads, .memory = &delayed->scratch()}, &plugin);
  if (!status.ok()) return status;
  *runner = make_delayed_runner(*delayed, std::move(plugin));
  *device = std::move(delayed);
  return {};
}

}  // namespace torch_remote::worker::testing
