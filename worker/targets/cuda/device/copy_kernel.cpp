#include "worker/targets/cuda/device/copy_kernel.h"

#include <algorithm>
#include <vector>

#include "codegen/loop/scalar_ops.h"

namespace torch_remote::worker::cuda {
namespace {

codegen::Operand operand_of(ir::DType dtype, std::span<const int64_t> strides) {
  codegen::Operand operand{.dtype = dtype};
  for (size_t d = 0; d < strides.size(); ++d) {
    if (strides[d] != 0) operand.dims |= 1u << d;
  }
  operand.strided = !strides.empty() && strides.back() > 1;
  return operand;
}

}  // namespace

ir::DType bits_type(uint32_t item_size) {
  return item_size == 1   ? ir::DType::kUInt8
         : item_size == 2 ? ir::DType::kInt16
         : item_size == 4 ? ir::DType::kInt32
                          : ir::DType::kInt64;
}

codegen::Kernel make_copy_kernel(const StridedCopy& copy) {
  codegen::Kernel kernel;
  kernel.rows = static_cast<uint32_t>(copy.sizes.size() - 1);
  kernel.columns = 1;
  kernel.operands = {operand_of(copy.from_type, copy.from_strides), operand_of(copy.to_type, copy.to_strides)};
  const ir::DType loaded = codegen::loaded_type(copy.from_type), stored = codegen::loaded_type(copy.to_type);
  kernel.values = {{.kind = codegen::Kind::kLoad, .type = loaded, .operand = 0}};
  if (loaded != stored) kernel.values.push_back({.kind = codegen::Kind::kConvert, .type = stored, .a = 0});
  kernel.stores = {{.operand = 1, .value = static_cast<uint32_t>(kernel.values.size() - 1)}};
  return kernel;
}

namespace {

// Queues a copy for each position along the smallest dim.
Status queue_copies(Gpu& gpu, KernelStore& kernels, const StridedCopy& copy) {
  const auto smallest = std::ranges::min_element(copy.sizes) - copy.sizes.begin();
  const auto others = [smallest](std::span<const int64_t> numbers) {
    std::vector<int64_t> left(numbers.begin(), numbers.end());
    left.erase(left.begin() + smallest);
    return left;
  };
  const auto dim = static_cast<size_t>(smallest);
  const std::vector<int64_t> sizes = others(copy.sizes), from = others(copy.from_strides), to = others(copy.to_strides);
  StridedCopy part = copy;
  part.sizes = sizes;
  part.from_strides = from;
  part.to_strides = to;
  for (int64_t i = 0; i < copy.sizes[dim]; ++i) {
    if (Status status = queue_copy(gpu, kernels, part); !status.ok()) return status;
    part.from += static_cast<uint64_t>(copy.from_strides[dim] * ir::item_size(copy.from_type));
    part.to += static_cast<uint64_t>(copy.to_strides[dim] * ir::item_size(copy.to_type));
  }
  return {};
}

}  // namespace

Status queue_copy(Gpu& gpu, KernelStore& kernels, const StridedCopy& given) {
  StridedCopy copy = given;
  std::vector<int64_t> sizes(given.sizes.begin(), given.sizes.end());
  std::vector<int64_t> from(given.from_strides.begin(), given.from_strides.end());
  std::vector<int64_t> to(given.to_strides.begin(), given.to_strides.end());
  if (std::ranges::find(sizes, 0) != sizes.end()) return {};
  if (given.from_type == given.to_type) {
    const uint32_t item = ir::item_size(given.from_type);
    copy.from_type = copy.to_type = bits_type(item);
    if (item == 16) {  // Copies an element as two 8-byte halves.
      for (std::vector<int64_t>* strides : {&from, &to}) {
        for (int64_t& stride : *strides) stride *= 2;
        strides->push_back(1);
      }
      sizes.push_back(2);
    }
  }
  if (sizes.empty()) sizes = from = to = {1};
  copy.sizes = sizes;
  copy.from_strides = from;
  copy.to_strides = to;
  if (sizes.size() > codegen::kMaxRows + 1) return queue_copies(gpu, kernels, copy);
  const LoadedKernel* loaded = nullptr;
  if (Status status = kernels.get(make_copy_kernel(copy), &loaded); !status.ok()) return status;
  std::vector<int64_t> strides = from;
  strides.insert(strides.end(), to.begin(), to.end());
  const uint64_t data[] = {copy.from, copy.to};
  codegen::gpu::Call call;
  call.sizes = sizes;
  call.data = data;
  call.strides = strides;
  call.processors = gpu.multiprocessors();
  (void)launch(gpu, *loaded, call);
  return {};
}

}  // namespace torch_remote::worker::cuda
