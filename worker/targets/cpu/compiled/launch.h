#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/lower/launch.h"
#include "worker/device/buffer.h"
#include "worker/device/strided_copy.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"

namespace torch_remote::worker::kernels {

// Prepared launches, and the memory that a run needs in addition to the graph's buffers. No launch accesses memory that
// another one writes. They are prepared when sizes or strides change, and used by each run.
class Launches {
 public:
  void clear();
  // Both arguments must outlive this object. Only the launch's scalars may change.
  void add(const codegen::Launch& launch, const CompiledKernel& kernel);

  // The work in points: rows * columns * outer positions, over all launches. A point takes about 600 ps.
  double points() const;

  // Whether kernels with streaming stores (codegen::cpu::Variant) can execute the launch: the strides of its stores
  // fit, and no stored operand is packed or written at indices.
  static bool may_stream(const codegen::Launch& launch);
  // Whether the launch computes so little per byte that memory bandwidth limits it.
  static bool waits_for_memory(const codegen::Launch& launch);
  // Bytes that the launch stores, without sums over rows.
  static uint64_t stored_bytes(const codegen::Launch& launch);
  // For launches that may stream: whether the results' addresses are aligned as streaming stores need in this run.
  // Results that are also operands are excluded, because they are in the caches.
  bool may_stream_to(std::span<const tr_buffer> buffers) const;

  // Bytes that a run needs in addition to the buffers: one thread's scratch memory and the totals, of the launch that
  // needs most.
  size_t scratch() const;

  // Runs the launches; all kernels must be ready. `buffers` are the graph's. The split into parts depends on sizes
  // alone, so sums do too: `parallel` only assigns parts to threads. Launches without sums over rows are assigned to
  // threads together. If an index is out of bounds, *failure describes it.
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel, codegen::cpu::IndexRecord* failure);

 private:
  friend class LaunchRun;

  struct Prepared {
    const codegen::Launch* launch = nullptr;
    const CompiledKernel* kernel = nullptr;
    int64_t rows = 1, row_points = 1;
    int64_t lines = 1;  // number of positions along the outer dims (codegen::Launch::outer)
    std::span<const int64_t> columns;
    // The units assigned to threads: rows over all outer dims, or columns of a single row.
    bool by_columns = false;
    bool needs_row_order = false;  // one thread runs all rows, as they may write the same elements
    int64_t piece = 1;             // columns per unit
    int64_t units = 0, unit_points = 1;
    // number of launches, from this one on, that have the same rows and alternate after every few rows
    uint32_t interleaved = 1;
    int64_t first_point = 0;  // sum over the launches that are assigned together, before this one
    size_t first_operand = 0;
    std::vector<uint32_t> item_sizes;      // per operand
    std::vector<int64_t> strides, bounds;  // as in Call
    std::vector<size_t> saved_values;      // offsets of the saved values' lines
    std::vector<int64_t> total_counts;     // per total: elements of a chunk's line, and (total_lines) its bytes
    std::vector<size_t> total_lines;
    size_t saved_bytes = 0;
    // Reductions over rows: rows per chunk, number of chunks of that size, and of all chunks with the remainder.
    int64_t chunk = 0, full_chunks = 0, chunks = 0;
    // The packed operands, and how many rows and columns are packed at a time.
    struct Packed {
      uint32_t operand = 0;
      bool loads = false, stores = false;
    };
    std::vector<Packed> packed;
    std::vector<uint32_t> zeroed;      // operands that are cleared first
    std::vector<size_t> first_stride;  // per operand: index in `strides`
    int64_t packed_rows = 0, packed_columns = 0, packed_line = 0;
  };
  std::vector<Prepared> list_;
  std::vector<uint32_t> assigned_;  // launches that are assigned together
  int64_t assigned_points_ = 0;
  bool streams_ = false;     // some kernel uses streaming stores
  std::vector<void*> data_;  // addresses of all operands' first elements, in the current run
};

}  // namespace torch_remote::worker::kernels
