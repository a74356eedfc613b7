#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// How many threads an op is given. Torch and MKL use all of them for work far too small for it, which on few cores
// takes one from the client: an op that is done in some twenty microseconds gets one thread.
namespace torch_remote::worker::aten {

// What a node has to be worth to be given more: in multiply-adds of a matmul, about 20 us of one core.
inline constexpr double kWorthThreads = 1 << 20;

// What each node of the graph is worth in them, as far as its views' sizes tell. `symbols` are their values.
void estimate_work(const ir::Graph& graph, const int64_t* symbols, std::vector<double>* work);

// The number of threads that torch uses when called from this thread. Not in the user's process, whose choice it is.
class ThreadCount {
 public:
  // `count`: at most so many; 0: torch's default. `fixed`: never changed.
  ThreadCount(int count, bool fixed);

  // Whether there is more than one way.
  bool can_change() const { return all_ > 1; }

  void set(bool parallel) {
    if (parallel != parallel_ && all_ > 1) change(parallel);
  }

 private:
  void change(bool parallel);

  int all_ = 1;
  bool parallel_ = true;
};

}  // namespace torch_remote::worker::aten
