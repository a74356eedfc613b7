#include "worker/aten/threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <thread>

#include "worker/aten/testing.h"

namespace torch_remote::worker::aten {
namespace {

TEST(ThreadCount, GivesOneThreadToWhatIsNotParallel) {
  std::thread([] {
    ThreadCount threads(3, /*fixed=*/false);
    EXPECT_EQ(at::get_num_threads(), 3);
    threads.set(false);
    EXPECT_EQ(at::get_num_threads(), 1);
    threads.set(true);
    EXPECT_EQ(at::get_num_threads(), 3);
  }).join();
}

TEST(ThreadCount, LeavesTheUsersProcessAlone) {
  std::thread([] {
    const int before = at::get_num_threads();
    ThreadCount threads(before + 2, /*fixed=*/true);
    threads.set(false);
    EXPECT_EQ(at::get_num_threads(), before);
  }).join();
}

std::vector<bool> parallel_of(GraphBuilder& builder) {
  builder.finish();
  std::vector<int64_t> values;
  EXPECT_TRUE(ir::evaluate(builder.graph, builder.params.data(), &values).ok());
  std::vector<bool> parallel;
  find_parallel(builder.graph, values.data(), &parallel);
  return parallel;
}

TEST(FindParallel, LooksAtTheWorkOfAnOp) {
  GraphBuilder builder;
  const auto mm = [&](int64_t m, int64_t k, int64_t n) {
    builder.call("aten::mm", {at::empty({m, k}), at::empty({k, n})}, {at::empty({m, n})});
  };
  mm(16, 32, 64);
  mm(64, 256, 512);
  builder.call("aten::relu", {at::empty({1024})}, {at::empty({1024})});
  builder.call("aten::relu", {at::empty({1 << 20})}, {at::empty({1 << 20})});
  const auto inverse = [&](int64_t n) {
    builder.call("aten::linalg_inv_ex", {at::empty({n, n}), false}, {at::empty({n, n}), at::empty({}, at::kInt)});
  };
  inverse(8);
  inverse(512);
  EXPECT_EQ(parallel_of(builder), (std::vector<bool>{false, true, false, true, false, true}));
}

}  // namespace
}  // namespace torch_remote::worker::aten
