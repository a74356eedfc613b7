#include "worker/program.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace torch_remote::worker {
namespace {

constexpr uint64_t kStageBytes = 8 << 20;

void describe_operand(const ir::Graph& graph, const ir::Arg& arg, const std::vector<int64_t>& values,
                      std::string* out) {
  const auto separate = [&] {
    if (out->back() != '(' && out->back() != '[') *out += ", ";
  };
  switch (arg.tag) {
    case ir::ArgTag::kView: {
      const ir::View& view = graph.views[arg.a];
      separate();
      *out += ir::name(view.dtype);
      *out += '[';
      for (size_t i = 0; i < view.sizes.size(); ++i) {
        if (i) *out += ", ";
        *out += values.empty() ? "?" : std::to_string(values[view.sizes[i]]);
      }
      *out += ']';
      break;
    }
    case ir::ArgTag::kScalarTensor:
      separate();
      *out += ir::name(static_cast<ir::DType>(arg.b & 0xFF));
      *out += "[]";
      break;
    case ir::ArgTag::kList: {
      bool tensors = false;
      for (const ir::Arg& item : arg.items) {
        tensors |= item.tag == ir::ArgTag::kView || item.tag == ir::ArgTag::kScalarTensor;
      }
      if (!tensors) break;
      separate();
      *out += '[';
      constexpr size_t kShown = 8;
      for (size_t i = 0; i < arg.items.size() && i < kShown; ++i) describe_operand(graph, arg.items[i], values, out);
      if (arg.items.size() > kShown) *out += ", and " + std::to_string(arg.items.size() - kShown) + " more";
      *out += ']';
      break;
    }
    default:
      break;
  }
}

void find_updates(LoadedProgram& program) {
  const ir::Graph& graph = program.graph;
  for (const ir::Buffer& buffer : graph.buffers) program.outlives.push_back(buffer.survives);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const ir::Node& node = graph.nodes[n];
    if (node.in_place && program.outlives[graph.views[node.results[0].a].buffer]) {
      program.outlives[graph.views[node.args[0].a].buffer] = program.updates = true;
    }
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
      program.updates = program.updates || (writes && program.outlives[graph.views[view].buffer]);
    });
  }
}

Status no_memory(size_t size) {
  return {ErrorCode::kOutOfMemory,
          "remote: the worker has no memory left for a program of " + std::to_string(size) + " bytes",
          "OutOfMemoryError"};
}

// What a program takes at most while it is decoded, for each of its bytes.
constexpr uint64_t kDecoded = 16;

// What a number takes that names no program.
constexpr uint64_t kNumber = 4096;

// Bytes that a program takes here and in the executor, about: more than in fact, so that nothing is free.
uint64_t footprint(const ir::Graph& graph, size_t words) {
  uint64_t args = 0, dims = 0, text = 0;
  for (const ir::Node& node : graph.nodes) {
    for (const std::vector<ir::Arg>* all : {&node.args, &node.results}) {
      args += all->size();
      for (const ir::Arg& arg : *all) {
        args += arg.items.size();
        text += arg.text.size();
      }
    }
  }
  for (const ir::View& view : graph.views) dims += view.sizes.size();
  for (const std::string& source : graph.sources) text += sizeof(source) + source.size();
  return kNumber + 32 * uint64_t{graph.params} + 64 * graph.exprs.size() + 320 * graph.buffers.size() +
         480 * graph.views.size() + 32 * dims + 1024 * graph.nodes.size() + 160 * args + 2 * text +
         sizeof(int64_t) * words;
}

