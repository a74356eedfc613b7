#include "codegen/lower/loops.h"

#include <algorithm>

#include "codegen/loop/facts.h"

namespace torch_remote::codegen {

Status take_in_loops(Launch* launch) {
  Kernel& kernel = launch->kernel;
  const bool reduces_rows = std::ranges::any_of(kernel.values, [](const Value& value) { return is_total(value); });
  const auto taken =
      reduces_rows ? 0u
                   : std::min(static_cast<uint32_t>(launch->outer.size()), kMaxRows - std::min(kernel.rows, kMaxRows));
  const size_t left = launch->outer.size() - taken;
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    Operand& operand = kernel.operands[i];
    Binding& binding = launch->operands[i];
    operand.dims <<= taken;
    for (uint32_t d = 0; d < taken; ++d) {
      if (binding.outer[left + d] != 0) operand.dims |= 1u << d;
    }
    const auto first = binding.outer.begin() + static_cast<std::ptrdiff_t>(left);
    binding.strides.insert(binding.strides.begin(), first, binding.outer.end());
    binding.outer.resize(left);
    if (binding.packed) operand.strided = true;
    binding.packed = false;
  }
  for (Value& value : kernel.values) {
    if (value.kind == Kind::kIndex) value.a += taken;
  }
  kernel.rows += taken;
  launch->sizes.insert(launch->sizes.begin(), launch->outer.begin() + static_cast<std::ptrdiff_t>(left),
                       launch->outer.end());
  launch->outer.resize(left);
  const Status status = verify(kernel);
  return status.ok() ? status : Status{ErrorCode::kUnsupported, status.message()};
}

bool next_index(std::span<const int64_t> sizes, std::span<int64_t> index) {
  for (size_t d = sizes.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return true;
    index[d] = 0;
  }
  return false;
}

int64_t offset_at(const Binding& binding, std::span<const int64_t> index) {
  int64_t offset = binding.offset;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * binding.outer[d];
  return offset;
}

}  // namespace torch_remote::codegen
