#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "worker/runner/number_checks.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda {

// Nodes that are done together, or one: how with the values that a program's last run had.
class Unit {
 public:
  Unit(const ir::Graph& graph, const ir::Group& group);
  virtual ~Unit() = default;

  const ir::Group& group() const { return group_; }
  // Begins to make it anew if one of the values that it depends on is another, or if what went wrong may go right now.
  // `wait`: for a plan that is being built (RunnerProgram::takes).
  const Status& ask(std::span<const int64_t> values, bool wait = false);
  // Makes it, then: waits for its kernels. kOpFailed: one of its numbers is none that torch takes.
  const Status& bind(std::span<const int64_t> values);
  // It was asked for, and nothing says that it cannot be done with these values.
  bool is_good() const { return asked_ && status_.ok() && held_.ok(); }
  // Somebody else may do it with the values that it was asked about last.
  bool declines() const { return held_.ok() && status_.code() == ErrorCode::kUnsupported; }
  // It turned out that it cannot be done with the values that it was asked about last.
  void decline(Status why) { status_ = std::move(why); }
  // Of the values that it was asked about last.
  const Status& status() const { return status_; }
  // It is declined because of a plan that is not asked for yet: whether it is depends on how often it is used.
  virtual bool asks_again() const { return false; }
  // There is nothing to do: no result has elements.
  bool is_empty() const { return empty_; }

  // Queues it, its results have memory but for dynamic ones. The GPU's context is current.
  virtual Status run(std::span<const tr_buffer> buffers, uint64_t number) = 0;
  // Likewise; makes the memory of dynamic results, and says what these are.
  virtual Status run(tr_run& run) { return this->run({run.buffers, run.buffer_count}, run.number); }
  // Buffers with memory that its nodes make or use.
  std::span<const uint32_t> fresh() const { return fresh_; }

 protected:
  const ir::Graph& graph() const { return graph_; }
  bool waits() const { return waits_; }  // see `ask`

 private:
  // kUnsupported: it cannot be done with these values. `symbols`: which beside sizes, strides and offsets it depends
  // on.
  virtual Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) = 0;
  // The rest of it, which may take long.
  virtual Status finish() { return {}; }
  // Whether a complex number may be among its numbers although no tensor has such elements (x == 1j of a real x).
  virtual bool takes_complex_numbers() const { return false; }
  // Whether what was made does for the numbers of a run, too.
  virtual bool suits(std::span<const int64_t>) const { return true; }
  // Numbers that change nothing else. Called with each run's.
  virtual void set_numbers(std::span<const int64_t> values) = 0;

  bool makes_nothing(std::span<const int64_t> values) const;
  bool has_complex_number() const;

  const ir::Graph& graph_;
  const ir::Group group_;
  std::vector<uint32_t> fresh_;
  std::vector<ir::Sym> symbols_;
  std::vector<int64_t> values_;  // of these
  bool asked_ = false, bound_ = false, empty_ = false, waits_ = false;
  Status status_;
  const NumberChecks numbers_;
  Status held_;  // whether the last values' numbers are
};

// A program whose nodes are done by units.
class UnitProgram : public RunnerProgram {
 public:
  // `refused` counts groups that turn out to have no kernel.
  UnitProgram(CudaDevice& device, const LoadRequest& request, uint64_t& refused);

  bool creates_buffer(uint32_t buffer) const override;
  // What looks as if it could be done; that there is no kernel for it is found out when that is compiled.
  bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) override;
  bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) override;
  std::string why_not(uint32_t node) const override;
  std::string why_not_group(uint32_t first) const override;
  bool asks_again() const override;
  bool run(tr_run& run, tr_error* error) override;

 protected:
  // For all nodes of the request; for groups, and for each node alone.
  void make_units(const LoadRequest& request);
  const Unit& unit_of_group(uint32_t first) const { return *units_.at(first); }
  CudaDevice& device() const { return device_; }

 private:
  // Null: it does not execute such a group, or a node alone.
  virtual std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) = 0;
  Unit& unit_at(uint32_t node, uint32_t last);
  bool run_unit(tr_run& run, Unit& unit, const Status& bound, tr_error* error);
  Status allocate(tr_run& run, const Unit& unit);
  void note(const tr_run& run, uint32_t node);

  CudaDevice& device_;
  uint64_t& refused_;
  const ir::Graph& graph_;
  ir::Graph apart_;                                          // as if there were no groups
  std::map<uint32_t, std::unique_ptr<Unit>> units_, alone_;  // by their first node
};

}  // namespace torch_remote::worker::cuda
