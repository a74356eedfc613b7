// Executes nothing. It checks that all memory that a node would access exists.
#include <cstdio>
#include <cstring>
#include <memory>

#include "ir/graph.h"
#include "tests/libfuzzer/fuzzer.h"
#include "tests/libfuzzer/runner.h"

struct tr_runner {
  tr_host host;
};

struct tr_program {
  torch_remote::ir::Graph graph;
};

namespace torch_remote::fuzzers {
namespace {

constexpr uint64_t kMostRead = 1 << 16;  // bytes of an operand; of larger ones, the first and last

int fail(tr_error* error, uint32_t node, const char* exception_type, const std::string& message) {
  error->node = node;
  std::snprintf(error->exception_type, sizeof(error->exception_type), "%s", exception_type);
  std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
  return 1;
}

int create(const tr_host* host, int, int, tr_runner** runner, tr_error*) {
  *runner = new tr_runner{*host};
  return 0;
}

void destroy(tr_runner* runner) { delete runner; }

int load(tr_runner*, const uint8_t* bytes, size_t size, const tr_load_options*, tr_program** out, tr_error*) {
  auto program = std::make_unique<tr_program>();
  const Status status = ir::decode_program(bytes, size, &program->graph);
  if (!status.ok()) wrong("the host passed on a program that is refused: " + status.message());
  *out = program.release();
  return 0;
}

void unload(tr_runner*, tr_program* program) { delete program; }

// The byte range [low, high) of a buffer that a view covers.
struct Reach {
  __int128 low = 0, high = 0;
};

Reach reach_of(const ir::View& view, const int64_t* symbols) {
  __int128 low = symbols[view.offset], high = low;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    const __int128 size = symbols[view.sizes[i]], stride = symbols[view.strides[i]];
    if (size < 0) wrong("a size below 0");
    if (size == 0) return {};
    (stride < 0 ? low : high) += (size - 1) * stride;
  }
  const __int128 item = ir::item_size(view.dtype);
  return {low * item, (high + 1) * item};
}

class Interpreter {
 public:
  Interpreter(const tr_runner& runner, const ir::Graph& graph, tr_run& run, tr_error* error)
      : host_(runner.host), graph_(graph), run_(run), error_(error) {
    if (run.buffer_count != graph.buffers.size()) wrong("buffers of another program");
  }

  // Nonzero: an error.
  int node(uint32_t index) {
    const ir::Node& node = graph_.nodes[index];
    for (const ir::Arg& arg : node.args) {
      if (const int result = operand(index, arg, /*write=*/false)) return result;
    }
    for (const ir::Arg& arg : node.results) {
      if (const int result = operand(index, arg, /*write=*/true)) return result;
    }
    return 0;
  }

 private:
  int operand(uint32_t index, const ir::Arg& arg, bool write) {
    for (const ir::Arg& item : arg.items) {
      if (const int result = operand(index, item, write)) return result;
    }
    if (arg.tag != ir::ArgTag::kView) return 0;
    const ir::View& view = graph_.views[arg.a];
    if (view.dynamic) return fail(error_, index, "NotImplementedError", "no data to tell the size by");
    tr_buffer& buffer = run_.buffers[view.buffer];
    const Reach reach = reach_of(view, run_.symbols);
    if (!buffer.data && reach.high > 0 && graph_.buffers[view.buffer].kind == ir::BufferKind::kFresh) {
      const auto nbytes = static_cast<uint64_t>(run_.symbols[graph_.buffers[view.buffer].nbytes]);
      if (host_.allocate(host_.context, nbytes, &buffer) != 0) {
        return fail(error_, index, "OutOfMemoryError", "no memory left");
      }
      std::memset(buffer.data, 0, nbytes);
    }
    if (reach.low < 0 || reach.high > buffer.nbytes) {
      wrong("a view reaches from " + std::to_string(static_cast<int64_t>(reach.low)) + " to " +
            std::to_string(static_cast<int64_t>(reach.high)) + " of a buffer of " + std::to_string(buffer.nbytes) +
            " bytes, in\n" + ir::print(graph_));
    }
    touch(static_cast<uint8_t*>(buffer.data), static_cast<uint64_t>(reach.low), static_cast<uint64_t>(reach.high),
          write);
    return 0;
  }

  static void touch(uint8_t* data, uint64_t low, uint64_t high, bool write) {
    static volatile uint8_t sink;
    const uint64_t step = high - low > kMostRead ? high - low - 1 : 1;
    for (uint64_t at = low; at < high; at += step) {
      sink = data[at];
      if (write) data[at] = static_cast<uint8_t>(sink + 1);
    }
  }

  const tr_host& host_;
  const ir::Graph& graph_;
  tr_run& run_;
  tr_error* error_;
};

int run(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error) {
  run->result_word_count = 0;
  if (run->first > run->last || run->last > program->graph.nodes.size()) wrong("nodes that there are not");
  Interpreter interpreter(*runner, program->graph, *run, error);
  for (uint32_t n = run->first; n < run->last; ++n) {
    if (run->times) run->times[n - run->first] = n;
    if (const int result = interpreter.node(n)) return result;
  }
  if (run->times) run->times[run->last - run->first] = run->last;
  return 0;
}

void parallel_for(tr_runner*, int64_t count, int64_t, void (*body)(void*, int64_t, int64_t), void* context) {
  body(context, 0, count);
}

}  // namespace

uint64_t session_memory() { return 64 << 20; }

const tr_runner_api* runner() {
  static const tr_runner_api api = {
      .struct_size = sizeof(tr_runner_api),
      .abi = TR_RUNNER_ABI,
      .description = "checks",
      .create = create,
      .destroy = destroy,
      .load = load,
      .unload = unload,
      .run = run,
      .allocates_buffer = [](const tr_program*, uint32_t) { return 0; },
      .parallel_for = parallel_for,
      .has_op = [](tr_runner*, const char*) { return 1; },
      .on_idle = [](tr_runner*) {},
      .matmul = nullptr,
      .notify_threads = nullptr,
  };
  return &api;
}

}  // namespace torch_remote::fuzzers
