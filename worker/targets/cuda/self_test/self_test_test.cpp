#include "worker/targets/cuda/self_test/self_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/hand_written_kernels.h"
#include "tests/emulated_gpu/open.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/gemm/gemm_runner.h"

namespace torch_remote::worker::cuda {
namespace {

const SelfTestRow& find(const std::vector<SelfTestRow>& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &SelfTestRow::name);
  if (found != rows.end()) return *found;
  ADD_FAILURE() << "there is no row " << name;
  return rows.front();
}

std::string table(const std::vector<SelfTestRow>& rows) {
  std::string text;
  for (const SelfTestRow& row : rows) text += to_text(row);
  return text;
}

TEST(SelfTest, PassesOnTheEmulator) {
  size_t reported = 0;
  const std::vector<SelfTestRow> rows = self_test(emulated::device_opener, {}, emulated::hand_written_kernels(), 2,
                                                  [&](const SelfTestRow&) { ++reported; });
  for (const SelfTestRow& row : rows) EXPECT_EQ(row.state, SelfTestState::kOk) << to_text(row);
  EXPECT_EQ(reported, rows.size());
  EXPECT_EQ(status_of(rows), 0);
  for (const char* name : {"load ctc.cu", "run ctc.cu", "GEMM (cuBLASLt)", "convolution (cuDNN)", "attention (cuDNN)",
                           "CUDA graph", "all-reduce (NCCL)"}) {
    find(rows, name);
  }
}

TEST(SelfTest, OneGpuNeedsNoNccl) {
  const auto rows = self_test(emulated::device_opener, {}, emulated::hand_written_kernels(), 1, [](const auto&) {});
  EXPECT_EQ(find(rows, "all-reduce (NCCL)").state, SelfTestState::kSkipped) << table(rows);
  EXPECT_EQ(status_of(rows), 0);
}

// A library that reports success and computes nothing.
TEST(SelfTest, FindsWrongNumbers) {
  const auto open = [](const std::string& id) -> DeviceOpener {
    return [inner = emulated::device_opener(id)](remote::Transport& transport, const DeviceOptions& options,
                                                 std::function<tr_client_activity()> activity, OpenDevice* opened) {
      Status status = inner(transport, options, std::move(activity), opened);
      if (!status.ok()) return status;
      auto& device = dynamic_cast<CudaDevice&>(*opened->device);
      for (auto& runner : opened->runners) {
        if (runner->name() != "cuBLASLt") continue;
        runner = make_gemm_runner(
            device,
            [](lt::Table* opened_table) {
              *opened_table = emulated::cublaslt();
              opened_table->matmul = [](auto...) { return lt::Result{}; };
              return Status();
            },
            "");
      }
      return status;
    };
  };
  const auto rows = self_test(open, {}, emulated::hand_written_kernels(), 1, [](const auto&) {});
  const SelfTestRow& gemm = find(rows, "GEMM (cuBLASLt)");
  EXPECT_EQ(gemm.state, SelfTestState::kFailed) << table(rows);
  EXPECT_NE(gemm.reason.find("instead of 19"), std::string::npos) << gemm.reason;
  EXPECT_NE(gemm.program.find("aten::mm"), std::string::npos) << gemm.program;
  EXPECT_EQ(find(rows, "convolution (cuDNN)").state, SelfTestState::kOk) << table(rows);
  EXPECT_EQ(status_of(rows), 1);
}

TEST(SelfTest, FindsMissingImages) {
  const auto rows = self_test(emulated::device_opener, {}, {}, 1, [](const auto&) {});
  EXPECT_NE(find(rows, "load sort.cu").reason.find("there is no image for sm_"), std::string::npos) << table(rows);
  EXPECT_EQ(find(rows, "run sort.cu").state, SelfTestState::kOk) << table(rows);
}

TEST(SelfTest, DoesNotRunWithoutAGpu) {
  const auto open = [](const std::string&) -> DeviceOpener {
    return [](remote::Transport&, const DeviceOptions&, const std::function<tr_client_activity()>&, OpenDevice*) {
      return Status(ErrorCode::kUnsupported, "cuda: no driver; install one");
    };
  };
  const auto rows = self_test(open, {}, emulated::hand_written_kernels(), 1, [](const auto&) {});
  EXPECT_EQ(rows.front().state, SelfTestState::kFailed);
  EXPECT_EQ(rows.back().state, SelfTestState::kNotRun);
  EXPECT_NE(to_text(rows.front()).find("install one"), std::string::npos);
  EXPECT_EQ(status_of(rows), 1);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
