#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"
#include "worker/collectives/reduction.h"

// Collective ops of a group: each rank calls the same ops in the same order. Tensors are contiguous memory of this
// process.
//
// Data is sent directly to the ranks that need it. A reduction is a pairwise exchange, in which each rank gets its part
// of all tensors and combines them in the order of the ranks. An all-gather of the parts follows (Thakur, Rabenseifner
// and Gropp, Optimization of Collective Communication Operations in MPICH, 2005). So a rank sends 2 (size - 1) / size
// of a tensor, as in a ring, in two steps. All ranks get the same bits, which depend only on the tensors.
namespace torch_remote::worker {

class Collectives {
 public:
  // `sequence` is the op's number, the same on all ranks. If a rank left an op out, the numbers differ, and the op
  // fails.
  Collectives(Mesh& mesh, uint64_t sequence, const OpLimits& limits)
      : mesh_(mesh), sequence_(sequence), limits_(limits) {}

  using Bytes = std::span<std::byte>;
  using Source = std::span<const std::byte>;

  // `data` is operand and result.
  Status all_reduce(ir::DType dtype, Reduction reduction, Bytes data);
  // The root gets the result; the other ranks keep their data.
  Status reduce(ir::DType dtype, Reduction reduction, int root, Bytes data);
  Status broadcast(ir::DType dtype, int root, Bytes data);
  // `output` holds all inputs, in the order of the ranks.
  Status all_gather(ir::DType dtype, Source input, Bytes output);
  // `input` has the size of one output per rank.
  Status reduce_scatter(ir::DType dtype, Reduction reduction, Source input, Bytes output);
  // The sizes are the bytes for and from each rank; the data is in the order of the ranks.
  Status all_to_all(ir::DType dtype, Source input, std::span<const uint64_t> input_sizes, Bytes output,
                    std::span<const uint64_t> output_sizes);
  // As all_gather(), but only the root has an output.
  Status gather(ir::DType dtype, int root, Source input, Bytes output);
  // Only the root has an input.
  Status scatter(ir::DType dtype, int root, Source input, Bytes output);
  // Returns when all ranks have called it.
  Status barrier();

 private:
  struct Part {
    size_t begin = 0, size = 0;  // Bytes.
  };
  Part part_of(size_t nbytes, size_t item_size, int rank) const;
  // Combines parts[rank] of all ranks' `input` into `output`, where `rank` is this rank.
  Status combine(const Label& label, Source input, std::span<const Part> parts, Bytes output);
  // Fills `output`: parts[i] comes from rank i. This rank's part is there already.
  Status share(const Label& label, Bytes output, std::span<const Part> parts);
  Status all_reduce_piece(const Label& label, Bytes data);
  Status run(std::span<const Outgoing> sends, std::span<Incoming> receives) {
    return mesh_.exchange(sends, receives, limits_);
  }
  Label label(CollectiveOp op, ir::DType dtype, size_t nbytes) const;
  Status check_root(int root) const;

  Mesh& mesh_;
  const uint64_t sequence_;
  const OpLimits& limits_;
  std::vector<std::byte> scratch_;
};

// Messages between two ranks, independent of collective ops. Messages with the same tag keep their order.
Label message_label(ir::DType dtype, uint64_t tag, size_t nbytes);
// Returns an error if this rank exchanges no messages with `peer`.
Status check_peer(const Mesh& mesh, int peer);
Status send(Mesh& mesh, ir::DType dtype, std::span<const std::byte> data, int to, uint64_t tag, const OpLimits& limits);
// `from` may be kAnyPeer; it then receives the sender's rank.
Status receive(Mesh& mesh, ir::DType dtype, std::span<std::byte> data, int* from, uint64_t tag, const OpLimits& limits);

}  // namespace torch_remote::worker
