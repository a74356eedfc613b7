#pragma once

#include <memory>
#include <span>
#include <string>

#include "passes/pass.h"
#include "tools/runs/case.h"
#include "tools/runs/compare.h"

// What a run must still do while it is made smaller.
namespace torch_remote::tools::reduce {

// A worker that is started again when a run has ended it.
class RevivedWorker {
 public:
  RevivedWorker(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}
  // Starts it if there is none.
  Status get(Device** device);
  // `status` is what using it gave. True: the worker is gone, which is no reason to stop.
  bool lost(const Status& status);

 private:
  const std::string name_;
  const int threads_;
  std::unique_ptr<Device> device_;
};

class Test {
 public:
  virtual ~Test() = default;
  // *yes: the run shows what is looked for. A status that is not ok ends the reduction.
  virtual Status interesting(const RunCase& run, bool* yes) = 0;
  // What the last interesting run showed, for people.
  virtual std::string finding() const = 0;
};

// The graph and what the passes make of it leave different results on one worker.
std::unique_ptr<Test> passes_mismatch(RevivedWorker& worker, std::span<const passes::Pass> passes,
                                      const Tolerance& tolerance);
// What the passes make of the graph leaves different results on two workers.
std::unique_ptr<Test> worker_mismatch(RevivedWorker& worker, RevivedWorker& other, std::span<const passes::Pass> passes,
                                      const Tolerance& tolerance);
// A shell command, with a capture of the run for {}, exits with 0.
std::unique_ptr<Test> command(std::string command);

}  // namespace torch_remote::tools::reduce
