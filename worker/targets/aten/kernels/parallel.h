#pragma once

#include <cstdint>
#include <functional>

// A function of loops: one body for each instruction set, of which the first call takes the best.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define TR_FOR_EACH_CPU __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define TR_FOR_EACH_CPU
#endif

namespace torch_remote::worker::aten {

// Runs body(begin, end) over parts of [0, count) with `grain` or more elements each, on as many of torch's threads as
// are set. Returns when all parts are done. (at::parallel_for is a template that uses threads only in code compiled
// with OpenMP. Here it would run everything in the calling thread.)
void run_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

// A thread of a team that runs one function together.
struct TeamMember {
  int64_t index, count;
  // Returns when all members have called it.
  void wait() const;
};

// Runs `body`, which must not throw, on at most `most` of torch's threads, all at the same time.
void run_team(int64_t most, const std::function<void(const TeamMember&)>& body);

}  // namespace torch_remote::worker::aten
