#include "remote/client/buffer_reader.h"

#include <algorithm>
#include <optional>

namespace torch_remote::remote {

void BufferReader::on_run(const CachedProgram& program, std::span<const uint64_t> inputs, uint64_t first_result_id,
                          std::vector<uint64_t>& made, const ir::Trace* trace) {
  copies_.clear();
  if (trace != nullptr) find_copies(program, inputs, *trace);
  channel_.speculative_reads.on_run(program, inputs, first_result_id, made, copies_);
}

void BufferReader::find_copies(const CachedProgram& program, std::span<const uint64_t> inputs, const ir::Trace& trace) {
  if (!program.facts_known.load(std::memory_order_acquire)) return;
  for (const ProgramFacts::Copy& copy : program.facts.copies) {
    const ir::TraceView &from = trace.views[copy.from], &to = trace.views[copy.to];
    const int64_t *source = trace.params.data() + from.first_param, *target = trace.params.data() + to.first_param;
    // The copy must cover a whole buffer of the same size, in the same order.
    const size_t rank = from.rank;
    uint64_t nbytes = ir::item_size(from.dtype);
    for (size_t i = 0; i < rank; ++i) nbytes *= static_cast<uint64_t>(source[i]);
    if (rank == to.rank && std::equal(source, source + rank, target) &&
        is_contiguous({source, rank}, {source + rank, rank}) && is_contiguous({target, rank}, {target + rank, rank}) &&
        source[2 * rank] == 0 && target[2 * rank] == 0 && trace.buffers[from.buffer].nbytes == nbytes &&
        trace.buffers[to.buffer].nbytes == nbytes) {
      copies_.push_back({copy.made, inputs[copy.input]});
    }
  }
}

Status BufferReader::send_read(const ReadView& view, bool speculative, uint64_t* sequence) {
  channel_.builder.Clear();
  const auto s = channel_.builder.CreateVector(view.sizes.data(), view.sizes.size());
  const auto t = channel_.builder.CreateVector(view.strides.data(), view.strides.size());
  channel_.builder.Finish(
      wire::CreateRead(channel_.builder, view.buffer, view.item_size, s, t, view.offset, speculative));
  return channel_.send(wire::Type::kRead, true, nullptr, sequence);
}

Status BufferReader::send_read_whole(uint64_t buffer, uint64_t nbytes, bool speculative, SnapshotPtr* snapshot) {
  const int64_t sizes[] = {static_cast<int64_t>(nbytes)}, strides[] = {1};
  uint64_t sequence;
  if (Status status = send_read({buffer, 1, sizes, strides, 0}, speculative, &sequence); !status) return status;
  *snapshot = std::make_shared<Snapshot>();
  (*snapshot)->state = speculative ? Snapshot::State::kRequested : Snapshot::State::kWaitedFor;
  (*snapshot)->speculative = speculative;
  (*snapshot)->bytes.resize(nbytes);
  channel_.speculative_reads.insert(buffer, *snapshot, sequence);
  return {};
}

Status BufferReader::ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot) {
  if (*snapshot = channel_.speculative_reads.find(view.buffer); *snapshot) {
    Snapshot& known = **snapshot;
    const bool usable = known.state == Snapshot::State::kRequested || known.state == Snapshot::State::kReady;
    if (usable && end <= known.bytes.size()) {
      channel_.speculative_reads.on_use(view.buffer);
      if (known.state == Snapshot::State::kRequested) known.state = Snapshot::State::kWaitedFor;
      *sequence = known.sequence;
      // This read ends the round of the runs sent before it. It may not have to wait itself, but the next read would.
      if (channel_.speculative_reads.round_is_open()) {
        if (Status status = reserve_and_send_guesses(channel_.speculative_reads.end_round(view.buffer, end)); !status)
          return status;
      }
      return channel_.replies.health();
    }
    // Another thread waits for the snapshot, or the view needs more bytes than it has.
    *snapshot = nullptr;
    if (usable) channel_.speculative_reads.drop(view.buffer);
    if (Status status = channel_.begin(1, 0); !status) return status;
    if (Status status = channel_.send_freed_ids(); !status) return status;
    return send_read(view, false, sequence);
  }
  const std::vector<SpeculativeReads::Guess>& guesses = channel_.speculative_reads.end_round(view.buffer, end);
  if (Status status = channel_.begin(1 + guesses.size(), 0); !status) return status;
  if (Status status = channel_.send_freed_ids(); !status) return status;
  if (const uint64_t nbytes = channel_.speculative_reads.size_of(view.buffer, end); nbytes <= kMaxSpeculativeRead) {
    if (Status status = send_read_whole(view.buffer, nbytes, false, snapshot); !status) return status;
    *sequence = (*snapshot)->sequence;
  } else if (Status status = send_read(view, false, sequence); !status) {
    return status;
  }
  return send_guesses(guesses);
}

