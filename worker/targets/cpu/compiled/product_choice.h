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

// Which products the loops of product_loops.h do, which ones oneDNN, and which ones are left to what torch calls (MKL,
// for float32): what was measured to be faster, by classes of shapes, once for a machine. Used by one thread.
class ProductChoices {
 public:
  struct Options {
    const ProductLoops* loops = nullptr;
    ParallelFor threads;  // null: its caller's thread
    // A product by a library (tr_product, plugin.h); null: there is none, and nothing to choose.
    std::function<bool(const tr_product& product)> library;
    // Nothing is measured, as the same bits are wanted in each process: the loops do what they may, else oneDNN.
    bool fixed = false;
    std::string folder;                  // where choices are kept; empty: only in memory
    std::string about;                   // processor, library, threads
    std::function<double()> clock = {};  // seconds; empty: those of the machine
  };
  enum class Way : uint8_t { kUnknown, kLoops, kLibrary, kOneDnn };

  explicit ProductChoices(Options options);

  // kUnknown: it will be measured. Once it is known, it stays.
  Way way(const ProductShape& shape);
  bool is_fixed() const { return options_.fixed; }
  // Of kOneDnn.
  const std::function<bool(const tr_product& product)>& library() const { return options_.library; }
  bool wants_measuring() const { return !wanted_.empty(); }
  // Measures one of the classes that were asked for, some milliseconds. False: there is none.
  bool measure();
  // Grows with what becomes known.
  uint64_t generation() const { return generation_; }

  // The shape that is measured for all of its class: rows, columns and depth of about the same size.
  static ProductShape class_of(const ProductShape& shape);

 private:
  Way fixed_way(const ProductShape& shape);
  Way measured(const ProductShape& shape) const;

  const Options options_;
  const KernelFiles files_;
  std::map<ProductShape, Way> ways_;  // of classes
  std::deque<ProductShape> wanted_;
  std::optional<bool> has_onednn_;  // once somebody asked
  uint64_t generation_ = 0;
};

}  // namespace torch_remote::worker::kernels
