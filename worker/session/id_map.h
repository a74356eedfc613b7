#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_remote::worker {

// A hash map from buffer ids to T: open addressing, linear probing, deletion by shifting back. Ids come in sequences of
// consecutive numbers, which the multiplicative hash spreads. Any 64-bit id except 0 may be looked up.
template <class T>
class IdMap {
 public:
  // Returns null if there is no entry.
  T* find(uint64_t id) {
    if (slots_.empty() || id == 0) return nullptr;
    for (size_t i = home(id);; i = next(i)) {
      if (slots_[i].id == id) return &slots_[i].value;
      if (slots_[i].id == 0) return nullptr;
    }
  }

  // Returns the id's entry and creates it if there is none. `id` is not 0. Invalidates pointers to entries.
  T& operator[](uint64_t id) {
    if (T* found = find(id)) return *found;
    if ((size_ + 1) * 2 > slots_.size()) grow();
    size_t i = home(id);
    while (slots_[i].id != 0) i = next(i);
    slots_[i].id = id;
    ++size_;
    return slots_[i].value;
  }

  // Returns false if there was no entry.
  bool erase(uint64_t id) {
    T* found = find(id);
    if (!found) return false;
    size_t hole = static_cast<size_t>(reinterpret_cast<Slot*>(reinterpret_cast<char*>(found) - offsetof(Slot, value)) -
                                      slots_.data());
    slots_[hole] = Slot{};
    --size_;
    for (size_t i = next(hole); slots_[i].id != 0; i = next(i)) {
      // An entry may move back to the hole if its home slot does not lie between the two.
      const size_t distance = (i - home(slots_[i].id)) & (slots_.size() - 1);
      if (distance >= ((i - hole) & (slots_.size() - 1))) {
        slots_[hole] = std::exchange(slots_[i], Slot{});
        hole = i;
      }
    }
    return true;
  }

  size_t size() const { return size_; }

  // Calls visit(id, value) for all entries, in any order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.id != 0) visit(slot.id, slot.value);
    }
  }

 private:
  struct Slot {
    uint64_t id = 0;
    T value{};
  };

  size_t home(uint64_t id) const { return (id * 0x9E3779B97F4A7C15) >> 20 & (slots_.size() - 1); }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : slots_.size() * 2));
    for (Slot& slot : old) {
      if (slot.id == 0) continue;
      size_t i = home(slot.id);
      while (slots_[i].id != 0) i = next(i);
      slots_[i] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace torch_remote::worker
