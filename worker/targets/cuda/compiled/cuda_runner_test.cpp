#include "worker/targets/cuda/compiled/cuda_runner.h"

#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/open.h"
#include "worker/runner/testing/conformance.h"

namespace torch_remote::worker::testing {
namespace {

void make_cuda(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  std::unique_ptr<cuda::CudaDevice> made;
  const Status status = cuda::CudaDevice::open({.driver = cuda::emulated::gpus().driver(),
                                                .limit = limit,
                                                .kernels = {.compile = cuda::emulated::compile},
                                                .slot_bytes = 256 << 10},
                                               &made);
  ASSERT_TRUE(status.ok()) << status.message();
  *runner = cuda::make_cuda_runner(*made);
  *device = std::move(made);
}

constexpr const char* kFailingNode = R"(%5: f32[s0, 1]{1, 1} @b0
  %3: f32[s0, 1]{1, 1} @b3 = aten::embedding(%5, %1, padding_idx=-1, scale_grad_by_freq=false, sparse=false))";

INSTANTIATE_TEST_SUITE_P(Cuda, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_cuda, kFailingNode, "IndexError",
                                                           /*has_host_results=*/false}));

}  // namespace
}  // namespace torch_remote::worker::testing
