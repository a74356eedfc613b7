#pragma once

#include <functional>
#include <future>
#include <mutex>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, on any thread.
using OpenCudnn = std::function<Status(dnn::Table* table)>;

// cuDNN for all runners that use it, opened by another thread in the background.
class CudnnTable {
 public:
  explicit CudnnTable(OpenCudnn open)
      : opened_(std::async(std::launch::async, [this, open = std::move(open)] { return open(&table_); })) {}
  CudnnTable(const CudnnTable&) = delete;
  CudnnTable& operator=(const CudnnTable&) = delete;

  // Waits until cuDNN is open. Null: *status says why it failed. Thread safe.
  const dnn::Table* get(Status* status) {
    const std::lock_guard lock(mutex_);
    if (opened_.valid()) status_ = opened_.get();
    *status = status_;
    return status_.ok() ? &table_ : nullptr;
  }

 private:
  std::mutex mutex_;
  dnn::Table table_;
  Status status_;
  std::future<Status> opened_;
};

}  // namespace torch_remote::worker::cuda
