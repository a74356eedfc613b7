#include "tests/emulated_gpu/emulator/checker.h"

#include <algorithm>

namespace torch_remote::codegen::emulator {
namespace {

// Limit of stored segments, of 24 bytes each.
constexpr size_t kMostSegments = size_t{1} << 24;

bool is_atomic(AccessKind kind) { return kind != AccessKind::kLoad && kind != AccessKind::kStore; }
bool reads(AccessKind kind) { return kind != AccessKind::kStore && kind != AccessKind::kAtomicStore; }
bool writes(AccessKind kind) { return kind != AccessKind::kLoad && kind != AccessKind::kAtomicLoad; }

}  // namespace

void Checker::begin_launch(const Launch& launch) {
  grid_ = launch.grid;
  block_size_ = launch.block;
  // Numbers below `first_` belong to earlier launches, which all precede this one.
  first_ += static_cast<uint32_t>(std::max(segments_.size(), sets_.size()));
  segments_.clear();
  sets_.clear();
  set_numbers_.clear();
  published_.clear();
  if (first_ > kNumber / 2) {
    memory_.forget_accesses();
    first_ = kFirst;
  }
}

void Checker::begin_block(uint64_t block, uint32_t threads) {
  if (segments_.size() > kMostSegments) {  // from here on, races with earlier blocks are not found
    memory_.forget_accesses();
    segments_.clear();
    sets_.clear();
    set_numbers_.clear();
  }
  block_ = block;
  clocks_.assign(threads, {});
  for (Clock& clock : clocks_) clock.lanes.fill(0);
}

uint32_t Checker::segment_of(Clock& clock, uint32_t thread) {
  if (!clock.used) {
    clock.used = true;
    clock.segment = first_ + static_cast<uint32_t>(segments_.size());
    segments_.push_back({block_, thread, clock.barriers, clock.epoch});
  }
  return clock.segment;
}

void Checker::new_segment(Clock& clock) {
  clock.used = false;
  ++clock.epoch;
  clock.lanes[(&clock - clocks_.data()) % kWarp] = clock.epoch;
}

Checker::KnownOrderPtr Checker::joined(const KnownOrderPtr& a, const KnownOrderPtr& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  KnownOrder both = *a;
  for (const auto& [block, knowledge] : *b) {
    auto& there = both[block];
    if (!there) there = knowledge;
    if (there == knowledge) continue;
    BlockOrder merged = *there;
    merged.barriers = std::max(merged.barriers, knowledge->barriers);
    for (size_t i = 0; i < merged.epochs.size(); ++i) {
      merged.epochs[i] = std::max(merged.epochs[i], knowledge->epochs[i]);
    }
    there = std::make_shared<const BlockOrder>(std::move(merged));
  }
  return std::make_shared<const KnownOrder>(std::move(both));
}

void Checker::join(Fences& fences, const Fences& others) {
  fences.read = joined(fences.read, others.read);
  fences.acquired = joined(fences.acquired, others.acquired);
  fences.released = joined(fences.released, others.released);
}

void Checker::barrier() {
  Fences fences;
  for (Clock& clock : clocks_) {
    ++clock.barriers;
    new_segment(clock);
    join(fences, clock.fences);
  }
  for (Clock& clock : clocks_) clock.fences = fences;
}

void Checker::warp_sync(uint32_t first, uint32_t there) {
  std::array<uint32_t, kWarp> lanes{};
  Fences fences;
  for (uint32_t i = 0; i < kWarp; ++i) {
    if ((there >> i & 1) == 0) continue;
    Clock& clock = clocks_[first + i];
    new_segment(clock);
    for (uint32_t lane = 0; lane < kWarp; ++lane) lanes[lane] = std::max(lanes[lane], clock.lanes[lane]);
    join(fences, clock.fences);
  }
  for (uint32_t i = 0; i < kWarp; ++i) {
    if ((there >> i & 1) == 0) continue;
    clocks_[first + i].lanes = lanes;
    clocks_[first + i].fences = fences;
  }
}

void Checker::fence(uint32_t thread, bool device_wide) {
  Clock& clock = clocks_[thread];
  Fences& fences = clock.fences;
  new_segment(clock);
  if (fences.read) {
    KnownOrder read = *fences.read;
    if (!device_wide) std::erase_if(read, [this](const auto& known) { return known.first.first != block_; });
    fences.acquired = joined(fences.acquired, std::make_shared<const KnownOrder>(std::move(read)));
  }
  BlockOrder own = {clock.barriers, std::vector<uint32_t>(clocks_.size())};
  for (uint32_t lane = 0, first = thread / kWarp * kWarp; lane < kWarp && first + lane < clocks_.size(); ++lane) {
    own.epochs[first + lane] = clock.lanes[lane];
  }
  KnownOrder known = {{{block_, device_wide}, std::make_shared<const BlockOrder>(std::move(own))}};
  fences.released = joined(fences.released, std::make_shared<const KnownOrder>(std::move(known)));
  fences.released = joined(fences.released, fences.acquired);
}

// Makes an atomic operation acquire what others published at its address, and publish what its thread released.
void Checker::publish(const char* address, Clock& clock, AccessKind kind) {
  const auto found = published_.find(address);
  if (reads(kind) && found != published_.end()) clock.fences.read = joined(clock.fences.read, found->second);
  if (kind == AccessKind::kAtomic && clock.fences.released) {
    KnownOrderPtr& there = published_[address];
    there = joined(there, clock.fences.released);
  } else if (kind == AccessKind::kAtomicStore && clock.fences.released) {
    published_[address] = clock.fences.released;
  } else if (kind == AccessKind::kAtomicStore && found != published_.end()) {
    published_.erase(found);
  }
}

bool Checker::knows(const KnownOrder& known, const Segment& earlier) const {
  for (const bool device_wide : {true, false}) {
    if (!device_wide && earlier.block != block_) continue;
    const auto found = known.find({earlier.block, device_wide});
    if (found == known.end()) continue;
    const BlockOrder& of = *found->second;
    if (earlier.barriers < of.barriers || earlier.epoch < of.epochs[earlier.thread]) return true;
  }
  return false;
}

bool Checker::is_before(const Segment& earlier, uint32_t thread) const {
  const Clock& clock = clocks_[thread];
  if (earlier.block == block_) {
    if (earlier.thread == thread || earlier.barriers < clock.barriers) return true;
    if (earlier.thread / kWarp == thread / kWarp && earlier.epoch < clock.lanes[earlier.thread % kWarp]) return true;
  }
  return clock.fences.acquired && knows(*clock.fences.acquired, earlier);
}

bool Checker::is_before(uint32_t encoded, uint32_t thread, uint32_t* other) const {
  const uint32_t number = encoded & kNumber;
  if (number < first_) return true;  // the host, or an earlier launch
  const Clock& clock = clocks_[thread];
  if (group(encoded) == Group::kWarp) {
    for (const uint32_t member : sets_[number - first_]) {
      if (is_before(segment(member), thread)) continue;
      *other = member;
      return false;
    }
    return true;
  }
  *other = number;
  const Segment& last = segment(number);
  switch (group(encoded)) {
    case Group::kBlock:
      // Several warps between two barriers; at least one of them is not this thread's warp.
      if (last.block == block_) return last.barriers < clock.barriers;
      break;
    case Group::kGrid:
      // Several blocks. Only the last one is stored: a thread that has acquired that block's writes is assumed to have
      // acquired all.
      if (!clock.fences.acquired) return false;
      break;
    default:
      break;
  }
  return is_before(last, thread);
}

uint32_t Checker::add_to_set(uint32_t encoded, uint32_t thread) {
  const uint32_t number = encoded & kNumber, mine = clocks_[thread].segment;
  std::vector<uint32_t> members;
  if (group(encoded) == Group::kWarp) {
    members = sets_[number - first_];
    if (std::find(members.begin(), members.end(), mine) != members.end()) return encoded;
  } else {
    members = {number};
  }
  std::erase_if(members, [&](uint32_t member) { return is_before(segment(member), thread); });
  members.push_back(mine);
  const auto [found, added] = set_numbers_.try_emplace(std::move(members), first_ + sets_.size());
  if (added) sets_.push_back(found->first);
  return encode(Group::kWarp, found->second);
}

// Adds the current segment of `thread` to `encoded`, and drops segments that are ordered before it.
uint32_t Checker::add(uint32_t encoded, uint32_t thread) {
  const uint32_t mine = segment_of(clocks_[thread], thread), number = encoded & kNumber;
  if (number < first_ || encoded == mine) return mine;
  uint32_t other = 0;
  if (is_before(encoded, thread, &other)) return mine;
  const Segment& last = segment(group(encoded) == Group::kWarp ? sets_[number - first_].back() : number);
  if (group(encoded) == Group::kGrid || last.block != block_) return encode(Group::kGrid, mine);
  if (group(encoded) == Group::kBlock || last.thread / kWarp != thread / kWarp) return encode(Group::kBlock, mine);
  return add_to_set(encoded, thread);
}

// Returns the error of an access to the byte. Returns null if there is none, and stores the access in the cell.
const char* Checker::check(Cell& cell, uint32_t thread, AccessKind kind, uint32_t* other) {
  if (cell.writer == kUnallocated) return "is out of bounds:";
  if (reads(kind) && cell.writer == kUninitialized) return "reads what was never written:";
  if (!is_before(cell.writer, thread, other)) {
    return (cell.writer & kAtomicFlag) != 0 ? "races with an atomic operation" : "races with a write";
  }
  const bool others_atomic = (cell.others & kAtomicFlag) != 0;
  const uint32_t others = cell.others & ~kAtomicFlag;
  const bool conflicts = others_atomic ? !is_atomic(kind) : writes(kind);
  if (conflicts && !is_before(others, thread, other)) {
    return others_atomic ? "races with an atomic operation" : "races with a read";
  }
  if (kind == AccessKind::kStore) {
    cell = {segment_of(clocks_[thread], thread), kUnallocated};
  } else if (!is_atomic(kind)) {
    if (others_atomic) cell.writer = cell.others;
    cell.others = add(others_atomic ? kUnallocated : others, thread);
  } else {
    if (cell.writer == kUninitialized) cell.writer = kHost;
    // This is an atomic load after plain loads that are not ordered before it. The plain loads stay, because a later
    // write may race with them.
    uint32_t unused = 0;
    if (kind == AccessKind::kAtomicLoad && !others_atomic && !is_before(others, thread, &unused)) return nullptr;
    cell.others = add(others_atomic ? others : kUnallocated, thread) | kAtomicFlag;
  }
  return nullptr;
}

AccessError Checker::access(uint32_t thread, const char* address, uint64_t bytes, AccessKind kind) {
  if (bytes == 0) return {};
  if (!memory_.contains(address)) return {address, "is out of bounds:"};
  Cell* cells = memory_.cells(address);
  uint32_t other = 0;
  for (uint64_t i = 0; i < bytes;) {
    if (i != 0 && !memory_.contains(address + i)) return {address + i, "is out of bounds:"};
    // Adjacent bytes were usually accessed together.
    const Cell before = cells[i];
    if (const char* error = check(cells[i], thread, kind, &other); error != nullptr) {
      std::string text = error;
      if (other >= first_) {
        const Segment& segment = segments_[other - first_];
        const bool same_block = segment.block == block_;
        // If several threads are stored, only the last one is known, which may be this one.
        text += same_block && segment.thread == thread
                    ? " by other threads:"
                    : " by thread " + emulator::text(split(segment.thread, block_size_)) +
                          (same_block ? "" : " of block " + emulator::text(split(segment.block, grid_))) + ":";
      }
      return {address + i, std::move(text)};
    }
    const Cell after = cells[i];
    for (++i; i < bytes && cells[i].writer == before.writer && cells[i].others == before.others; ++i) cells[i] = after;
  }
  if (is_atomic(kind)) publish(address, clocks_[thread], kind);
  return {};
}

}  // namespace torch_remote::codegen::emulator