void load(LoadedProgram& program, const uint8_t* bytes, size_t size, bool tune) {
  ir::Graph& graph = program.graph;
  program.status = ir::decode_program(bytes, size, &graph);
  if (!program.status.ok()) return;
  // A dynamic result: dtype, rank, at most 64 sizes. A host result: tag and two words.
  for (const ir::Node& node : graph.nodes) program.words += node.results.size() * (2 + ir::kMaxRank);
  const uint64_t takes = footprint(graph, program.words);
  if (!program.memory->charge(takes)) {
    program.status = no_memory(size);
    graph = {};
    return;
  }
  program.charged = takes;
  program.decoded = true;
  const size_t count = graph.buffers.size();
  program.params.assign(graph.params, 0);
  program.lifetimes = ir::find_lifetimes(graph);
  program.written = ir::written_buffers(graph);
  program.created.assign(count, false);
  program.in_arena.assign(count, false);
  program.dead_after.resize(graph.nodes.size());
  for (uint32_t b = 0; b < count; ++b) {
    const ir::Buffer& buffer = graph.buffers[b];
    if (buffer.kind == ir::BufferKind::kInput) {
      program.inputs.push_back(b);
    } else if (buffer.survives) {
      program.survivors.push_back(b);
    } else if (program.lifetimes[b].last != ir::kNoNode) {
      program.dead_after[program.lifetimes[b].last].push_back(b);
    }
  }
  find_updates(program);
  program.bindings.ids.assign(program.inputs.size(), 0);
  tr_error error{};
  error.struct_size = sizeof(error);
  if (program.api->load(program.executor, bytes, size, tune, &program.handle, &error) != 0) {
    program.handle = nullptr;
    program.status = executor_error(error);
    return;
  }
  for (uint32_t b = 0; b < count; ++b) {
    program.created[b] = program.api->creates_buffer(program.handle, b) != 0;
    const ir::Buffer& buffer = graph.buffers[b];
    program.in_arena[b] = buffer.kind == ir::BufferKind::kFresh && !buffer.survives && !program.created[b];
  }
}

}  // namespace

Status executor_error(const tr_error& error) {
  const bool memory = std::string_view(error.kind) == "OutOfMemoryError";
  return {memory ? ErrorCode::kOutOfMemory : ErrorCode::kOpFailed, error.message, error.kind};
}

LoadedProgram::~LoadedProgram() {
  if (handle) api->unload(executor, handle);
  if (charged != 0) memory->discharge(charged);
}

std::unique_ptr<LoadedProgram> load_program(uint32_t number, const tr_executor_api* api, tr_executor* executor,
                                            CachingAllocator* memory, std::span<const std::byte> bytes, bool tune) {
  const auto make = [&] {
    auto program = std::make_unique<LoadedProgram>();
    program->number = number;
    program->api = api;
    program->executor = executor;
    program->memory = memory;
    return program;
  };
  // Held while it is decoded.
  const uint64_t decoding = kDecoded * bytes.size();
  const bool room = memory->charge(decoding);
  std::unique_ptr<LoadedProgram> program;
  if (room) {
    try {
      program = make();
      // A copy: what is verified must be what is decoded.
      const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
      const std::vector<uint8_t> copy(data, data + bytes.size());
      load(*program, copy.data(), copy.size(), tune);
    } catch (const std::bad_alloc&) {
      program = nullptr;
    }
    memory->discharge(decoding);
  }
  if (!program) {
    program = make();
    program->status = no_memory(bytes.size());
  }
  if (program->charged == 0) {  // not even decoded, but its number is taken
    program->charged = kNumber;
    memory->charge_anyway(kNumber);
  }
  return program;
}

void find_stages(LoadedProgram& program) {
  const auto count = static_cast<uint32_t>(program.graph.nodes.size());
  std::vector<std::vector<uint32_t>> dying(count), born(count);
  program.stages.assign(1, {});
  for (uint32_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    if (!program.graph.buffers[b].survives && program.lifetimes[b].last != ir::kNoNode) {
      dying[program.lifetimes[b].last].push_back(i);
    }
  }
  for (const uint32_t b : program.survivors) {
    if (program.created[b]) continue;
    if (program.lifetimes[b].first == ir::kNoNode) {
      program.stages[0].allocate.push_back(b);
    } else {
      born[program.lifetimes[b].first].push_back(b);
    }
  }
  uint64_t dead = 0;
  for (uint32_t n = 0; n < count; ++n) {
    if (dead >= kStageBytes) {
      program.stages.push_back({n, n, {}, {}});
      dead = 0;
    }
    Stage& stage = program.stages.back();
    stage.last = n + 1;
    stage.allocate.insert(stage.allocate.end(), born[n].begin(), born[n].end());
    for (const uint32_t i : dying[n]) {
      stage.release.push_back(i);
      dead += program.nbytes[program.inputs[i]];
    }
  }
}

std::string describe_node(const ir::Graph& graph, const ir::Node& node, const std::vector<int64_t>& values) {
  std::string out(ir::op_desc(node.opcode).name);
  out += '(';
  for (const ir::Arg& arg : node.args) describe_operand(graph, arg, values, &out);
  return out + ')';
}

}  // namespace torch_remote::worker
