#include "worker/targets/cpu/loops/host.h"

#include <array>

namespace torch_remote::worker {

std::span<const std::string_view> host_targets() {
#if defined(__x86_64__)
  static constexpr std::array<std::string_view, 2> kTargets = {"x86-64-v4", "x86-64-v3"};
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return kTargets;
  if (__builtin_cpu_supports("x86-64-v3")) return std::span(kTargets).subspan(1);
  return {};
#elif defined(__aarch64__)
  static constexpr std::array<std::string_view, 1> kTargets = {"aarch64"};  // all have NEON
  return kTargets;
#else
  return {};
#endif
}

}  // namespace torch_remote::worker
