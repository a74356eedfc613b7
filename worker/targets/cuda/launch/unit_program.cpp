#include "worker/targets/cuda/launch/unit_program.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "worker/device/monotonic_clock.h"
#include "worker/targets/cuda/launch/run_memory.h"

namespace torch_remote::worker::cuda {
namespace {

// Most elements of a tensor. Products of its sizes do not overflow then.
constexpr int64_t kMaxElements = int64_t{1} << 40;

// Called when a stream reaches it; `data` points to where the time goes, CLOCK_MONOTONIC in ns.
void note_time(void* data) { *static_cast<uint64_t*>(data) = monotonic_ns(); }

void set_error(const Status& status, uint32_t node, tr_error* error) {
  const char* exception_type = status.exception_type().empty() ? "RuntimeError" : status.exception_type().c_str();
  std::snprintf(error->exception_type, sizeof(error->exception_type), "%s", exception_type);
  std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
  error->node = node;
}

}  // namespace

// --- units -----------------------------------------------------------------------------------------------------------

Unit::Unit(const ir::Graph& graph, const ir::Group& group)
    : graph_(graph), group_(group), numbers_(graph, group, ScalarChecks::HalfPolicy::kWide) {
  for (uint32_t n = group.first; n <= group.last; ++n) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) {
      const uint32_t buffer = graph.views[view].buffer;
      const bool has_memory = graph.buffers[buffer].kind == ir::BufferKind::kFresh &&
                              !graph.buffers[buffer].group_local && !graph.views[view].dynamic;
      if (has_memory) fresh_.push_back(buffer);
    });
  }
}

const Status& Unit::prepare(std::span<const int64_t> values, bool wait) {
  scalar_status_ = numbers_.check(values);
  waits_ = wait;
  const auto is_same = [&] {
    for (size_t i = 0; i < symbols_.size(); ++i) {
      if (values_[i] != values[symbols_[i]]) return false;
    }
    return true;
  };
  const bool may_work_now = !status_.ok() && status_.code() != ErrorCode::kUnsupported;
  if (!is_prepared_ || may_work_now || !is_same() || (!empty_ && !is_still_valid(values))) {
    is_prepared_ = true;
    bound_ = false;
    symbols_.clear();
    values_.clear();
    empty_ = has_no_elements(values);
    if (!empty_ && has_complex_number() && !takes_complex_numbers()) {
      status_ = {ErrorCode::kUnsupported, "a complex number with real tensors"};
    } else if (!empty_ && !takes_any_sizes() && has_too_many_elements(values)) {
      status_ = {ErrorCode::kUnsupported, "a tensor of more than 2^40 elements"};
    } else {
      status_ = empty_ ? Status() : plan(values, &symbols_);
    }
    ir::add_view_symbols(graph_, group_, &symbols_);
    for (const ir::Sym symbol : symbols_) values_.push_back(values[symbol]);
  }
  return status_;
}

// Everything that it writes has no elements.
bool Unit::has_no_elements(std::span<const int64_t> values) const {
  bool nothing = true, makes = false;
  for (uint32_t n = group_.first; n <= group_.last; ++n) {
    ir::for_each_view(graph_.nodes[n], [&](uint32_t index, bool writes) {
      const ir::View& view = graph_.views[index];
      const auto is_zero = [&](ir::Sym size) { return values[size] == 0; };
      makes |= writes;
      if (writes) nothing = nothing && !view.dynamic && std::ranges::any_of(view.sizes, is_zero);
    });
  }
  return nothing && makes;
}

// Expanded views may have any size. A dim of size 0 counts as 1, because plans multiply the other dims.
bool Unit::has_too_many_elements(std::span<const int64_t> values) const {
  bool too_many = false;
  for (uint32_t n = group_.first; n <= group_.last; ++n) {
    ir::for_each_view(graph_.nodes[n], [&](uint32_t index, bool) {
      int64_t elements = 1;
      for (const ir::Sym size : graph_.views[index].sizes) {
        too_many |= __builtin_mul_overflow(elements, std::max<int64_t>(values[size], 1), &elements);
      }
      too_many |= elements > kMaxElements;
    });
  }
  return too_many;
}

bool Unit::has_complex_number() const {
  const auto is_complex_number = [](const ir::Arg& arg) {
    return arg.tag == ir::ArgTag::kComplex ||
           (arg.tag == ir::ArgTag::kScalarTensor && ir::is_complex(static_cast<ir::DType>(arg.b & 0xFF)));
  };
  for (uint32_t n = group_.first; n <= group_.last; ++n) {
    const ir::Node& node = graph_.nodes[n];
    bool has_tensor = false, has_number = false;
    ir::for_each_view(node, [&](uint32_t view, bool) { has_tensor |= ir::is_complex(graph_.views[view].dtype); });
    for (const ir::Arg& arg : node.args) {
      has_number |= is_complex_number(arg) || std::ranges::any_of(arg.items, is_complex_number);
    }
    if (has_number && !has_tensor) return true;
  }
  return false;
}

const Status& Unit::bind(std::span<const int64_t> values) {
  (void)prepare(values);
  if (!scalar_status_.ok()) return scalar_status_;
  if (status_.ok() && !bound_ && !empty_) status_ = finish();
  bound_ = status_.ok();
  if (bound_ && !empty_) set_numbers(values);
  return status_;
}

