// Decodes bytes as a program. What the decoder accepts must verify and survive round trips through text and program
// form. Each pass must give a graph that verifies and that the same pass leaves unchanged.
#include "ir/graph.h"
#include "passes/pass.h"
#include "tests/libfuzzer/fuzzer.h"
#include "tests/libfuzzer/ignore_signatures.h"

namespace torch_remote::fuzzers {
namespace {

void check(const char* what, const Status& status, const ir::Graph& graph) {
  if (!status.ok()) wrong(std::string(what) + ": " + status.message() + "\n" + ir::print(graph));
}

void round_trips(const ir::Graph& graph) {
  ir::Graph back;
  check("its text does not parse", ir::parse_graph(ir::print(graph), &back), graph);
  if (!(back == graph)) wrong("its text is another graph:\n" + ir::print(graph) + ir::print(back));
  const std::vector<uint8_t> program = ir::encode_program(graph);
  check("its program is refused", ir::decode_program(program.data(), program.size(), &back), graph);
  if (!(back == graph)) wrong("its program is another graph:\n" + ir::print(graph) + ir::print(back));
}

void run_passes(ir::Graph graph) {
  for (const passes::Pass& pass : passes::pipeline()) {
    const ir::Graph before = graph;
    const std::string name(pass.name);
    check((name + " fails").c_str(), pass.run(graph, {}), before);
    check((name + " breaks it").c_str(), ir::verify(graph), before);
    ir::Graph again = graph;
    check((name + " fails the second time").c_str(), pass.run(again, {}), before);
    if (!(again == graph))
      wrong(name + " changes it again:\n" + ir::print(before) + ir::print(graph) + ir::print(again));
  }
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote;
  std::vector<uint8_t> bytes(data, data + size);
  fuzzers::ignore_signatures(bytes);
  ir::Graph graph;
  if (!ir::decode_program(bytes.data(), size, &graph).ok()) return fuzzers::count_outcome(false);
  if (const Status status = ir::verify(graph); !status.ok()) fuzzers::wrong("accepted, but " + status.message());
  fuzzers::round_trips(graph);
  fuzzers::run_passes(std::move(graph));
  return fuzzers::count_outcome(true);
}
