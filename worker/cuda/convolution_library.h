#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/cuda/choice_file.h"
#include "worker/cuda/convolution.h"
#include "worker/cuda/cudnn.h"
#include "worker/cuda/cudnn_plans.h"
#include "worker/cuda/gpu.h"
#include "worker/device/memory.h"

namespace torch_remote::worker::cuda {

// What a problem's calls need, made once: the graph of operations, and the plans that the library proposes for it, of
// which the fastest one is kept, in a file, too.
class PreparedConvolution {
 public:
  ~PreparedConvolution();
  PreparedConvolution(const PreparedConvolution&) = delete;
  PreparedConvolution& operator=(const PreparedConvolution&) = delete;

  size_t plans() const { return choice_.plans().size(); }
  size_t best() const { return choice_.best(); }

 private:
  friend class ConvolutionLibrary;
  explicit PreparedConvolution(const dnn::Table& table) : table_(table) {}

  const dnn::Table& table_;
  ConvolutionProblem problem_;
  std::vector<dnn::Descriptor> made_;  // each after those that it refers to
  dnn::Descriptor graph_ = nullptr;
  dnn::PlanChoice choice_;
};

struct ConvolutionPointers {
  DevicePointer image = 0, filter = 0, output = 0, bias = 0;
};

// cuDNN on one GPU's work stream. Used by one thread, with the GPU's context current. The table outlives it.
class ConvolutionLibrary {
 public:
  struct Options {
    const dnn::Table* table = nullptr;
    uint64_t workspace = uint64_t{1} << 30;  // bytes that a plan may want
    size_t timed = 4;                        // how many proposals are looked at
    std::string folder;                      // where choices are kept; empty: nowhere. Others cannot write there
  };
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<ConvolutionLibrary>* library);
  ~ConvolutionLibrary();

  // kUnsupported: cuDNN does no such thing. Problems are known from then on, whatever the answer.
  Status prepare(const ConvolutionProblem& problem, std::shared_ptr<PreparedConvolution>* prepared);
  // Queues it: at once the first time, as only the call itself tells whether it can be done.
  Status run(const std::shared_ptr<PreparedConvolution>& prepared, const ConvolutionPointers& pointers);

  // How often proposals were asked for, and how often a file said which one to take.
  uint64_t asked() const { return asked_; }
  uint64_t found() const { return found_; }

 private:
  struct Known {
    std::shared_ptr<PreparedConvolution> prepared;
    Status status;
  };

  ConvolutionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(PreparedConvolution& prepared);
  Status ask(PreparedConvolution& prepared);
  bool take_kept(PreparedConvolution& prepared);
  // `only`: of that choice alone.
  Status add_plans(PreparedConvolution& prepared, dnn::HeuristicsMode mode, bool varies,
                   const std::string* only = nullptr);
  Status call(const PreparedConvolution& prepared, const dnn::Plan& plan, const ConvolutionPointers& pointers,
              DevicePointer workspace, Stream stream) const;
  Status first_run(PreparedConvolution& prepared, const ConvolutionPointers& pointers);

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const dnn::Table& table_;
  dnn::Handle handle_ = nullptr;
  std::map<ConvolutionProblem, Known> known_;
  ChoiceFile file_;
  uint64_t asked_ = 0, found_ = 0;
};

}  // namespace torch_remote::worker::cuda
