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

// Collective ops of a group: each rank calls the same ones in the same order. Tensors are dense memory of this process.
//
// All of them send directly to who needs it: reducing is a pairwise exchange, in which each rank gets its part of all
// tensors and combines them in the order of the ranks, then a gathering of the parts (Thakur, Rabenseifner and Gropp,
// Optimization of Collective Communication Operations in MPICH, 2005). So a rank sends 2 (size - 1) / size of a tensor,
// as in a ring, in two steps; all ranks get the same bits, which depend on nothing but the tensors.
namespace torch_remote::worker {

class Collectives {
 public:
  // `sequence`: of the op, the same on all ranks; it tells those apart that some rank left out.
  Collectives(Mesh& mesh, uint64_t sequence, const OpLimits& limits)
      : mesh_(mesh), sequence_(sequence), limits_(limits) {}

  using Bytes = std::span<std::byte>;
  using Source = std::span<const std::byte>;

  // In place.
  Status all_reduce(ir::DType dtype, Reduction reduction, Bytes data);
  // The result is the root's; the others keep what they have.
  Status reduce(ir::DType dtype, Reduction reduction, int root, Bytes data);
  Status broadcast(ir::DType dtype, int root, Bytes data);
  // `output`: one input after the other.
  Status all_gather(ir::DType dtype, Source input, Bytes output);
  // `input`: one output's size for each rank.
  Status reduce_scatter(ir::DType dtype, Reduction reduction, Source input, Bytes output);
  // Bytes for and from each rank, one after the other.
  Status all_to_all(ir::DType dtype, Source input, std::span<const uint64_t> input_sizes, Bytes output,
                    std::span<const uint64_t> output_sizes);
  // Input and output as in all_gather; only the root has an output.
  Status gather(ir::DType dtype, int root, Source input, Bytes output);
  // Only the root has an input.
  Status scatter(ir::DType dtype, int root, Source input, Bytes output);
  // Returns when all ranks have called it.
  Status barrier();

 private:
  struct Part {
    size_t begin = 0, size = 0;  // bytes
  };
  Part part_of(size_t nbytes, size_t item_size, int rank) const;
  // parts[rank] of all ranks' `input`, combined, to `output`.
  Status combine(const Label& label, Source input, std::span<const Part> parts, Bytes output);
  // parts[i] of `output` is rank i's; this one's is there.
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

// Messages between two ranks, apart from collective ops: those of one tag keep their order.
Label message_label(ir::DType dtype, uint64_t tag, size_t nbytes);
// Not ok: this rank exchanges no messages with that one.
Status check_peer(const Mesh& mesh, int peer);
Status send(Mesh& mesh, ir::DType dtype, std::span<const std::byte> data, int to, uint64_t tag, const OpLimits& limits);
// `from`: may be kAnyPeer; who it was, then.
Status receive(Mesh& mesh, ir::DType dtype, std::span<std::byte> data, int* from, uint64_t tag, const OpLimits& limits);

}  // namespace torch_remote::worker
