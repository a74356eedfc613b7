#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ir/graph.h"

// A graph together with the arguments and results of a call from Python.
namespace torch_remote::frontend {

// An argument of a call. All symbols are those of CompiledGraphSpec::host.
struct GraphInput {
  enum class Kind : uint8_t {
    kTensor,
    kNumber,  // a 0-dim CPU tensor used as an operand; its value is a parameter
    kInt,
    kFloat,
    kBool,
    kRandomState,  // a CPU tensor in the format of RemoteGenerator::get_state
  };
  Kind kind = Kind::kTensor;
  c10::ScalarType dtype = c10::ScalarType::Float;  // kTensor, kNumber
  // The parameter that the argument sets; complex numbers and random states set two. For a tensor it is the storage
  // offset.
  ir::Sym param = ir::kNoSym;
  bool written = false;  // kTensor
  // kTensor: the first access to its elements. kUnused means that only its sizes matter. kOverwritten means that the
  // first access writes the whole input without reading it; kRead means any other access.
  enum class Elements : uint8_t { kUnused, kOverwritten, kRead };
  Elements elements = Elements::kUnused;
  ir::SourceRef reader;                                   // kRead: source line of the first access
  bool conj = false, neg = false;                         // kTensor: lazy
  std::vector<ir::Sym> sizes, strides;                    // kTensor: those that the graph expects
  std::vector<std::pair<uint32_t, ir::Sym>> size_params;  // kTensor: dims that set a parameter
};

// A result of a call.
struct GraphOutput {
  enum class Kind : uint8_t {
    kFresh,        // a view of the index-th new storage
    kInputView,    // a view of the index-th input
    kInput,        // the index-th input itself, as Python passed it
    kInt,          // the number `offset`
    kRandomState,  // a CPU tensor with a generator's state: its seed is the symbol `offset`, its position offset + 1
    kSame,         // the same object as the index-th result
    kObject,       // `object`: None or a constant
  };
  Kind kind = Kind::kObject;
  uint32_t index = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool conj = false, neg = false;  // lazy
  std::vector<ir::Sym> sizes, strides;
  ir::Sym offset = ir::kNoSym;
  pybind11::object object;
};

// Random numbers that a call draws, in order. They set the parameters `seed` and seed + 1. The generator advances for
// as many elements as the largest of `elements`.
struct GraphRandom {
  ir::Sym seed;
  std::vector<ir::Sym> elements;
};

struct CompiledGraphSpec {
  c10::DeviceIndex device = 0;
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // indexed by ir::Node::record
  // Has no nodes: only the parameters of `graph`, and the expressions whose values the client needs at a call.
  ir::Graph host;
  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;
  std::vector<GraphRandom> randoms;
  std::vector<ir::Sym> fresh_nbytes;  // of the new storages, in the order of their ids
};

}  // namespace torch_remote::frontend
