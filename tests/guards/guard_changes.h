#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

// For the guard harness: the changes that it applies to a valid call.
namespace torch_remote::worker::aten {

using Arguments = std::vector<c10::IValue>;

struct Change {
  enum class Results : uint8_t { kRight, kOne, kMore };

  std::string what;                       // such as "self: one element"; empty if nothing is changed
  std::function<void(Arguments&)> apply;  // may be empty
  Results results = Results::kRight;      // the results that a program claims
};

// The unchanged call, and calls with one argument changed, in every way that its type allows.
std::vector<Change> changes_of(const c10::FunctionSchema& schema, const Arguments& args);

// Returns a copy whose tensors own storages of exactly the size that their strides need.
c10::IValue copy_exactly(const c10::IValue& value);
at::Tensor copy_exactly(const at::Tensor& tensor);

}  // namespace torch_remote::worker::aten
