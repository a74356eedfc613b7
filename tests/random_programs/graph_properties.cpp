#include "tests/random_programs/graph_properties.h"

#include <vector>

#include "ir/graph.h"
#include "passes/pass.h"
#include "tests/random_programs/graph_inputs.h"

namespace torch_remote::fuzz {
namespace {

// Runs a pass on `graph`, which must verify. Returns what is wrong, or an empty string.
std::string check_pass(const passes::Pass& pass, ir::Graph& graph) {
  const std::string before = ir::print(graph);
  if (const Status status = pass.run(graph, {}); !status.ok()) return " fails: " + status.message() + "\n" + before;
  if (const Status status = ir::verify(graph); !status.ok()) return " breaks it: " + status.message() + "\n" + before;
  ir::Graph again = graph;
  if (!pass.run(again, {}).ok()) return " fails the second time\n" + before;
  if (again == graph) return {};
  return " changes it again:\n" + before + ir::print(graph) + ir::print(again);
}

// `graph` must verify. Returns what is wrong, or an empty string.
std::string check_graph(const ir::Graph& graph) {
  const std::string text = ir::print(graph);
  ir::Graph back;
  if (const Status status = ir::parse_graph(text, &back); !status.ok()) {
    return "its text does not parse: " + status.message() + "\n" + text;
  }
  if (!(back == graph)) return "its text is another graph:\n" + text + ir::print(back);
  const std::vector<uint8_t> program = ir::encode_program(graph);
  if (const Status status = ir::decode_program(program.data(), program.size(), &back); !status.ok()) {
    return "its program is refused: " + status.message() + "\n" + text;
  }
  if (!(back == graph)) return "its program is another graph:\n" + text + ir::print(back);
  for (const passes::Pass& pass : passes::pipeline()) {
    const std::string wrong = check_pass(pass, back);
    if (!wrong.empty()) return std::string("pass ").append(pass.name).append(wrong).append("\n").append(text);
  }
  return {};
}

}  // namespace

std::string check_text(uint64_t seed, Tally* tally) {
  Rng rng(seed);
  const std::string text = damaged_text(rng);
  ++tally->inputs;
  ir::Graph graph;
  if (!ir::parse_graph(text, &graph).ok()) return {};
  ++tally->read;
  if (ir::print(graph).empty()) return "no text";
  if (!ir::verify(graph).ok()) return {};
  ++tally->valid;
  const std::string wrong = check_graph(graph);
  return wrong.empty() ? wrong : "text of seed " + std::to_string(seed) + ": " + wrong + "input:\n" + text;
}

std::string check_program(uint64_t seed, Tally* tally) {
  Rng rng(seed);
  const std::vector<uint8_t> program = damaged_program(rng);
  ++tally->inputs;
  ir::Graph graph;
  if (!ir::decode_program(program.data(), program.size(), &graph).ok()) return {};
  ++tally->read;
  if (const Status status = ir::verify(graph); !status.ok()) {
    return "program of seed " + std::to_string(seed) + ": accepted, but " + status.message();
  }
  ++tally->valid;
  const std::string wrong = check_graph(graph);
  return wrong.empty() ? wrong : "program of seed " + std::to_string(seed) + ": " + wrong;
}

}  // namespace torch_remote::fuzz
