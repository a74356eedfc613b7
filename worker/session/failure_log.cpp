#include "worker/session/failure_log.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace torch_remote::worker {
namespace {

constexpr size_t kMaxUnreported = 64;

}  // namespace

FailurePtr FailureLog::make(Failure failure) const {
  const uint64_t bytes = 2 * sizeof(Failure) + failure.status.message().size();
  auto made = std::make_unique<Failure>(std::move(failure));
  memory_.charge_unchecked(bytes);
  return {made.release(), [&memory = memory_, bytes](Failure* failure) {
            memory.discharge(bytes);
            delete failure;
          }};
}

FailurePtr FailureLog::add(Failure failure) {
  FailurePtr added = make(std::move(failure));
  added->number = ++count_;
  if (unreported_.size() < kMaxUnreported) {
    unreported_.push_back(added);
  } else {
    ++unlisted_;
  }
  if (added->check && !is_unreported(check_)) check_ = added;
  return added;
}

FailurePtr FailureLog::add(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index,
                           const Status& status, uint64_t sequence) {
  const ir::Node& node = program.graph.nodes[index];
  const std::string message = status.message() + " [" + describe_node(program.graph, node, values) + "]";
  bool check = true;
  ir::for_each_view(node, [&](uint32_t, bool writes) { check = check && !writes; });
  return add({{status.code(), message, status.exception_type()}, program.number, node.record, sequence, check});
}

FailurePtr FailureLog::add_cancelled(uint64_t sequence) {
  // A client sends the same message for both (python/torch_remote/integrations/ipython.py).
  const char* const why = "remote: cancelled by torch.remote.cancel() or by the interrupt of a notebook cell";
  FailurePtr failure = make({{ErrorCode::kOpFailed, why, "RuntimeError"}, 0, 0, sequence});
  failure->number = ++count_;
  failure->reported = true;
  return failure;
}

FailurePtr FailureLog::add_undecoded(Failure failure, uint64_t first_result_id) {
  undecoded_first_result_id_ = first_result_id;
  return undecoded_ = add(std::move(failure));
}

FailurePtr FailureLog::no_such_buffer(uint64_t id, uint64_t sequence) const {
  if (undecoded_ && id >= undecoded_first_result_id_) return undecoded_;
  return make({Status::invalid("remote: the worker has no buffer " + std::to_string(id)), 0, 0, sequence});
}

uint64_t FailureLog::last_unreported() const {
  for (size_t i = unreported_.size(); i-- > 0;) {
    if (!unreported_[i]->check) return unreported_[i]->number;
  }
  return 0;
}

FailurePtr FailureLog::first_check() {
  if (check_ && check_->reported) {
    const auto next = std::ranges::find_if(unreported_, [](const FailurePtr& f) { return f->check; });
    check_ = next != unreported_.end() ? *next : nullptr;
  }
  return check_;
}

FailurePtr FailureLog::announce() {
  for (const FailurePtr& failure : unreported_) {
    if (!std::exchange(failure->announced, true)) return failure;
  }
  return nullptr;
}

void FailureLog::mark_reported(const FailurePtr& failure) {
  failure->reported = true;
  std::erase(unreported_, failure);
  if (older_contents_.empty()) return;
  const auto first = std::ranges::find_if(unreported_, [](const FailurePtr& f) { return !f->check; });
  older_contents_.drop_before(first == unreported_.end() ? std::numeric_limits<uint64_t>::max() : (*first)->number);
}

std::vector<FailurePtr> FailureLog::take(uint64_t* more) {
  *more = std::exchange(unlisted_, 0);
  return std::exchange(unreported_, {});
}

FailurePtr FailureLog::take_deferred(uint64_t sequence) {
  const auto found = deferred_.extract(sequence);
  return found ? found.mapped() : nullptr;
}

}  // namespace torch_remote::worker
