#pragma once

#include <memory>
#include <span>
#include <string>

#include "ir/checking/compare.h"
#include "passes/pass.h"
#include "tools/runs/case.h"

// The property that a run must keep while it is reduced.
namespace torch_remote::tools::reduce {

// A worker that is started again after a run has ended it.
class RestartingWorker {
 public:
  RestartingWorker(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}
  // Starts the worker if there is none.
  Status get(Device** device);
  // `status`: the result of using the worker. Returns true if the worker is gone; the reduction then continues with a
  // new one.
  bool lost(const Status& status);

 private:
  const std::string name_;
  const int threads_;
  std::unique_ptr<Device> device_;
};

class Test {
 public:
  virtual ~Test() = default;
  // Sets *yes if the run has the property. An error status ends the reduction.
  virtual Status interesting(const RunCase& run, bool* yes) = 0;
  // Describes what the last interesting run showed.
  virtual std::string finding() const = 0;
};

// The graph and its optimized form give different results on one worker.
std::unique_ptr<Test> passes_mismatch(RestartingWorker& worker, std::span<const passes::Pass> passes,
                                      const ir::Tolerance& tolerance);
// The optimized graph gives different results on two workers.
std::unique_ptr<Test> worker_mismatch(RestartingWorker& worker, RestartingWorker& other,
                                      std::span<const passes::Pass> passes, const ir::Tolerance& tolerance);
// A shell command exits with 0. In it, {} stands for the path of a capture of the run.
std::unique_ptr<Test> command(std::string command);

}  // namespace torch_remote::tools::reduce