Status BufferReader::reserve_and_send_guesses(const std::vector<SpeculativeReads::Guess>& guesses) {
  if (guesses.empty()) return {};
  if (Status status = channel_.begin(guesses.size(), 0); !status) return status;
  if (Status status = channel_.send_freed_ids(); !status) return status;
  return send_guesses(guesses);
}

Status BufferReader::send_guesses(const std::vector<SpeculativeReads::Guess>& guesses) {
  for (const SpeculativeReads::Guess& guess : guesses) {
    SnapshotPtr kept;
    if (channel_.has_just_freed(guess.buffer)) continue;
    if (Status status = send_read_whole(guess.buffer, guess.nbytes, true, &kept); !status) return status;
  }
  return {};
}

Status BufferReader::wait_for_snapshot(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting,
                                       OpError* error) {
  Frame frame;
  // A speculative read shares the round trip of another read, so we do not count it.
  Status status = snapshot.speculative ? channel_.replies.wait(snapshot.sequence, keep_waiting, &frame, error)
                                       : channel_.wait(snapshot.sequence, keep_waiting, &frame, error);
  if (status.ok()) status = check_size(frame, snapshot.bytes.size());
  std::lock_guard order(channel_.order);
  if (status.ok()) {
    if (frame.attachment) std::ranges::copy(frame.attachment->bytes(), snapshot.bytes.begin());
    channel_.counters.bytes_downloaded.fetch_add(snapshot.bytes.size(), std::memory_order_relaxed);
    snapshot.state = Snapshot::State::kReady;
  } else {
    snapshot.state = Snapshot::State::kFailed;
    if (const SnapshotPtr kept = channel_.speculative_reads.find(view.buffer); kept.get() == &snapshot)
      channel_.speculative_reads.drop(view.buffer);
  }
  return status;
}

Status BufferReader::read_error(uint64_t buffer, Status status, OpError* error) const {
  // If a program could not be built, its buffers do not exist. The worker only knows that they are missing; we know
  // why.
  if (status.code() == ErrorCode::kInterrupted) return status;
  std::optional<OpError> missing = channel_.replies.failure_of(buffer);
  if (!missing) return status;
  *error = *std::move(missing);
  return error->status;
}

Status BufferReader::read(const ReadView& view, const std::function<void(std::span<const std::byte>)>& take,
                          const KeepWaiting& keep_waiting, OpError* error) {
  if (channel_.is_abandoned()) return Channel::forked();
  uint64_t packed, end;
  if (!measure(view, &packed, &end)) return Status::invalid("remote: cannot read a tensor with impossible sizes");
  if (packed > kMaxSpeculativeRead) end = UINT64_MAX;  // read only the view, not the whole buffer
  uint64_t sequence = 0;
  SnapshotPtr snapshot;
  bool there = false;
  {
    std::lock_guard order(channel_.order);
    if (Status status = ask_for(view, end, &sequence, &snapshot); !status) return status;
    there = snapshot && snapshot->state == Snapshot::State::kReady;
  }
  if (snapshot && !there) {
    Status status = wait_for_snapshot(view, *snapshot, keep_waiting, error);
    there = status.ok();
    const bool in_vain =
        snapshot->speculative && status.code() != ErrorCode::kInterrupted && status.code() != ErrorCode::kLost;
    if (!there && !in_vain) return read_error(view.buffer, std::move(status), error);
  }
  if (there) {
    const std::byte* first = snapshot->bytes.data() + static_cast<size_t>(view.offset) * view.item_size;
    if (is_contiguous(view.sizes, view.strides)) {
      take({first, packed});
    } else {
      std::vector<std::byte> elements(packed);
      copy_packed(view, first, elements.data());
      take(elements);
    }
    return {};
  }
  if (snapshot) {  // the speculative read failed: an ordinary read reports why
    *error = {};
    std::lock_guard order(channel_.order);
    if (Status status = channel_.begin(1, 0); !status) return status;
    if (Status status = channel_.send_freed_ids(); !status) return status;
    if (Status status = send_read(view, false, &sequence); !status) return status;
  }
  Frame frame;
  if (Status status = channel_.wait(sequence, keep_waiting, &frame, error); !status) {
    return read_error(view.buffer, std::move(status), error);
  }
  if (Status status = check_size(frame, packed); !status) return status;
  channel_.counters.bytes_downloaded.fetch_add(packed, std::memory_order_relaxed);
  take(frame.attachment ? frame.attachment->bytes() : std::span<std::byte>());
  return {};
}

}  // namespace torch_remote::remote
