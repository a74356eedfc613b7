#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include "ir/ops/op_table.h"

// Reads from an op's schema how the recorder must treat the op.
namespace torch_remote::frontend {

// Whether a result is a view of an argument.
bool is_view_schema(const c10::FunctionSchema& schema);

// Whether the schema of the installed torch has the arguments and results of a row of the op table, names apart. The
// table is made from the schemas of one version of torch.
bool fits(const ir::OpDesc& desc, const c10::FunctionSchema& schema);

// The OpDesc of an op outside the op table, created once. Null if the schema has an argument that cannot be recorded.
const ir::OpDesc* describe(const c10::OperatorHandle& handle);

}  // namespace torch_remote::frontend
