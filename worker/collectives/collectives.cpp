#include "worker/collectives/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace torch_remote::worker {
namespace {

// Bytes of a tensor that are reduced at a time, per rank: they are buffered until all of them have arrived.
constexpr size_t kPiece = size_t{1} << 20;  // bytes

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

Status wrong_size(const char* what) { return {ErrorCode::kOpFailed, std::string("remote: ") + what, "ValueError"}; }

}  // namespace

Label Collectives::label(CollectiveOp op, ir::DType dtype, size_t nbytes) const {
  Label label;
  label.op = static_cast<uint8_t>(op);
  label.dtype = static_cast<uint8_t>(dtype);
  label.sequence = sequence_;
  label.count = nbytes / std::max(ir::item_size(dtype), 1u);
  return label;
}

Status Collectives::check_root(int root) const {
  if (root >= 0 && root < mesh_.size()) return {};
  return {ErrorCode::kOpFailed,
          "remote: there is no rank " + std::to_string(root) + " in a group of " + std::to_string(mesh_.size()),
          "ValueError"};
}

Collectives::Part Collectives::part_of(size_t nbytes, size_t item_size, int rank) const {
  const size_t count = nbytes / item_size, size = static_cast<size_t>(mesh_.size()), r = static_cast<size_t>(rank);
  const size_t begin = count * r / size, end = count * (r + 1) / size;
  return {begin * item_size, (end - begin) * item_size};
}

Status Collectives::combine(const Label& label, Source input, std::span<const Part> parts, Bytes output) {
  const int size = mesh_.size(), self = mesh_.rank();
  const Part mine = parts[self];
  scratch_.resize(mine.size * static_cast<size_t>(size - 1));
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == self) {
      sources.push_back(input.data() + mine.begin);
      continue;
    }
    const Bytes place = Bytes(scratch_).subspan(receives.size() * mine.size, mine.size);
    sources.push_back(place.data());
    sends.push_back({rank, label, input.subspan(parts[rank].begin, parts[rank].size)});
    receives.push_back({rank, label, place});
  }
  if (Status status = run(sends, receives); !status.ok()) return status;
  const auto dtype = static_cast<ir::DType>(label.dtype);
  worker::reduce(dtype, static_cast<Reduction>(label.reduction), sources, output.data(),
                 static_cast<int64_t>(mine.size / ir::item_size(dtype)));
  return {};
}

Status Collectives::share(const Label& label, Bytes output, std::span<const Part> parts) {
  const Part mine = parts[mesh_.rank()];
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (rank == mesh_.rank()) continue;
    sends.push_back({rank, label, output.subspan(mine.begin, mine.size)});
    receives.push_back({rank, label, output.subspan(parts[rank].begin, parts[rank].size)});
  }
  return run(sends, receives);
}

Status Collectives::all_reduce_piece(const Label& label, Bytes data) {
  const size_t item_size = ir::item_size(static_cast<ir::DType>(label.dtype));
  const int size = mesh_.size();
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(mesh_.size()));
  for (int rank = 0; rank < size; ++rank) parts.push_back(part_of(data.size(), item_size, rank));
  const Part mine = parts[mesh_.rank()];
  if (Status status = combine(label, data, parts, data.subspan(mine.begin, mine.size)); !status.ok()) return status;
  return share(label, data, parts);
}

Status Collectives::all_reduce(ir::DType dtype, Reduction reduction, Bytes data) {
  if (Status status = check_reduction(dtype, reduction); !status.ok()) return status;
  Label label = this->label(CollectiveOp::kAllReduce, dtype, data.size());
  label.reduction = static_cast<uint8_t>(reduction);
  const size_t size = static_cast<size_t>(mesh_.size());
  // A small tensor is sent to every rank as a whole: one step.
  if (data.size() * (size - 1) <= kPiece / 4) {
    const std::vector<Part> whole(size, Part{0, data.size()});
    return combine(label, data, whole, data);
  }
  for (size_t begin = 0; begin < data.size(); begin += kPiece * size) {
    const Bytes piece = data.subspan(begin, std::min(kPiece * size, data.size() - begin));
    if (Status status = all_reduce_piece(label, piece); !status.ok()) return status;
  }
  return {};
}

