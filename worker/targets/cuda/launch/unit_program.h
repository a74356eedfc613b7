#pragma once

#include <cstdint>
#include <functional>
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

// A group of nodes, or a single node, with what was prepared for the values of the last run.
class Unit {
 public:
  Unit(const ir::Graph& graph, const ir::Group& group);
  virtual ~Unit() = default;

  const ir::Group& group() const { return group_; }
  // Prepares the unit again if a value that it depends on has changed, or if the last attempt failed for a temporary
  // reason. `wait`: wait for a plan that is being built (RunnerProgram::takes_node).
  const Status& prepare(std::span<const int64_t> values, bool wait = false);
  // Calls prepare(), and finishes the preparation: waits for kernels. kOpFailed: torch rejects one of the unit's
  // numbers.
  const Status& bind(std::span<const int64_t> values);
  // Whether the unit can run with the values of the last prepare().
  bool is_good() const { return is_prepared_ && status_.ok() && scalar_status_.ok(); }
  // Whether the unit declines those values, so that the next runner may execute it.
  bool declines() const { return scalar_status_.ok() && status_.code() == ErrorCode::kUnsupported; }
  // Records that the unit cannot run with those values after all.
  void decline(Status why) { status_ = std::move(why); }
  // The outcome of the last prepare() or bind().
  const Status& status() const { return status_; }
  // Whether the unit declines only because its plan is not requested yet, which depends on how often it runs. It must
  // then be prepared again before the next run.
  virtual bool wants_retry() const { return false; }
  // Whether no result has elements, so that there is nothing to do.
  bool is_empty() const { return empty_; }
  // RunnerProgram::may_share, for the unit's group.
  virtual bool may_share(uint32_t /*made*/, uint32_t /*source*/) const { return false; }

  // Queues the unit's work. The caller has allocated its results (fresh()), except dynamic ones. The GPU's context must
  // be current. `run_id`: tr_run::run_id.
  virtual Status run(std::span<const tr_buffer> buffers, uint64_t run_id) = 0;
  // The same; also allocates dynamic results, and writes their sizes to run.result_words.
  virtual Status run(tr_run& run) { return this->run({run.buffers, run.buffer_count}, run.run_id); }
  // Buffers that the unit's nodes use and that the caller must allocate before a run.
  std::span<const uint32_t> fresh() const { return fresh_; }

 protected:
  const ir::Graph& graph() const { return graph_; }
  bool waits() const { return waits_; }  // The `wait` of the last `prepare`.

 private:
  // Starts the preparation. kUnsupported: the unit cannot run with these values. Appends to `symbols` what the
  // preparation depends on in addition to sizes, strides and offsets.
  virtual Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) = 0;
  // The part of the preparation that may take long.
  virtual Status finish() { return {}; }
  // Whether a number may be complex although no tensor is (x == 1j with a real x).
  virtual bool takes_complex_numbers() const { return false; }
  // Whether tensors may have more than 2^40 elements. Expanded views may.
  virtual bool takes_any_sizes() const { return false; }
  // Whether what was prepared is also valid for the numbers of this run.
  virtual bool is_still_valid(std::span<const int64_t>) const { return true; }
  // Sets numbers that do not affect the preparation. Called for each run.
  virtual void set_numbers(std::span<const int64_t> values) = 0;

  bool has_no_elements(std::span<const int64_t> values) const;
  bool has_complex_number() const;
  bool has_too_many_elements(std::span<const int64_t> values) const;

  const ir::Graph& graph_;
  const ir::Group group_;
  std::vector<uint32_t> fresh_;
  std::vector<ir::Sym> symbols_;
  std::vector<int64_t> values_;  // The values of symbols_.
  bool is_prepared_ = false, bound_ = false, empty_ = false, waits_ = false;
  Status status_;
  const ScalarChecks numbers_;
  Status scalar_status_;  // Whether torch accepts the numbers of the last values.
};

// A program whose nodes are executed by units.
class UnitProgram final : public RunnerProgram {
 public:
  // Makes the unit of a group or of a single node. Null: no unit can execute it.
  using MakeUnit = std::function<std::unique_ptr<Unit>(const ir::Graph& graph, const ir::Group& group)>;

  // Makes a unit for each group and for each single node of the request. `refused` counts units that were accepted but
  // could not be executed; the runner's generation includes it.
  UnitProgram(CudaDevice& device, const LoadRequest& request, uint64_t& refused, const MakeUnit& make_unit);

  bool allocates_buffer(uint32_t buffer) const override;
  // True if a group looks supported. Whether its kernel can be compiled is known only after the compilation.
  bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) override;
  bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) override;
  std::string why_not(uint32_t node) const override;
  std::string why_not_group(uint32_t first) const override;
  bool asks_again() const override;
  bool may_share(uint32_t first, uint32_t made, uint32_t source) const override;
  bool run(tr_run& run, tr_error* error) override;

 private:
  Unit& unit_at(uint32_t node, uint32_t last);
  bool run_unit(tr_run& run, Unit& unit, const Status& bound, tr_error* error);
  Status allocate(tr_run& run, const Unit& unit);
  // For a profile: records the time at which the work queued so far is done.
  void note(const tr_run& run, uint32_t node);

  CudaDevice& device_;
  uint64_t& refused_;
  const ir::Graph& graph_;
  ir::Graph ungrouped_graph_;                                     // The graph as if it had no groups.
  std::map<uint32_t, std::unique_ptr<Unit>> units_, node_units_;  // By their first node.
};

// A runner whose programs consist of units. The device must outlive it.
class UnitRunner : public Runner {
 public:
  explicit UnitRunner(CudaDevice& device) : device_(device) {}

  bool may_decline() const override { return true; }
  // The number of units that could not execute what they had taken.
  uint64_t generation() const override { return refused_; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override;

 protected:
  CudaDevice& device() const { return device_; }

 private:
  virtual std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) = 0;

  CudaDevice& device_;
  uint64_t refused_ = 0;
};

}  // namespace torch_remote::worker::cuda
