#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/lower/launch.h"
#include "worker/device/buffer.h"
#include "worker/device/strided_copy.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"

namespace torch_remote::worker::kernels {

// Launches none of which touches what another one writes, with all that a run of them needs beside buffers: made when
// sizes or strides change, used in each run.
class Launches {
 public:
  void clear();
  // Both stay where they are; of the launch only scalars may change.
  void add(const codegen::Launch& launch, const CompiledKernel& kernel);

  // That are gone through: of about 600 ps each.
  double points() const;

  // Whether kernels whose results go past the caches (codegen::cpu::Variant) may do the launch: strides of what it
  // stores to are as these want them, and nothing of it is packed or named by indices.
  static bool may_stream(const codegen::Launch& launch);
  // Whether it computes so little for each byte that it loads or stores that its time is memory's.
  static bool waits_for_memory(const codegen::Launch& launch);
  // Bytes that it stores, beside sums over rows.
  static uint64_t stored_bytes(const codegen::Launch& launch);
  // Whether, of kernels that may stream, what they store to lies as they want it in this run, and is not what they
  // read: that is in the caches.
  bool may_stream_to(std::span<const tr_buffer> buffers) const;

  // Bytes that a run needs beside buffers, of the launch that needs most: a thread's, and what is added up at the end.
  size_t scratch() const;

  // Runs them; all kernels are ready. `buffers` are those of the graph. What a launch is cut into depends on sizes
  // only, so that sums do too: `parallel` decides nothing but who does what. Launches without sums over rows are dealt
  // to threads all at once. An index out of its bounds: *failure says which.
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel, codegen::cpu::IndexRecord* failure);

 private:
  friend class LaunchRun;

  struct Prepared {
    const codegen::Launch* launch = nullptr;
    const CompiledKernel* kernel = nullptr;
    int64_t rows = 1, row_points = 1;
    int64_t lines = 1;  // places of the outer dims
    std::span<const int64_t> columns;
    // What it is dealt in: rows, of all places of the outer dims, or the columns of a single row.
    bool by_columns = false;
    bool in_order = false;  // all rows by one thread, as they may write the same places
    int64_t piece = 1;      // columns of a unit
    int64_t units = 0, unit_points = 1;
    uint32_t turns = 1;       // with those after it, whose rows are the same: done in turn, some rows at a time
    int64_t first_point = 0;  // of all launches that are dealt at once, before this one
    size_t first_operand = 0;
    std::vector<uint32_t> item_sizes;      // of operands
    std::vector<int64_t> strides, bounds;  // as Call has them
    std::vector<size_t> kept;              // where lines of kept values begin
    std::vector<int64_t> total_counts;     // elements of a chunk's line of each total, and its bytes
    std::vector<size_t> total_lines;
    size_t kept_bytes = 0;
    // Reductions over rows: rows of a chunk, chunks of that size, and with what remains.
    int64_t chunk = 0, full_chunks = 0, chunks = 0;
    // Operands that are packed, of so many rows and columns at a time.
    struct Packed {
      uint32_t operand = 0;
      bool loads = false, stores = false;
    };
    std::vector<Packed> packed;
    std::vector<uint32_t> zeroed;      // operands that are set to 0 first
    std::vector<size_t> first_stride;  // of each operand, in `strides`
    int64_t packed_rows = 0, packed_columns = 0, packed_line = 0;
  };
  std::vector<Prepared> list_;
  std::vector<uint32_t> dealt_;  // those that are dealt at once
  int64_t dealt_points_ = 0;
  bool streams_ = false;     // some kernel's results go past the caches
  std::vector<void*> data_;  // of all operands: the element at place 0; of the run that goes on
};

}  // namespace torch_remote::worker::kernels
