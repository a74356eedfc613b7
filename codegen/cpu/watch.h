#pragma once

#include <time.h>

#include <string>
#include <type_traits>
#include <utility>

#include "llvm/IR/Module.h"
#include "llvm/Support/raw_ostream.h"

// The compilers report this about their steps: the time they took, and the text of intermediate forms.
namespace torch_remote::codegen {

// Measures this thread's processor time, so that other threads' work does not count.
class Stopwatch {
 public:
  // Milliseconds since the last lap.
  double lap() {
    const double now = time();
    return now - std::exchange(last_, now);
  }

 private:
  static double time() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  }

  double last_ = time();
};

// The text of an llvm::Module or an mlir::ModuleOp.
template <typename T>
std::string text_of(T& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  if constexpr (std::is_same_v<T, llvm::Module>) {
    module.print(stream, nullptr);
  } else {
    module.print(stream);
  }
  return text;
}

}  // namespace torch_remote::codegen