Status Collectives::reduce(ir::DType dtype, Reduction reduction, int root, Bytes data) {
  if (Status status = check_root(root); !status.ok()) return status;
  if (Status status = check_reduction(dtype, reduction); !status.ok()) return status;
  Label label = this->label(CollectiveOp::kReduce, dtype, data.size());
  label.reduction = static_cast<uint8_t>(reduction);
  label.root = root;
  const int size = mesh_.size(), self = mesh_.rank();
  const size_t most = kPiece * static_cast<size_t>(size);
  std::vector<std::byte> result;
  size_t begin = 0;
  do {  // Also runs once without elements: all ranks must have called it.
    const Bytes piece = data.subspan(begin, std::min(most, data.size() - begin));
    std::vector<Part> parts;
    parts.reserve(static_cast<size_t>(mesh_.size()));
    for (int rank = 0; rank < size; ++rank) parts.push_back(part_of(piece.size(), ir::item_size(dtype), rank));
    const Part mine = parts[self];
    result.resize(mine.size);
    if (Status status = combine(label, piece, parts, result); !status.ok()) return status;
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    if (self == root) {
      copy(result, piece.subspan(mine.begin, mine.size));
      for (int rank = 0; rank < size; ++rank) {
        if (rank != self) receives.push_back({rank, label, piece.subspan(parts[rank].begin, parts[rank].size)});
      }
    } else {
      sends.push_back({root, label, result});
    }
    if (Status status = run(sends, receives); !status.ok()) return status;
    begin += most;
  } while (begin < data.size());
  return {};
}

// Uses a binomial tree.
Status Collectives::broadcast(ir::DType dtype, int root, Bytes data) {
  if (Status status = check_root(root); !status.ok()) return status;
  Label label = this->label(CollectiveOp::kBroadcast, dtype, data.size());
  label.root = root;
  const int size = mesh_.size(), place = (mesh_.rank() - root + size) % size;
  int step = 1;
  for (; step < size; step *= 2) {
    if ((place & step) == 0) continue;
    std::array<Incoming, 1> receive{{{(place - step + root) % size, label, data}}};
    if (Status status = run({}, receive); !status.ok()) return status;
    break;
  }
  std::vector<Outgoing> sends;
  for (step /= 2; step > 0; step /= 2) {
    if (place + step < size) sends.push_back({(place + step + root) % size, label, data});
  }
  return run(sends, {});
}

Status Collectives::all_gather(ir::DType dtype, Source input, Bytes output) {
  const size_t size = static_cast<size_t>(mesh_.size());
  if (output.size() != input.size() * size)
    return wrong_size("the output of all_gather must have as many elements as all inputs together");
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(mesh_.size()));
  for (size_t rank = 0; rank < size; ++rank) parts.push_back({rank * input.size(), input.size()});
  const Part mine = parts[mesh_.rank()];
  copy(input, output.subspan(mine.begin, mine.size));
  return share(label(CollectiveOp::kAllGather, dtype, input.size()), output, parts);
}

Status Collectives::reduce_scatter(ir::DType dtype, Reduction reduction, Source input, Bytes output) {
  if (Status status = check_reduction(dtype, reduction); !status.ok()) return status;
  const size_t size = static_cast<size_t>(mesh_.size());
  if (input.size() != output.size() * size)
    return wrong_size("the input of reduce_scatter must have as many elements as all outputs together");
  Label label = this->label(CollectiveOp::kReduceScatter, dtype, input.size());
  label.reduction = static_cast<uint8_t>(reduction);
  size_t begin = 0;
  do {
    const size_t piece = std::min(kPiece, output.size() - begin);
    std::vector<Part> parts;
    parts.reserve(static_cast<size_t>(mesh_.size()));
    for (size_t rank = 0; rank < size; ++rank) parts.push_back({rank * output.size() + begin, piece});
    if (Status status = combine(label, input, parts, output.subspan(begin, piece)); !status.ok()) return status;
    begin += kPiece;
  } while (begin < output.size());
  return {};
}

