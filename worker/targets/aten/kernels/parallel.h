#pragma once

#include <cstdint>
#include <functional>

namespace torch_remote::worker::aten {

// Runs body(begin, end) over parts of [0, count) of `grain` or more, on as many of torch's threads as it is set to use;
// returns when all of it was done. (at::parallel_for is a template, which has threads only in code that is compiled for
// OpenMP: here it would run everything on the caller's thread.)
void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

// One of the threads that do something together.
struct TeamMember {
  int64_t index, count;
  // Returns when all of them have called it.
  void wait() const;
};

// Runs `body`, which does not throw, on `most` of torch's threads or on fewer, all at the same time.
void in_team(int64_t most, const std::function<void(const TeamMember&)>& body);

}  // namespace torch_remote::worker::aten
