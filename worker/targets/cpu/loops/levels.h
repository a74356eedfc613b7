#pragma once

// The instruction sets that the loops are compiled for (bazel/vector_loops.bzl). This file has no inline functions,
// because the loops include it.
namespace torch_remote::worker {

template <typename Loops>
struct LoopLevel {
  const char* target;  // as compilers of kernels name it (codegen/cpu/compile.h)
  const Loops* loops;
};

// Declares the array NAMELevels, best level first.
#if defined(__x86_64__)
#define TORCH_REMOTE_LOOP_LEVELS(Loops, name)        \
  extern const Loops name##V4; /* AVX-512 */         \
  extern const Loops name##V3; /* AVX2, FMA, F16C */ \
  inline constexpr LoopLevel<Loops> name##Levels[] = {{"x86-64-v4", &name##V4}, {"x86-64-v3", &name##V3}}
#elif defined(__aarch64__)
#define TORCH_REMOTE_LOOP_LEVELS(Loops, name) \
  extern const Loops name##Neon;              \
  inline constexpr LoopLevel<Loops> name##Levels[] = {{"aarch64", &name##Neon}}
#endif

}  // namespace torch_remote::worker
