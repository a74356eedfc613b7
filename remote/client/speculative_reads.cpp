#include "remote/client/speculative_reads.h"

#include <algorithm>

namespace torch_remote::remote {

void SpeculativeReads::on_run(const CachedProgram& program, std::span<const uint64_t> inputs, uint64_t first_result_id,
                              std::vector<uint64_t>& made, std::span<const Copy> copies) {
  Run& run = runs_[++number_ % kRuns];
  run.number = number_;
  run.program = program.number;
  run.round = 0;
  run.first_result_id = first_result_id;
  run.made.swap(made);
  run.copies.assign(copies.begin(), copies.end());
  if (snapshots_.empty()) return;
  for (const Copy& copy : copies) {
    const auto source = snapshots_.find(copy.source);
    if (source == snapshots_.end() || source->second->state == Snapshot::State::kFailed) continue;
    const SnapshotPtr shared = source->second;  // keep() may rehash the map
    if (shared->bytes.size() == run.made[copy.index]) insert(first_result_id + copy.index, shared, shared->sequence);
  }
  const bool known = program.facts_known.load(std::memory_order_acquire);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if ((filter_ >> (inputs[i] % 64) & 1) == 0) continue;
    if (!known || i >= program.facts.written.size() || program.facts.written[i]) drop(inputs[i]);
  }
}

void SpeculativeReads::on_free(std::span<const uint64_t> ids) {
  if (snapshots_.empty()) return;
  for (const uint64_t id : ids) {
    if (filter_ >> (id % 64) & 1) drop(id);
  }
}

SnapshotPtr SpeculativeReads::find(uint64_t buffer) {
  const auto found = snapshots_.find(buffer);
  return found == snapshots_.end() ? nullptr : found->second;
}

void SpeculativeReads::insert(uint64_t buffer, SnapshotPtr snapshot, uint64_t sequence) {
  snapshot->sequence = sequence;
  drop(buffer);
  if (order_.size() >= kMostSnapshots) {
    const uint64_t oldest = order_.front();
    order_.pop_front();  // before drop(), which may empty the list
    drop(oldest);
  }
  order_.push_back(buffer);
  snapshots_[buffer] = std::move(snapshot);
  filter_ |= uint64_t{1} << (buffer % 64);
}

void SpeculativeReads::drop(uint64_t buffer) {
  const auto found = snapshots_.find(buffer);
  if (found == snapshots_.end()) return;
  const Snapshot& snapshot = *found->second;
  if (snapshot.state == Snapshot::State::kRequested && found->second.use_count() == 1) {
    abandoned_reads_.push_back(snapshot.sequence);
  }
  snapshots_.erase(found);
  if (!snapshots_.empty()) return;
  order_.clear();
  filter_ = 0;
}

const SpeculativeReads::Run* SpeculativeReads::find_run(uint64_t buffer) const {
  const uint64_t count = std::min<uint64_t>(number_, kRuns);
  for (uint64_t i = 0; i < count; ++i) {
    const Run& run = runs_[(number_ - i) % kRuns];
    if (buffer - run.first_result_id < run.made.size()) return &run;
  }
  return nullptr;
}

uint64_t SpeculativeReads::origin(uint64_t buffer) const {
  for (size_t step = 0; step < kRuns; ++step) {
    const Run* run = find_run(buffer);
    if (run == nullptr) return buffer;
    const auto copy = std::ranges::find(run->copies, buffer - run->first_result_id, &Copy::index);
    if (copy == run->copies.end()) return buffer;
    buffer = copy->source;
  }
  return buffer;
}

SpeculativeReads::Entry* SpeculativeReads::find_entry(const Run& run, uint32_t index) {
  const auto entries = read_after_.find(run.round);
  if (entries == read_after_.end()) return nullptr;
  const auto found = std::ranges::find_if(
      entries->second, [&](const Entry& entry) { return entry.program == run.program && entry.index == index; });
  return found == entries->second.end() ? nullptr : &*found;
}

const std::vector<SpeculativeReads::Guess>& SpeculativeReads::end_round(uint64_t buffer, uint64_t least) {
  guesses_.clear();
  // This buffer could have been requested when the round of its run ended, so we record it for that round.
  buffer = origin(buffer);
  if (const Run* run = find_run(buffer); run != nullptr && run->round != 0) {
    const auto index = static_cast<uint32_t>(buffer - run->first_result_id);
    if (Entry* entry = find_entry(*run, index)) {
      entry->unused = 0;
    } else if (std::vector<Entry>& entries = read_after_[run->round]; entries.size() < kMostEntries) {
      entries.push_back({run->program, index, std::max(run->made[index], least), 0});
    }
  }
  if (number_ == ended_) return guesses_;
  const uint32_t round = runs_[number_ % kRuns].program;
  const uint64_t first = std::max(ended_, number_ - std::min<uint64_t>(number_, kRuns)) + 1;
  for (uint64_t n = first; n <= number_; ++n) runs_[n % kRuns].round = round;
  ended_ = number_;
  const auto found = read_after_.find(round);
  if (found == read_after_.end()) return guesses_;
  std::erase_if(found->second, [](const Entry& entry) { return entry.unused >= kMostUnused; });
  for (Entry& entry : found->second) {
    for (uint64_t n = number_; n >= first; --n) {  // finds the program's last run in this round
      const Run& run = runs_[n % kRuns];
      if (run.program != entry.program || entry.index >= run.made.size()) continue;
      const uint64_t other = run.first_result_id + entry.index;
      const uint64_t nbytes = run.made[entry.index] != 0 ? run.made[entry.index] : entry.nbytes;
      if (other != buffer && nbytes != 0 && nbytes <= kMaxSpeculativeRead && !snapshots_.contains(other)) {
        ++entry.unused;
        guesses_.push_back({other, nbytes});
      }
      break;
    }
  }
  return guesses_;
}

void SpeculativeReads::on_use(uint64_t buffer) {
  buffer = origin(buffer);
  const Run* run = find_run(buffer);
  if (run == nullptr) return;
  if (Entry* entry = find_entry(*run, static_cast<uint32_t>(buffer - run->first_result_id))) entry->unused = 0;
}

uint64_t SpeculativeReads::size_of(uint64_t buffer, uint64_t least) const {
  const Run* run = find_run(buffer);
  return run == nullptr ? least : std::max(run->made[buffer - run->first_result_id], least);
}

}  // namespace torch_remote::remote
