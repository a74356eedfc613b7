#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

#include "ir/graph.h"

// Names that the printer, the parser and the tools share. docs/ir.md has the grammar.
namespace torch_remote::ir::text {

// Indexed by ArgKind; used in signatures of opaque ops.
inline constexpr std::string_view kArgKinds[] = {
    "Tensor", "Tensor?", "Tensor[]", "Tensor?[]", "int",    "int?",          "int[]",     "int[]?",      "float",
    "float?", "float[]", "float[]?", "bool",      "bool?",  "bool[]",        "Scalar",    "Scalar?",     "Scalar[]",
    "str",    "str?",    "dtype",    "layout",    "device", "memory_format", "Generator", "unsupported",
};
static_assert(std::size(kArgKinds) == static_cast<size_t>(ArgKind::kUnsupported) + 1);

// Indexed by ResultKind.
inline constexpr std::string_view kResultKinds[] = {"Tensor", "Tensor[]", "int", "float", "bool", "Scalar"};
static_assert(std::size(kResultKinds) == static_cast<size_t>(ResultKind::kScalar) + 1);

// Indexed by the bit of OpFlags. The text form of a bit without a name is "flag" and its number.
inline constexpr std::string_view kFlags[] = {"random", "dynamic_shape", "host_result",     "in_place",
                                              "out",    "pure",          "hidden_mutation", "commutative"};

// Indexed by ExprKind: operators up to kMul, then functions of two arguments.
inline constexpr std::string_view kExprs[] = {"", "+", "-", "*", "floordiv", "mod", "max", "min"};
static_assert(std::size(kExprs) == static_cast<size_t>(ExprKind::kMin) + 1);

// Indexed by GroupKind.
inline constexpr std::string_view kGroups[] = {"pointwise", "rowwise", "reduce", "multi_tensor", "matmul", "attention"};
static_assert(std::size(kGroups) == kGroupKinds);

// Indexed by the bit of GroupProperty.
inline constexpr std::string_view kProperties[] = {"contiguous", "aligned"};
static_assert((1 << std::size(kProperties)) - 1 == kGroupProperties);

// Indexed by c10::MemoryFormat.
inline constexpr std::string_view kMemoryFormats[] = {"contiguous", "preserve", "channels_last", "channels_last_3d"};

inline bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_name_char(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

}  // namespace torch_remote::ir::text
