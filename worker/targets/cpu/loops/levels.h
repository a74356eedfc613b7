#pragma once

// The instruction sets that the loops are compiled for (bazel/vector_loops.bzl). This file has no inline functions,
// because the loops include it.
namespace torch_remote::worker {

template <typename Loops>
struct LoopLevel {
  const char* target;  // as compilers of kernels name it (codegen/cpu/compile.h)
  const Loops* loops;
};

// Declares the loops NAME of each instruction set, in a namespace of its own, and the array NAMELevels, best level
// first.
#if defined(__x86_64__)
#define TORCH_REMOTE_LOOP_LEVELS(Loops, name) \
  namespace v4 { /* AVX-512 */                \
  extern const Loops name;                    \
  }                                           \
  namespace v3 { /* AVX2, FMA, F16C */        \
  extern const Loops name;                    \
  }                                           \
  inline constexpr LoopLevel<Loops> name##Levels[] = {{"x86-64-v4", &v4::name}, {"x86-64-v3", &v3::name}}
#elif defined(__aarch64__)
#define TORCH_REMOTE_LOOP_LEVELS(Loops, name) \
  namespace neon {                            \
  extern const Loops name;                    \
  }                                           \
  inline constexpr LoopLevel<Loops> name##Levels[] = {{"aarch64", &neon::name}}
#endif

}  // namespace torch_remote::worker
