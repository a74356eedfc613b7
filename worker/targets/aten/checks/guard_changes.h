#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

// For the guard harness: what is changed in a call that torch takes.
namespace torch_remote::worker::aten {

using Arguments = std::vector<c10::IValue>;

struct Change {
  enum class Results : uint8_t { kRight, kOne, kMore };

  std::string what;                       // "self: one element"; empty: nothing is changed
  std::function<void(Arguments&)> apply;  // may be empty
  Results results = Results::kRight;      // what a program says of its results
};

// The call as it is, and one argument at a time changed in every way that there is for its type.
std::vector<Change> changes_of(const c10::FunctionSchema& schema, const Arguments& args);

// A copy whose tensors have memory of their own, of exactly the size that they reach over.
c10::IValue copy_exactly(const c10::IValue& value);
at::Tensor copy_exactly(const at::Tensor& tensor);

}  // namespace torch_remote::worker::aten
