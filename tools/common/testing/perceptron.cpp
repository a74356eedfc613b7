#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "ir/graph.h"
#include "passes/testing/random_program.h"

// perceptron OPS: prints a graph of about OPS ops as text, as a client would dump it before the passes: training steps
// of a small perceptron, with source lines.
int main(int argc, char** argv) {
  using namespace torch_remote;
  const ir::Trace trace = passes::testing::perceptron_program(argc == 2 ? std::strtoul(argv[1], nullptr, 10) : 100);
  ir::Graph graph;
  const Status status = ir::import_trace(trace, trace.survivors(), &graph);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  constexpr const char* kFunctions[] = {"forward", "loss", "backward", "step"};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const char* function = kFunctions[i / 16 % std::size(kFunctions)];
    graph.source_lines.push_back("train.py:" + std::to_string(10 + i / 4 % 64) + " in " + function);
  }
  std::fputs(ir::print(graph).c_str(), stdout);
  return 0;
}
