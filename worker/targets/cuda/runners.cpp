#include "worker/targets/cuda/runners.h"

#include "worker/targets/cuda/compiled/cuda_runner.h"
#include "worker/targets/cuda/dnn/attention/attention_runner.h"
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_runner.h"
#include "worker/targets/cuda/dnn/convolution/convolution_runner.h"
#include "worker/targets/cuda/dnn/rnn/rnn_runner.h"
#include "worker/targets/cuda/ops/op_kernels.h"
#include "worker/targets/cuda/ops/op_runner.h"

namespace torch_remote::worker::cuda {

Runners make_runners(CudaDevice& device, RunnerSources sources) {
  const auto& [cublaslt, cudnn, archive, aten, folder] = sources;
  const auto kernels = std::make_shared<OpKernels>(device, archive);
  Runners runners;
  runners.push_back(make_cuda_runner(device));
  runners.push_back(make_gemm_runner(device, cublaslt, folder));
  runners.push_back(make_convolution_runner(device, cudnn, folder));
  runners.push_back(make_attention_runner(device, cudnn, folder, kernels));
  runners.push_back(make_batch_norm_runner(device, cudnn, folder, kernels));
  runners.push_back(make_rnn_runner(device, cudnn));
  runners.push_back(make_op_runner(kernels));
  runners.push_back(make_aten_runner(device, aten));
  return runners;
}

}  // namespace torch_remote::worker::cuda
