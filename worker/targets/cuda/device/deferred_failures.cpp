#include "worker/targets/cuda/device/deferred_failures.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "worker/targets/cuda/kernels/bag_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

using Record = codegen::gpu::IndexRecord;

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
  const std::string_view op = operand.op;
  const std::string number = std::to_string(index), size = std::to_string(bound);
  if (op.starts_with("aten::bernoulli")) {
    return {ErrorCode::kOpFailed, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.", "RuntimeError"};
  }
  if (op.starts_with("aten::multinomial")) {
    // The order of BadWeights in kernels/search_arguments.h.
    constexpr const char* kWords[] = {
        "probability tensor contains either `inf`, `nan` or element < 0",
        "invalid multinomial distribution (encountering probability entry < 0)",
        "invalid multinomial distribution (encountering probability entry = infinity or NaN)",
        "invalid multinomial distribution (sum of probabilities <= 0)",
    };
    return {ErrorCode::kOpFailed, kWords[std::clamp<int64_t>(index, 0, 3)], "RuntimeError"};
  }
  if (op.starts_with("aten::masked_scatter")) {
    return {ErrorCode::kOpFailed, "Number of elements of source < number of ones in mask", "RuntimeError"};
  }
  if (op.starts_with("aten::binary_cross_entropy")) {
    return {ErrorCode::kOpFailed, "all elements of input should be between 0 and 1", "RuntimeError"};
  }
  if (op.starts_with("aten::histc")) {  // The two bounds are stored as the bits of doubles.
    std::ostringstream text;
    text << "range of [" << std::bit_cast<double>(index) << ", " << std::bit_cast<double>(bound) << "] is not finite";
    return {ErrorCode::kOpFailed, "torch.histc: " + text.str(), "RuntimeError"};
  }
  if (op.starts_with("aten::multi_margin_loss")) {
    return {ErrorCode::kOpFailed, "target out of range", "RuntimeError"};
  }
  if (op.starts_with("aten::multilabel_margin_loss")) {
    const std::string place = op.ends_with("_backward") ? "3" : "2";
    return {ErrorCode::kOpFailed, "argument #" + place + " 'target' is out of range", "RuntimeError"};
  }
  if (op.starts_with("aten::repeat_interleave")) {
    const bool is_negative = index < 0;
    return {ErrorCode::kOpFailed,
            is_negative ? "repeats can not be negative" : "allocated size does not match required size",
            "RuntimeError"};
  }
  if (op.starts_with("aten::_embedding_bag")) {
    std::string text = "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be " + number;
    if (bound == kFirstOffset) {
      text =
          "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
          "However, got " +
          number;
    } else if (bound <= kLastOffset) {
      text = "offsets[-1] can not be greater than input's length " + std::to_string(kLastOffset - bound) +
             " but got offsets[-1] of " + number;
    }
    return {ErrorCode::kOpFailed, text, "RuntimeError"};
  }
  if (operand.dim == kMaskedCount) {
    return {ErrorCode::kOpFailed,
            "shape mismatch: value tensor of shape [" + size + "] cannot be broadcast to indexing result of shape [" +
                number + "]",
            "RuntimeError"};
  }
  if (operand.dim == kDivision) return {ErrorCode::kOpFailed, "ZeroDivisionError", "RuntimeError"};
  const bool in_self =
      op.starts_with("aten::embedding") || op.starts_with("aten::index_select") || op.starts_with("aten::index_add");
  const bool of_all = op.starts_with("aten::take") || op.starts_with("aten::put");
  std::string text = "index " + number + " is out of bounds for dimension ";
  if (operand.dim >= 0) text += std::to_string(operand.dim) + " ";
  text += "with size " + size;
  if (in_self) text = "index out of range in self";
  if (of_all) text = "out of range: tried to access index " + number + " on a tensor of " + size + " elements.";
  if (op.starts_with("aten::nll_loss")) text = "Target " + number + " is out of bounds.";
  return {ErrorCode::kOpFailed, text, "IndexError"};
}

DeferredFailures::~DeferredFailures() {
  if (records_ == 0 || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  (void)gpu_->driver().mem_free_async(records_, gpu_->work_stream());
  (void)gpu_->driver().mem_free_host(host_);
}

bool DeferredFailures::open() {
  const Driver& driver = gpu_->driver();
  constexpr size_t kBytes = kRecords * sizeof(Record);
  void* host = nullptr;
  if (driver.mem_host_alloc(&host, kBytes, 0) != Result::kSuccess) return false;
  if (driver.mem_alloc_from_pool_async(&records_, kBytes, gpu_->pool(), gpu_->work_stream()) != Result::kSuccess) {
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
