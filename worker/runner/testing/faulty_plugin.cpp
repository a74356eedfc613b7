#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "worker/runner/plugin.h"

// A plugin with a bug, for tests of the tools that find bugs. $TORCH_REMOTE_TEST_PLUGIN, a correct plugin, does the
// work. $TORCH_REMOTE_TEST_FAULT names the bug:
//   operands  the operands of aten::sub.Tensor are exchanged
//   memory    the result of aten::tanh overwrites a result of aten::sigmoid that is still needed (temporaries only)

struct tr_program {
  tr_program* real = nullptr;
  std::vector<std::pair<uint32_t, uint32_t>> shared;  // The second buffer uses the memory of the first one.
};

namespace {

using namespace torch_remote;

const tr_runner_api* g_real = nullptr;
bool g_operands = false, g_memory = false;

struct Temporary {
  uint32_t buffer, first, last;
};

// Buffers that hold the results of this op and die in the run.
std::vector<Temporary> temporaries(const ir::Graph& graph, std::string_view op) {
  std::vector<Temporary> found;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const ir::Node& node = graph.nodes[n];
    if (ir::op_desc(node.opcode).name != op || node.results.empty() || node.results[0].tag != ir::ArgTag::kView)
      continue;
    const uint32_t buffer = graph.views[node.results[0].a].buffer;
    if (graph.buffers[buffer].survives || graph.buffers[buffer].kind != ir::BufferKind::kFresh) continue;
    Temporary temporary{buffer, n, n};
    for (uint32_t m = n; m < graph.nodes.size(); ++m) {
      ir::for_each_view(graph.nodes[m], [&](uint32_t view, bool) {
        if (graph.views[view].buffer == buffer) temporary.last = m;
      });
    }
    found.push_back(temporary);
  }
  return found;
}

int load(tr_runner* runner, const uint8_t* bytes, size_t size, const tr_load_options* options, tr_program** out,
         tr_error* error) {
  ir::Graph graph;
  if (const Status status = ir::decode_program(bytes, size, &graph); !status) {
    std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
    return 1;
  }
  auto* program = new tr_program;
  for (ir::Node& node : graph.nodes) {
    if (g_operands && ir::op_desc(node.opcode).name == "aten::sub.Tensor") std::swap(node.args[0], node.args[1]);
  }
  if (g_memory) {
    for (const Temporary& a : temporaries(graph, "aten::sigmoid")) {
      for (const Temporary& b : temporaries(graph, "aten::tanh")) {
        if (a.first < b.first && b.first < a.last) program->shared.emplace_back(a.buffer, b.buffer);
      }
    }
  }
  const auto changed = ir::encode_program(graph);
  if (const int failed = g_real->load(runner, changed.data(), changed.size(), options, &program->real, error)) {
    delete program;
    return failed;
  }
  *out = program;
  return 0;
}

void unload(tr_runner* runner, tr_program* program) {
  g_real->unload(runner, program->real);
  delete program;
}

int run(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error) {
  std::vector<std::pair<uint32_t, void*>> moved;
  for (const auto& [from, to] : program->shared) {
    const tr_buffer& source = run->buffers[from];
    tr_buffer& target = run->buffers[to];
    if (!source.data || !target.data || source.nbytes != target.nbytes) continue;
    moved.emplace_back(to, target.data);
    target.data = source.data;
  }
  const int result = g_real->run(runner, program->real, run, error);
  for (const auto& [buffer, data] : moved) run->buffers[buffer].data = data;
  return result;
}

int allocates_buffer(const tr_program* program, uint32_t buffer) {
  return g_real->allocates_buffer(program->real, buffer);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tr_runner_api* torch_remote_runner_api() {
  static const tr_runner_api api = [] {
    const char* path = std::getenv("TORCH_REMOTE_TEST_PLUGIN");
    const char* fault = std::getenv("TORCH_REMOTE_TEST_FAULT");
    void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const auto entry = library ? reinterpret_cast<tr_runner_entry>(dlsym(library, TR_RUNNER_ENTRY)) : nullptr;
    if (!entry || !fault) {
      std::fprintf(stderr, "TORCH_REMOTE_TEST_PLUGIN is no plugin, or TORCH_REMOTE_TEST_FAULT is not set\n");
      std::exit(1);
    }
    g_operands = std::string_view(fault) == "operands";
    g_memory = std::string_view(fault) == "memory";
    g_real = entry();
    tr_runner_api wrapped = *g_real;
    wrapped.load = load;
    wrapped.unload = unload;
    wrapped.run = run;
    wrapped.allocates_buffer = allocates_buffer;
    return wrapped;
  }();
  return &api;
}
