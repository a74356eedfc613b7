#include "worker/session/run_memory.h"

#include <ranges>
#include <utility>

namespace torch_remote::worker {
namespace {

void release_block(tr_buffer& buffer) {
  if (buffer.release) buffer.release(buffer.owner);
  buffer = {};
}

}  // namespace

RunMemory::~RunMemory() {
  for (tr_buffer& buffer : buffers_) release_block(buffer);
  release_block(arena_);
}

bool RunMemory::allocate_arena() {
  const ir::ArenaLayout& layout = program_.layout;
  if (layout.size == ir::ArenaLayout::kNone || !memory_.allocate(layout.size, &arena_, Visibility::kPrivate))
    return false;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (layout.offsets[b] == ir::ArenaLayout::kNone) continue;
    buffers_[b] = borrowed(static_cast<std::byte*>(arena_.data) + layout.offsets[b], program_.nbytes[b]);
  }
  return true;
}

bool RunMemory::allocate(const Stage& stage) {
  for (const auto& [b, from] : stage.allocate) {
    tr_buffer& buffer = buffers_[b];
    if (from != ir::kNoBuffer) {
      buffer = std::exchange(buffers_[from], borrowed(buffers_[from].data, program_.nbytes[from]));
      buffer.nbytes = program_.nbytes[b];
    } else if (!memory_.allocate(program_.nbytes[b], &buffer,
                                 program_.temporary[b] ? Visibility::kPrivate : Visibility::kShared)) {
      return false;
    }
  }
  return true;
}

void RunMemory::unshare(const Stage& stage, uint32_t next) {
  for (const auto& [b, from] : std::views::reverse(stage.allocate)) {
    if (from == ir::kNoBuffer || program_.step_lifetimes[b].first < next || !buffers_[b].data) continue;
    buffers_[from] = std::exchange(buffers_[b], {});
    buffers_[from].nbytes = program_.nbytes[from];
  }
}

bool RunMemory::allocate(uint32_t buffer) {
  tr_buffer& memory = buffers_[buffer];
  if (memory.data) return true;
  uint64_t nbytes = program_.nbytes[buffer];
  if (nbytes == kUnknownSize) nbytes = reach(program_.graph, program_.values, buffer);
  if (memory_.allocate(nbytes, &memory)) return true;
  memory = borrowed(nullptr, program_.nbytes[buffer]);
  return false;
}

void RunMemory::release(uint32_t buffer) { release_block(buffers_[buffer]); }

}  // namespace torch_remote::worker
