#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <c10/util/string_view.h>

#include <string_view>
#include <vector>

// The generated files' interface to structured_metas.cpp. There are several files, so that they compile in parallel.
namespace torch_remote::frontend::metas {

struct StructuredMeta {
  std::string_view name;  // "aten::add.Tensor"
  c10::KernelFunction kernel;
};

template <typename Function>
c10::KernelFunction kernel(Function* function) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
}

std::vector<StructuredMeta> shard_0();
std::vector<StructuredMeta> shard_1();
std::vector<StructuredMeta> shard_2();
std::vector<StructuredMeta> shard_3();
std::vector<StructuredMeta> shard_4();
std::vector<StructuredMeta> shard_5();

}  // namespace torch_remote::frontend::metas
