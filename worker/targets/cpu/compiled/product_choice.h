#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "worker/device/strided_copy.h"
#include "worker/runner/kernel_files.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/product_shape.h"
#include "worker/targets/cpu/loops/product_call.h"

namespace torch_remote::worker::kernels {

// Chooses how a GEMM is computed: by the loops of product_loops.h, by oneDNN, or by the library that torch calls (MKL,
// for float32). Shapes are grouped into classes; each class is measured once per machine. One thread uses it.
class ProductChoices {
 public:
  struct Options {
    const ProductLoops* loops = nullptr;
    ParallelFor threads;  // null: the calling thread runs everything
    // Computes a GEMM with a library (tr_product, plugin.h). Null if there is none, and then nothing is chosen.
    std::function<bool(const tr_product& product)> library;
    // Nothing is measured, because each process must give the same bits: the loops where they apply, otherwise oneDNN.
    bool fixed = false;
    std::string folder;                  // the folder for choices; empty: memory only
    std::string about;                   // processor, libraries, number of threads
    std::function<double()> clock = {};  // seconds; empty: this machine's clock
  };
  enum class Way : uint8_t { kUnknown, kLoops, kLibrary, kOneDnn };

  explicit ProductChoices(Options options);

  // Returns kUnknown if the class is not measured yet. A known choice never changes.
  Way way(const ProductShape& shape);
  bool is_fixed() const { return options_.fixed; }
  // The library, for kOneDnn.
  const std::function<bool(const tr_product& product)>& library() const { return options_.library; }
  bool wants_measuring() const { return !wanted_.empty(); }
  // Measures one of the requested classes, which takes some milliseconds. Returns false if there is none.
  bool measure();
  // Increases with each class that is measured.
  uint64_t generation() const { return generation_; }

  // The shape that is measured for its whole class: rows, columns and depth are about the same.
  static ProductShape class_of(const ProductShape& shape);

 private:
  Way fixed_way(const ProductShape& shape);
  Way measured(const ProductShape& shape) const;

  const Options options_;
  const KernelFiles files_;
  std::map<ProductShape, Way> ways_;  // by class
  std::deque<ProductShape> wanted_;
  std::optional<bool> has_onednn_;  // unknown until it is first needed
  uint64_t generation_ = 0;
};

}  // namespace torch_remote::worker::kernels
