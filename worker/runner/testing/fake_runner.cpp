#include "worker/runner/testing/fake_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "ir/graph.h"

struct tr_runner {
  tr_host host;
};

struct tr_program {
  torch_remote::ir::Graph graph;
};

namespace torch_remote::worker::testing {
namespace {

int g_runs = 0;
int g_changes = 0;

std::string_view op_name(const ir::Node& node) { return ir::op_desc(node.opcode).name; }

int fail(tr_error* error, uint32_t node, const char* exception_type, const char* message) {
  error->node = node;
  std::snprintf(error->exception_type, sizeof(error->exception_type), "%s", exception_type);
  std::snprintf(error->message, sizeof(error->message), "%s", message);
  return 1;
}

int create(const tr_host* host, int, int, tr_runner** runner, tr_error*) {
  *runner = new tr_runner{*host};
  return 0;
}

void destroy(tr_runner* runner) { delete runner; }

int load(tr_runner*, const uint8_t* bytes, size_t size, const tr_load_options*, tr_program** out, tr_error* error) {
  auto program = std::make_unique<tr_program>();
  const Status status = ir::decode_program(bytes, size, &program->graph);
  if (!status.ok()) return fail(error, 0, "RuntimeError", status.message().c_str());
  for (const ir::Node& node : program->graph.nodes) {
    if (op_name(node) == "aten::cos") return fail(error, 0, "NotImplementedError", "no cosine here");
  }
  *out = program.release();
  return 0;
}

void unload(tr_runner*, tr_program* program) { delete program; }

class Interpreter {
 public:
  Interpreter(tr_runner* runner, const ir::Graph& graph, tr_run& run, tr_error* error)
      : host_(runner->host), graph_(graph), run_(run), error_(error) {}

  int node(uint32_t index) {
    const ir::Node& node = graph_.nodes[index];
    const std::string_view name = op_name(node);
    for (const ir::Arg& arg : node.args) {
      if (arg.tag == ir::ArgTag::kView && !ready(arg.a)) return out_of_memory(index);
    }
    if (name == "aten::neg_") return fail(error_, index, "IndexError", "index out of range in self");
    if (name == "test::no_memory") throw std::bad_alloc();
    if (name == "test::check") return fail(error_, index, "RuntimeError", "it does not hold");
    if (name == "aten::equal") {
      run_.result_words[run_.result_word_count++] =
          std::equal(data(node.args[0].a), data(node.args[0].a) + count(node.args[0].a), data(node.args[1].a));
      return 0;
    }
    if (name == "aten::nonzero") return nonzero(node, index);
    const bool in_place = name == "aten::add_.Tensor" || name == "aten::zero_" || name == "aten::copy_";
    const uint32_t result = in_place ? node.args[0].a : node.results[0].a;
    if (!ready(result)) return out_of_memory(index);
    const float* a = data(node.args[0].a);
    const float* b = node.args.size() > 1 && node.args[1].tag == ir::ArgTag::kView ? data(node.args[1].a) : a;
    float* out = data(result);
    for (int64_t i = 0; i < count(result); ++i) {
      out[i] = name == "aten::zero_"                         ? 0
               : name == "aten::copy_"                       ? b[i]
               : name == "aten::mul.Tensor"                  ? a[i] * b[i]
               : name == "aten::relu"                        ? std::max(a[i], 0.f)
               : name == "test::make" || name == "aten::exp" ? a[i]
                                                             : a[i] + b[i];
    }
    return name == "aten::exp" ? fail(error_, index, "ValueError", "no exponentials here") : 0;
  }

 private:
  int out_of_memory(uint32_t index) { return fail(error_, index, "OutOfMemoryError", "no memory left"); }

  bool ready(uint32_t view) {
    const uint32_t b = graph_.views[view].buffer;
    if (run_.buffers[b].data) return true;
    const auto nbytes = static_cast<uint64_t>(run_.symbols[graph_.buffers[b].nbytes]);
    return host_.allocate(host_.context, nbytes, &run_.buffers[b]) == 0;
  }

  int nonzero(const ir::Node& node, uint32_t index) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < count(node.args[0].a); ++i) {
      if (data(node.args[0].a)[i] != 0) found.push_back(i);
    }
    tr_buffer& buffer = run_.buffers[graph_.views[node.results[0].a].buffer];
    if (host_.allocate(host_.context, found.size() * 8, &buffer) != 0) return out_of_memory(index);
    if (!found.empty()) std::memcpy(buffer.data, found.data(), found.size() * 8);
    for (const int64_t word : std::vector<int64_t>{4, 2, static_cast<int64_t>(found.size()), 1, 1, 1}) {
      run_.result_words[run_.result_word_count++] = word;
    }
    return 0;
  }

  float* data(uint32_t view) const {
    return static_cast<float*>(run_.buffers[graph_.views[view].buffer].data) + run_.symbols[graph_.views[view].offset];
  }
  int64_t count(uint32_t view) const {
    int64_t n = 1;
    for (const ir::Sym size : graph_.views[view].sizes) n *= run_.symbols[size];
    return n;
  }

  const tr_host& host_;
  const ir::Graph& graph_;
  tr_run& run_;
  tr_error* error_;
};

int run(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error) {
  ++g_runs;
  g_changes += run->symbols_changed;
  run->result_word_count = 0;
  Interpreter interpreter(runner, program->graph, *run, error);
  const auto note_time = [&](uint32_t n) {
    if (run->times) {
      run->times[n - run->first] = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    }
  };
  for (uint32_t n = run->first; n < run->last; ++n) {
    note_time(n);
    if (const int result = interpreter.node(n)) return result;
  }
  note_time(run->last);
  return 0;
}

int allocates_buffer(const tr_program* program, uint32_t buffer) {
  for (const ir::Node& node : program->graph.nodes) {
    if (op_name(node) != "test::make" && op_name(node) != "aten::nonzero") continue;
    if (program->graph.views[node.results[0].a].buffer == buffer) return 1;
  }
  return 0;
}

void parallel_for(tr_runner*, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  for (int64_t begin = 0; begin < count; begin += grain) body(context, begin, std::min(begin + grain, count));
}

}  // namespace

const tr_runner_api* fake_runner() {
  static const tr_runner_api api = {
      .struct_size = sizeof(tr_runner_api),
      .abi = TR_RUNNER_ABI,
      .description = "fake",
      .create = create,
      .destroy = destroy,
      .load = load,
      .unload = unload,
      .run = run,
      .allocates_buffer = allocates_buffer,
      .parallel_for = parallel_for,
      .has_op = [](tr_runner*, const char* name) -> int {
        if (std::string_view(name) == "test::no_memory") throw std::bad_alloc();
        return ir::find_op(name) != ir::kInvalidOpcode;
      },
      .on_idle = [](tr_runner*) {},
      .matmul = nullptr,
      .notify_threads = nullptr,
  };
  return &api;
}

int runs() { return g_runs; }
int runs_with_changes() { return g_changes; }

}  // namespace torch_remote::worker::testing
