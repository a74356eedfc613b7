#include "worker/session/older_contents.h"

#include <algorithm>
#include <utility>

namespace torch_remote::worker {

OlderContents::Copies OlderContents::take(uint64_t buffer) {
  auto found = by_buffer_.extract(buffer);
  return found ? std::move(found.mapped()) : Copies();
}

void OlderContents::put(uint64_t buffer, Copies copies) {
  if (!copies.empty()) by_buffer_[buffer] = std::move(copies);
}

void OlderContents::drop_before(uint64_t failure) {
  for (auto& [buffer, copies] : by_buffer_) {
    std::erase_if(copies, [&](const Copy& copy) { return copy.failure < failure; });
  }
  std::erase_if(by_buffer_, [](const auto& of_buffer) { return of_buffer.second.empty(); });
}

void OlderContents::save(Copies& copies, const void* data, uint64_t nbytes, uint64_t failure,
                         FailurePtr missing_update) {
  if (!copies.empty() && copies.back().failure >= failure) return;
  CachingAllocator& memory = device_.memory();
  const uint64_t used = memory.stats().allocated.current, limit = memory.limit();
  Copy& copy = copies.emplace_back(failure, nullptr, std::move(missing_update));
  tr_buffer block{};
  if (data == nullptr || used > limit || nbytes > (limit - used) / 2 ||
      !memory.allocate(nbytes, &block, Visibility::kPrivate)) {
    return;
  }
  device_.copy(block.data, data, nbytes);
  copy.memory = std::make_shared<Memory>(block);
}

FailurePtr OlderContents::restore(Copies& copies, void* data, const FailurePtr& failure) {
  if (!is_unreported(failure)) return nullptr;
  const auto first = std::ranges::find_if(copies, [&](const Copy& copy) { return copy.failure >= failure->number; });
  if (first == copies.end()) return nullptr;
  FailurePtr missing_update;
  if (first->memory) {
    device_.copy(data, first->memory->data(), first->memory->nbytes());
    missing_update = std::move(first->missing_update);
  }
  copies.erase(first, copies.end());
  return missing_update;
}

}  // namespace torch_remote::worker