// --- programs --------------------------------------------------------------------------------------------------------

UnitProgram::UnitProgram(CudaDevice& device, const LoadRequest& request, uint64_t& refused, const MakeUnit& make_unit)
    : device_(device), refused_(refused), graph_(request.graph), ungrouped_graph_(request.graph) {
  // A node that is executed alone writes results that a group would keep in registers.
  for (ir::Buffer& buffer : ungrouped_graph_.buffers) buffer.group_local = false;
  for (const ir::Group& group : graph_.groups) {
    if (request.may_run[group.first] == 0) continue;
    if (auto unit = make_unit(graph_, group)) units_.emplace(group.first, std::move(unit));
  }
  for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    if (request.may_run[n] == 0) continue;
    ir::Group group;
    group.first = group.last = n;
    if (auto unit = make_unit(ungrouped_graph_, group)) node_units_.emplace(n, std::move(unit));
  }
}

bool UnitProgram::allocates_buffer(uint32_t buffer) const {
  return std::ranges::any_of(graph_.views, [&](const ir::View& view) { return view.buffer == buffer && view.dynamic; });
}

bool UnitProgram::takes(uint32_t first, uint32_t, std::span<const int64_t> values) {
  const auto unit = units_.find(first);
  if (unit == units_.end()) return false;
  (void)unit->second->prepare(values);
  return unit->second->is_good();
}

bool UnitProgram::takes_node(uint32_t node, std::span<const int64_t> values, bool wait) {
  const auto found = node_units_.find(node);
  if (found == node_units_.end()) return false;
  (void)found->second->prepare(values, wait);
  return !found->second->declines();
}

std::string UnitProgram::why_not(uint32_t node) const {
  const auto found = node_units_.find(node);
  return found == node_units_.end() ? "" : found->second->status().message();
}

std::string UnitProgram::why_not_group(uint32_t first) const {
  const auto found = units_.find(first);
  return found == units_.end() ? "" : found->second->status().message();
}

bool UnitProgram::asks_again() const {
  return std::ranges::any_of(node_units_, [](const auto& entry) { return entry.second->wants_retry(); });
}

bool UnitProgram::may_share(uint32_t first, uint32_t made, uint32_t source) const {
  return units_.at(first)->may_share(made, source);
}

bool UnitProgram::run(tr_run& run, tr_error* error) {
  const ContextGuard current(device_.gpu());
  const std::span<const int64_t> values(run.symbols, graph_.symbols());
  run.result_word_count = 0;
  bool good = true;
  for (uint32_t n = run.first; good && n < run.last;) {
    Unit& unit = unit_at(n, run.last);
    const Status& bound = unit.bind(values);
    note(run, n);
    good = run_unit(run, unit, bound, error);
    for (uint32_t inner = n + 1; inner <= unit.group().last; ++inner) note(run, inner);
    n = unit.group().last + 1;
  }
  note(run, run.last);
  device_.queued();
  return good;
}

// The unit of the group that begins at `node`, if the group is within the range and can run; else the node's unit.
Unit& UnitProgram::unit_at(uint32_t node, uint32_t last) {
  const auto found = units_.find(node);
  if (found == units_.end()) return *node_units_.at(node);
  Unit& unit = *found->second;
  const bool whole = unit.is_good() && unit.group().last < last && unit.group().last != node;
  return whole ? unit : *node_units_.at(node);
}

bool UnitProgram::run_unit(tr_run& run, Unit& unit, const Status& bound, tr_error* error) {
  const uint32_t node = unit.group().first;
  const std::string_view op = ir::op_desc(graph_.nodes[node].opcode).name;
  device_.gpu().set_current_op(op);
  Status status = bound;
  if (status.ok()) status = allocate(run, unit);
  if (status.ok() && !unit.is_empty()) status = unit.run(run);
  if (status.code() == ErrorCode::kUnsupported) {
    unit.decline(status);
    ++refused_;  // So the session asks again whether the group or node is taken.
    error->retry_as_nodes = 1;
  }
  if (!status.ok()) set_error(status, node, error);
  return status.ok();
}

// Allocates results that have no memory yet.
Status UnitProgram::allocate(tr_run& run, const Unit& unit) {
  for (const uint32_t buffer : unit.fresh()) {
    if (run.buffers[buffer].data != nullptr) continue;
    const auto nbytes = static_cast<uint64_t>(run.symbols[graph_.buffers[buffer].nbytes]);
    if (device_.memory().allocate(nbytes, &run.buffers[buffer])) continue;
    return no_memory(nbytes, "a result");
  }
  return {};
}

// Notes when the work stream reaches the node, if the run is profiled.
void UnitProgram::note(const tr_run& run, uint32_t node) {
  if (run.times == nullptr || device_.gpu().is_lost()) return;
  Gpu& gpu = device_.gpu();
  gpu.check(gpu.driver().launch_host_func(gpu.work_stream(), note_time, run.times + (node - run.first)),
            "cuLaunchHostFunc");
}

Status UnitRunner::load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) {
  *program = std::make_unique<UnitProgram>(
      device_, request, refused_,
      [this](const ir::Graph& graph, const ir::Group& group) { return make_unit(graph, group); });
  return {};
}

}  // namespace torch_remote::worker::cuda