Status Collectives::all_to_all(ir::DType dtype, Source input, std::span<const uint64_t> input_sizes, Bytes output,
                               std::span<const uint64_t> output_sizes) {
  const size_t size = static_cast<size_t>(mesh_.size());
  const auto fits = [size](std::span<const uint64_t> sizes, size_t nbytes) {
    size_t sum = 0;
    for (const uint64_t each : sizes) {
      if (each > nbytes - sum) return false;
      sum += each;
    }
    return sizes.size() == size && sum == nbytes;
  };
  if (!fits(input_sizes, input.size()) || !fits(output_sizes, output.size())) {
    return wrong_size(
        "the splits of all_to_all must be one number for each rank, and must add up to the tensor's first dimension");
  }
  const Label label = this->label(CollectiveOp::kAllToAll, dtype, 0);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  size_t in = 0, out = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    const Source from = input.subspan(in, input_sizes[rank]);
    const Bytes to = output.subspan(out, output_sizes[rank]);
    in += from.size();
    out += to.size();
    if (static_cast<int>(rank) == mesh_.rank()) {
      if (from.size() != to.size())
        return wrong_size("all_to_all must receive as many elements from its own rank as it sends to it");
      copy(from, to);
      continue;
    }
    sends.push_back({static_cast<int>(rank), label, from});
    receives.push_back({static_cast<int>(rank), label, to});
  }
  return run(sends, receives);
}

Status Collectives::gather(ir::DType dtype, int root, Source input, Bytes output) {
  if (Status status = check_root(root); !status.ok()) return status;
  Label label = this->label(CollectiveOp::kGather, dtype, input.size());
  label.root = root;
  if (mesh_.rank() != root) {
    const std::array<Outgoing, 1> send{{{root, label, input}}};
    return run(send, {});
  }
  if (output.size() != input.size() * static_cast<size_t>(mesh_.size()))
    return wrong_size("gather needs an output of the input's size for each rank");
  std::vector<Incoming> receives;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Bytes place = output.subspan(static_cast<size_t>(rank) * input.size(), input.size());
    if (rank == root) {
      copy(input, place);
    } else {
      receives.push_back({rank, label, place});
    }
  }
  return run({}, receives);
}

Status Collectives::scatter(ir::DType dtype, int root, Source input, Bytes output) {
  if (Status status = check_root(root); !status.ok()) return status;
  Label label = this->label(CollectiveOp::kScatter, dtype, output.size());
  label.root = root;
  if (mesh_.rank() != root) {
    std::array<Incoming, 1> receive{{{root, label, output}}};
    return run({}, receive);
  }
  if (input.size() != output.size() * static_cast<size_t>(mesh_.size()))
    return wrong_size("scatter needs an input of the output's size for each rank");
  std::vector<Outgoing> sends;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Source part = input.subspan(static_cast<size_t>(rank) * output.size(), output.size());
    if (rank == root) {
      copy(part, output);
    } else {
      sends.push_back({rank, label, part});
    }
  }
  return run(sends, {});
}

Status Collectives::barrier() {
  const std::vector<Part> nothing(static_cast<size_t>(mesh_.size()));
  return share(label(CollectiveOp::kBarrier, ir::DType::kUInt8, 0), {}, nothing);
}

Label message_label(ir::DType dtype, uint64_t tag, size_t nbytes) {
  Label label;
  label.kind = Label::kPoint;
  label.op = static_cast<uint8_t>(CollectiveOp::kMessage);
  label.dtype = static_cast<uint8_t>(dtype);
  label.sequence = tag;
  label.count = nbytes / std::max(ir::item_size(dtype), 1u);
  return label;
}

Status check_peer(const Mesh& mesh, int peer) {
  if (peer >= 0 && peer < mesh.size() && peer != mesh.rank()) return {};
  return {ErrorCode::kOpFailed,
          "remote: rank " + std::to_string(mesh.rank()) + " of " + std::to_string(mesh.size()) +
              " can exchange messages with the other ranks, not with rank " + std::to_string(peer),
          "ValueError"};
}

Status send(Mesh& mesh, ir::DType dtype, std::span<const std::byte> data, int to, uint64_t tag,
            const OpLimits& limits) {
  if (Status status = check_peer(mesh, to); !status.ok()) return status;
  const std::array<Outgoing, 1> send{{{to, message_label(dtype, tag, data.size()), data}}};
  return mesh.exchange(send, {}, limits);
}

Status receive(Mesh& mesh, ir::DType dtype, std::span<std::byte> data, int* from, uint64_t tag,
               const OpLimits& limits) {
  if (Status status = *from == kAnyPeer ? Status() : check_peer(mesh, *from); !status.ok()) return status;
  std::array<Incoming, 1> receive{{{*from, message_label(dtype, tag, data.size()), data}}};
  Status status = mesh.exchange({}, receive, limits);
  *from = receive[0].peer;
  return status;
}

}  // namespace torch_remote::worker
