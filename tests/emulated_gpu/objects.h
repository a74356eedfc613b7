#pragma once

#include <mutex>
#include <set>
#include <utility>

// Registry of the objects that the emulated libraries return by address. Only registered objects may be used or
// destroyed. Thread-safe.
namespace torch_remote::worker::cuda::emulated {

template <typename State>
struct Objects {
  std::mutex mutex;
  std::set<State*> all;

  static Objects& get() {
    static Objects objects;
    return objects;
  }
};

template <typename State>
State* create(State state = {}) {
  const std::lock_guard lock(Objects<State>::get().mutex);
  return *Objects<State>::get().all.insert(new State(std::move(state))).first;
}

// False if the object does not exist.
template <typename State>
bool destroy(State* object) {
  const std::lock_guard lock(Objects<State>::get().mutex);
  if (Objects<State>::get().all.erase(object) == 0) return false;
  delete object;
  return true;
}

template <typename State>
bool exists(State* object) {
  const std::lock_guard lock(Objects<State>::get().mutex);
  return Objects<State>::get().all.contains(object);
}

template <typename State>
size_t count_objects() {
  const std::lock_guard lock(Objects<State>::get().mutex);
  return Objects<State>::get().all.size();
}

}  // namespace torch_remote::worker::cuda::emulated
