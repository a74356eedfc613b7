#include <algorithm>
#include <optional>

#include "remote/client/client_impl.h"

namespace torch_remote::remote {

Status ClientImpl::send_read(const ReadView& view, bool speculative, uint64_t* sequence) {
  builder_.Clear();
  const auto s = builder_.CreateVector(view.sizes.data(), view.sizes.size());
  const auto t = builder_.CreateVector(view.strides.data(), view.strides.size());
  builder_.Finish(wire::CreateRead(builder_, view.buffer, view.item_size, s, t, view.offset, speculative));
  return send(wire::Type::kRead, true, nullptr, sequence);
}

Status ClientImpl::send_read_whole(uint64_t buffer, uint64_t nbytes, bool speculative, SnapshotPtr* snapshot) {
  const int64_t sizes[] = {static_cast<int64_t>(nbytes)}, strides[] = {1};
  uint64_t sequence;
  if (Status status = send_read({buffer, 1, sizes, strides, 0}, speculative, &sequence); !status) return status;
  *snapshot = std::make_shared<Snapshot>();
  (*snapshot)->state = speculative ? Snapshot::State::kRequested : Snapshot::State::kWaitedFor;
  (*snapshot)->speculative = speculative;
  (*snapshot)->bytes.resize(nbytes);
  speculative_reads_.insert(buffer, *snapshot, sequence);
  return {};
}

Status ClientImpl::ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot) {
  if (*snapshot = speculative_reads_.find(view.buffer); *snapshot) {
    Snapshot& known = **snapshot;
    const bool usable = known.state == Snapshot::State::kRequested || known.state == Snapshot::State::kReady;
    if (usable && end <= known.bytes.size()) {
      speculative_reads_.on_use(view.buffer);
      if (known.state == Snapshot::State::kRequested) known.state = Snapshot::State::kWaitedFor;
      *sequence = known.sequence;
      // This read ends the round of the runs sent before it. It may not have to wait itself, but the next read would.
      if (speculative_reads_.round_is_open()) {
        if (Status status = reserve_and_send_guesses(speculative_reads_.end_round(view.buffer, end)); !status)
          return status;
      }
      return replies_.health();
    }
    // Another thread waits for the snapshot, or the view needs more bytes than it has.
    *snapshot = nullptr;
    if (usable) speculative_reads_.drop(view.buffer);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_freed_ids(); !status) return status;
    return send_read(view, false, sequence);
  }
  const std::vector<SpeculativeReads::Guess>& guesses = speculative_reads_.end_round(view.buffer, end);
  if (Status status = begin(1 + guesses.size(), 0); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  if (const uint64_t nbytes = speculative_reads_.size_of(view.buffer, end); nbytes <= kMaxSpeculativeRead) {
    if (Status status = send_read_whole(view.buffer, nbytes, false, snapshot); !status) return status;
    *sequence = (*snapshot)->sequence;
  } else if (Status status = send_read(view, false, sequence); !status) {
    return status;
  }
  return send_guesses(guesses);
}

Status ClientImpl::reserve_and_send_guesses(const std::vector<SpeculativeReads::Guess>& guesses) {
  if (guesses.empty()) return {};
  if (Status status = begin(guesses.size(), 0); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  return send_guesses(guesses);
}

Status ClientImpl::send_guesses(const std::vector<SpeculativeReads::Guess>& guesses) {
  for (const SpeculativeReads::Guess& guess : guesses) {
    SnapshotPtr kept;
    if (std::ranges::find(freed_ids_now_, guess.buffer) != freed_ids_now_.end()) continue;
    if (Status status = send_read_whole(guess.buffer, guess.nbytes, true, &kept); !status) return status;
  }
  return {};
}

Status ClientImpl::wait_for_snapshot(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting,
                                     OpError* error) {
  Frame frame;
  // A speculative read shares the round trip of another read, so we do not count it.
  Status status = snapshot.speculative ? replies_.wait(snapshot.sequence, keep_waiting, &frame, error)
                                       : wait(snapshot.sequence, keep_waiting, &frame, error);
  if (status.ok()) status = check_size(frame, snapshot.bytes.size());
  std::lock_guard order(order_);
  if (status.ok()) {
    std::ranges::copy(frame.attachment->bytes(), snapshot.bytes.begin());
    counters_.bytes_downloaded.fetch_add(snapshot.bytes.size(), std::memory_order_relaxed);
    snapshot.state = Snapshot::State::kReady;
  } else {
    snapshot.state = Snapshot::State::kFailed;
    if (const SnapshotPtr kept = speculative_reads_.find(view.buffer); kept.get() == &snapshot)
      speculative_reads_.drop(view.buffer);
  }
  return status;
}

Status ClientImpl::check_size(const Frame& frame, uint64_t expected) {
  const size_t came = frame.attachment ? frame.attachment->bytes().size() : 0;
  if (came == expected) return {};
  if (frame.refused_bytes != 0) {
    return {ErrorCode::kOutOfMemory, "remote: this process is out of memory. It has none left for the " +
                                         std::to_string(frame.refused_bytes) + " bytes of a tensor to read"};
  }
  return Status::internal("remote: the worker sent " + std::to_string(came) + " bytes of a tensor of " +
                          std::to_string(expected));
}

Status ClientImpl::read_error(uint64_t buffer, Status status, OpError* error) const {
  // If a program could not be built, its buffers do not exist. The worker only knows that they are missing; we know
  // why.
  if (status.code() == ErrorCode::kInterrupted) return status;
  std::optional<OpError> missing = replies_.failure_of(buffer);
  if (!missing) return status;
  *error = *std::move(missing);
  return error->status;
}

Status ClientImpl::read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                        std::span<const int64_t> strides, int64_t offset,
                        const std::function<void(std::span<const std::byte>)>& take, const KeepWaiting& keep_waiting,
                        OpError* error) {
  if (abandoned_) return forked();
  const ReadView view{buffer, item_size, sizes, strides, offset};
  uint64_t packed, end;
  if (!measure(view, &packed, &end)) return Status::invalid("remote: cannot read a tensor with impossible sizes");
  if (packed > kMaxSpeculativeRead) end = UINT64_MAX;  // read only the view, not the whole buffer
  uint64_t sequence = 0;
  SnapshotPtr snapshot;
  bool there = false;
  {
    std::lock_guard order(order_);
    if (Status status = ask_for(view, end, &sequence, &snapshot); !status) return status;
    there = snapshot && snapshot->state == Snapshot::State::kReady;
  }
  if (snapshot && !there) {
    Status status = wait_for_snapshot(view, *snapshot, keep_waiting, error);
    there = status.ok();
    const bool in_vain =
        snapshot->speculative && status.code() != ErrorCode::kInterrupted && status.code() != ErrorCode::kLost;
    if (!there && !in_vain) return read_error(buffer, std::move(status), error);
  }
  if (there) {
    const std::byte* first = snapshot->bytes.data() + static_cast<size_t>(offset) * item_size;
    if (is_contiguous(sizes, strides)) {
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
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_freed_ids(); !status) return status;
    if (Status status = send_read(view, false, &sequence); !status) return status;
  }
  Frame frame;
  if (Status status = wait(sequence, keep_waiting, &frame, error); !status) {
    return read_error(buffer, std::move(status), error);
  }
  if (Status status = check_size(frame, packed); !status) return status;
  counters_.bytes_downloaded.fetch_add(packed, std::memory_order_relaxed);
  take(frame.attachment ? frame.attachment->bytes() : std::span<std::byte>());
  return {};
}

}  // namespace torch_remote::remote
