#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include "ir/ops/op_table.h"

// What an op's schema says to a recorder.
namespace torch_remote::frontend {

// True if a result is a view of an argument.
bool is_view_schema(const c10::FunctionSchema& schema);

// An OpDesc for an op outside the table, made once; null if the schema has something that cannot be recorded.
const ir::OpDesc* describe(const c10::OperatorHandle& handle);

}  // namespace torch_remote::frontend
