#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "worker/device/strided_copy.h"
#include "worker/runner/kernel_files.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/gemm_shape.h"
#include "worker/targets/cpu/loops/gemm_call.h"

namespace torch_remote::worker::kernels {

// Chooses how a GEMM is computed: by the loops of gemm_loops.cpp, by oneDNN, or by the library that torch calls (MKL,
// for float32). Shapes are grouped into classes; each class is measured once per machine. One thread uses it.
class GemmChoices {
 public:
  struct Options {
    const GemmLoops* loops = nullptr;
    ParallelFor threads;  // null: the calling thread runs everything
    // Computes a GEMM as tr_matmul::algorithm says (plugin.h): like torch's op, or with oneDNN. If it is null, the
    // choice is made as with `fixed`.
    std::function<bool(const tr_matmul& matmul)> library;
    // If set, nothing is measured, because each process must give the same bits. The loops compute what they support,
    // oneDNN the rest if it can, and torch's library all others.
    bool fixed = false;
    std::string folder;                  // the folder for choices; empty: memory only
    std::string about;                   // processor, libraries, number of threads
    std::function<double()> clock = {};  // seconds; empty: this machine's clock
  };
  enum class Algorithm : uint8_t { kUnknown, kLoops, kLibrary, kOneDnn };

  explicit GemmChoices(Options options);
  ~GemmChoices();

  // Returns kUnknown if the class is not measured yet. A known choice never changes.
  Algorithm algorithm(const GemmShape& shape);
  bool is_fixed() const { return options_.fixed; }
  // The function with which callers compute GEMMs whose algorithm is kOneDnn. GEMMs with kLibrary are left to the ATen
  // plugin, as nodes.
  const std::function<bool(const tr_matmul& matmul)>& library() const { return options_.library; }
  bool wants_measuring() const { return !wanted_.empty(); }
  // Measures the requested classes for about kTimeAtOnce, and at least one round of their algorithms. Further calls
  // continue. A result whose times vary too much is not stored on disk. Returns whether a class was measured to its
  // end.
  bool measure();
  static constexpr double kTimeAtOnce = 5e-3;  // seconds
  // Increases with each class that is measured.
  uint64_t generation() const { return generation_; }

  // The class of a shape, named by the shape that is measured for it. Shapes of a class have similar rows, columns and
  // depth.
  static GemmShape class_of(const GemmShape& shape);

 private:
  class Measurement;
  Algorithm fixed_algorithm(const GemmShape& shape);

  const Options options_;
  const KernelFiles files_;
  std::map<GemmShape, Algorithm> algorithms_;  // by class
  std::deque<GemmShape> wanted_;               // classes that were asked for and are not measured yet
  std::unique_ptr<Measurement> measurement_;   // of the first class of `wanted_`; null before its first round
  std::optional<bool> has_onednn_;             // unknown until it is first needed
  uint64_t generation_ = 0;
};

}  // namespace torch_remote::worker::kernels
