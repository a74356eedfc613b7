#pragma once

#include "ir/graph.h"
#include "ir/ops/op_table.h"

// Maps the schema's kinds of numbers to tags of graph arguments.
namespace torch_remote::ir {

// The tag of a number of this kind, of its optional form, and of a list's items. The tag is kNone for a Scalar, whose
// tag may vary, and for kinds that are not numbers.
constexpr ArgTag number_tag(ArgKind kind) {
  switch (kind) {
    case ArgKind::kInt:
    case ArgKind::kOptionalInt:
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
      return ArgTag::kInt;
    case ArgKind::kFloat:
    case ArgKind::kOptionalFloat:
    case ArgKind::kFloatList:
    case ArgKind::kOptionalFloatList:
      return ArgTag::kFloat;
    case ArgKind::kBool:
    case ArgKind::kOptionalBool:
    case ArgKind::kBoolList:
      return ArgTag::kBool;
    default:
      return ArgTag::kNone;
  }
}

// Whether it is a list of numbers, optional or not.
constexpr bool is_number_list(ArgKind kind) {
  switch (kind) {
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
    case ArgKind::kFloatList:
    case ArgKind::kOptionalFloatList:
    case ArgKind::kBoolList:
    case ArgKind::kScalarList:
      return true;
    default:
      return false;
  }
}

}  // namespace torch_remote::ir
