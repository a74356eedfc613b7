#include "worker/targets/cuda/device/deferred_failures.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

using Record = codegen::gpu::IndexRecord;

// The columns `index_error` and `data_error` of ir/ops/*.toml, sorted by op.
struct DataError {
  std::string_view op, text;
  const char* kind;
};
constexpr DataError kDataErrors[] = {
#include "worker/targets/cuda/device/data_errors_generated.inc"
};

// Replaces the first occurrence of `name`.
std::string with_number(std::string_view text, std::string_view name, const std::string& number) {
  std::string made(text);
  if (const size_t at = made.find(name); at != std::string::npos) made.replace(at, name.size(), number);
  return made;
}

// Every byte of an empty record: its operand is codegen::kNone, and all operands are marked unfailed.
constexpr uint8_t kEmpty = 0xFF;

// Adds a failure for each node that the record says had a bad index, in node order.
void add(uint64_t run, const Record& record, std::span<const IndexedOperand> operands,
         std::vector<DeferredFailure>* failures) {
  if (record.operand >= operands.size()) return;
  const IndexedOperand& failing = operands[record.operand];
  std::map<uint32_t, Status> nodes;
  nodes[failing.node] = index_error(failing, record.index, record.bound);
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool good = record.unfailed_operands >> std::min<size_t>(i, 31) & 1;
    if (good || operands[i].op.empty()) continue;
    nodes.try_emplace(operands[i].node, Status{ErrorCode::kOpFailed, "an index is out of bounds", "IndexError"});
  }
  for (const auto& [node, status] : nodes) failures->push_back({run, node, status});
}

}  // namespace

Status index_error(const IndexedOperand& operand, int64_t index, int64_t bound) {
  if (!operand.message.empty()) return {ErrorCode::kOpFailed, operand.message, "RuntimeError"};
  if (operand.describe != nullptr) {
    const std::string text = operand.describe(index, bound);
    if (!text.empty()) return {ErrorCode::kOpFailed, text, "RuntimeError"};
  }
  const std::string number = std::to_string(index), size = std::to_string(bound);
  if (operand.dim == kMaskedCount) {
    return {ErrorCode::kOpFailed,
            "shape mismatch: value tensor of shape [" + size + "] cannot be broadcast to indexing result of shape [" +
                number + "]",
            "RuntimeError"};
  }
  if (operand.dim == kDivision) return {ErrorCode::kOpFailed, "ZeroDivisionError", "RuntimeError"};
  const auto* const row = std::ranges::lower_bound(kDataErrors, operand.op, {}, &DataError::op);
  if (row != std::end(kDataErrors) && row->op == operand.op) {
    return {ErrorCode::kOpFailed, with_number(with_number(row->text, "{index}", number), "{size}", size), row->kind};
  }
  std::string text = "index " + number + " is out of bounds for dimension ";
  if (operand.dim >= 0) text += std::to_string(operand.dim) + " ";
  text += "with size " + size;
  return {ErrorCode::kOpFailed, text, "IndexError"};
}

DeferredFailures::~DeferredFailures() {
  if (records_ == 0 || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  (void)gpu_->free(records_);
  (void)gpu_->driver().mem_free_host(host_);
}

bool DeferredFailures::open() {
  const Driver& driver = gpu_->driver();
  constexpr size_t kBytes = kRecords * sizeof(Record);
  void* host = nullptr;
  if (driver.mem_host_alloc(&host, kBytes, 0) != Result::kSuccess) return false;
  if (gpu_->memory().allocate(&records_, kBytes) != Result::kSuccess) {
    (void)driver.mem_free_host(host);
    records_ = 0;
    return false;
  }
  host_ = static_cast<Record*>(host);
  return gpu_->check(driver.memset_d8_async(records_, kEmpty, kBytes, gpu_->work_stream()), "cuMemsetD8Async");
}

uint64_t DeferredFailures::take(uint64_t run, std::shared_ptr<const std::vector<IndexedOperand>> operands) {
  if (gpu_->is_lost() || (records_ == 0 && !open())) return 0;
  const uint32_t record = std::exchange(next_, (next_ + 1) % kRecords);
  in_flight_.push_back({record, run, std::move(operands), 0});
  return records_ + record * sizeof(Record);
}

bool DeferredFailures::copy(uint32_t first, uint32_t last) {
  const Driver& driver = gpu_->driver();
  const size_t bytes = (last - first) * sizeof(Record);
  const DevicePointer from = records_ + first * sizeof(Record);
  return gpu_->check(driver.memcpy_dtoh_async(host_ + first, from, bytes, gpu_->work_stream()), "cuMemcpyDtoHAsync") &&
         gpu_->check(driver.memset_d8_async(from, kEmpty, bytes, gpu_->work_stream()), "cuMemsetD8Async");
}

bool DeferredFailures::flush(Ticket ticket) {
  auto first = in_flight_.end();
  while (first != in_flight_.begin() && std::prev(first)->ticket == 0) --first;
  while (first != in_flight_.end()) {  // One contiguous piece, or two if the records wrap around the ring.
    auto last = first;
    uint32_t end = first->record;
    for (; last != in_flight_.end() && last->record == end; ++last, ++end) last->ticket = ticket;
    if (!copy(first->record, end)) return false;
    first = last;
  }
  return true;
}

void DeferredFailures::collect(Ticket done, std::vector<DeferredFailure>* failures) {
  while (!in_flight_.empty() && in_flight_.front().ticket != 0 && in_flight_.front().ticket <= done) {
    const InFlightRecord& taken = in_flight_.front();
    const Record& record = host_[taken.record];
    add(taken.run, record, *taken.operands, failures);
    in_flight_.pop_front();
  }
}

}  // namespace torch_remote::worker::cuda
