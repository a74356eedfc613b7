#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

// Shared by the fuzz targets. A target is one file with the function below. libFuzzer calls it (--config=fuzz), and so
// does replay.cpp in the normal tests.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace torch_remote::fuzzers {

// How many inputs the target accepted or refused so far. `accepted`: the whole input was valid.
struct Counts {
  uint64_t accepted = 0;
  uint64_t refused = 0;
};

inline Counts& counts() {
  static Counts instance;
  return instance;
}

// Counts the outcome; the return value of LLVMFuzzerTestOneInput.
inline int count_outcome(bool accepted) {
  ++(accepted ? counts().accepted : counts().refused);
  return 0;
}

// Reports that a property does not hold, and ends the process.
[[noreturn]] inline void wrong(const std::string& what) {
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::abort();
}

// Reads values from an input; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}
  bool empty() const { return bytes_.empty(); }
  std::span<const uint8_t> take(size_t size) {
    const auto taken = bytes_.first(size < bytes_.size() ? size : bytes_.size());
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  template <class T>
  T number() {
    T value = 0;
    const auto taken = take(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace torch_remote::fuzzers
