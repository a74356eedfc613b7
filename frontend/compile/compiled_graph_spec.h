#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ir/graph.h"

// A graph with what a call of it from Python takes and gives.
namespace torch_remote::frontend {

// An argument of a call. Symbols are those of CompiledGraphSpec::host.
struct GraphInput {
  enum class Kind : uint8_t {
    kTensor,
    kNumber,  // a 0-dim CPU tensor in a tensor's place: its value is a parameter
    kInt,
    kFloat,
    kBool,
    kRandomState,  // a CPU tensor of RemoteGenerator::get_state's form
  };
  Kind kind = Kind::kTensor;
  c10::ScalarType dtype = c10::ScalarType::Float;  // kTensor, kNumber
  // The parameter that the argument gives (complex numbers and random states: two); of a tensor the storage offset.
  ir::Sym param = ir::kNoSym;
  bool written = false;  // kTensor
  // kTensor: what happens to its elements first. kUnused: nothing does, only its sizes matter.
  enum class Elements : uint8_t { kUnused, kOverwritten, kRead };
  Elements elements = Elements::kUnused;
  ir::SourceRef reader;                                   // kRead: the line
  bool conj = false, neg = false;                         // kTensor: lazily
  std::vector<ir::Sym> sizes, strides;                    // kTensor: what the graph was made for
  std::vector<std::pair<uint32_t, ir::Sym>> size_params;  // kTensor: dims that give a parameter
};

// A result of a call.
struct GraphOutput {
  enum class Kind : uint8_t {
    kFresh,        // a view of the index-th new storage
    kInputView,    // a view of the index-th argument
    kInput,        // the index-th argument itself
    kInt,          // the number `offset`
    kRandomState,  // a CPU tensor: where the random numbers at the parameter `offset` came from
    kSame,         // the index-th result again: the same object
    kObject,       // `object`: None or a constant
  };
  Kind kind = Kind::kObject;
  uint32_t index = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool conj = false, neg = false;  // lazily
  std::vector<ir::Sym> sizes, strides;
  ir::Sym offset = ir::kNoSym;
  pybind11::object object;
};

// Random numbers that a call draws, in order: the parameters `seed` and seed + 1, for as many elements as the largest
// of these counts.
struct GraphRandom {
  ir::Sym seed;
  std::vector<ir::Sym> elements;
};

struct CompiledGraphSpec {
  c10::DeviceIndex device = 0;
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // of its nodes
  // The same parameters, and the expressions that a call needs to know on this side.
  ir::Graph host;
  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;
  std::vector<GraphRandom> randoms;
  std::vector<ir::Sym> fresh_nbytes;  // of the new storages, in the order of their ids
};

}  // namespace torch_remote::frontend
