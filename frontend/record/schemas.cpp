#include "frontend/record/schemas.h"

#include <algorithm>

namespace torch_remote::frontend {
namespace {

using ir::ArgKind;

ArgKind kind_of(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type() ? argument.real_type() : argument.type();
  const auto kind_of_plain = [](const c10::Type& t) {
    switch (t.kind()) {
      case c10::TypeKind::TensorType:
        return ArgKind::kTensor;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return ArgKind::kInt;
      case c10::TypeKind::FloatType:
      case c10::TypeKind::SymFloatType:
        return ArgKind::kFloat;
      case c10::TypeKind::BoolType:
      case c10::TypeKind::SymBoolType:
        return ArgKind::kBool;
      case c10::TypeKind::NumberType:
        return ArgKind::kScalar;
      case c10::TypeKind::StringType:
        return ArgKind::kString;
      case c10::TypeKind::ScalarTypeType:
        return ArgKind::kDType;
      case c10::TypeKind::LayoutType:
        return ArgKind::kLayout;
      case c10::TypeKind::DeviceObjType:
        return ArgKind::kDevice;
      case c10::TypeKind::MemoryFormatType:
        return ArgKind::kMemoryFormat;
      case c10::TypeKind::GeneratorType:
        return ArgKind::kGenerator;
      default:
        return ArgKind::kUnsupported;
    }
  };
  bool optional = false;
  c10::TypePtr inner = type;
  if (const auto* opt = inner->castRaw<c10::OptionalType>()) {
    optional = true;
    inner = opt->getElementType();
  }
  if (const auto* list = inner->castRaw<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (const auto* opt = element->castRaw<c10::OptionalType>()) {
      return opt->getElementType()->kind() == c10::TypeKind::TensorType && !optional ? ArgKind::kOptionalTensorList
                                                                                     : ArgKind::kUnsupported;
    }
    switch (kind_of_plain(*element)) {
      case ArgKind::kTensor:
        return optional ? ArgKind::kUnsupported : ArgKind::kTensorList;
      case ArgKind::kInt:
        return optional ? ArgKind::kOptionalIntList : ArgKind::kIntList;
      case ArgKind::kFloat:
        return optional ? ArgKind::kOptionalFloatList : ArgKind::kFloatList;
      case ArgKind::kBool:
        return optional ? ArgKind::kUnsupported : ArgKind::kBoolList;
      case ArgKind::kScalar:
        return optional ? ArgKind::kUnsupported : ArgKind::kScalarList;
      default:
        return ArgKind::kUnsupported;
    }
  }
  const ArgKind plain = kind_of_plain(*inner);
  if (!optional) return plain;
  switch (plain) {
    case ArgKind::kTensor:
      return ArgKind::kOptionalTensor;
    case ArgKind::kInt:
      return ArgKind::kOptionalInt;
    case ArgKind::kFloat:
      return ArgKind::kOptionalFloat;
    case ArgKind::kBool:
      return ArgKind::kOptionalBool;
    case ArgKind::kScalar:
      return ArgKind::kOptionalScalar;
    case ArgKind::kString:
      return ArgKind::kOptionalString;
    default:
      return plain;  // dtype, layout, device, memory format and generator have one kind, optional or not
  }
}

}  // namespace

bool is_view_schema(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool fits(const ir::OpDesc& desc, const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  // The table adds a generator to random ops without one.
  const bool adds = desc.args.size() == arguments.size() + 1 && desc.args.back().kind == ArgKind::kGenerator;
  if ((desc.args.size() != arguments.size() && !adds) || desc.results.size() != schema.returns().size()) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (desc.args[i].kind != kind_of(arguments[i])) return false;
  }
  return true;
}

const ir::OpDesc* describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  const std::string name = c10::toString(handle.operator_name());
  std::vector<ir::OpaqueArg> args;
  uint32_t flags = 0;
  bool writes = false, has_generator = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const ArgKind kind = kind_of(argument);
    if (kind == ArgKind::kUnsupported) return nullptr;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    writes |= written;
    has_generator |= kind == ArgKind::kGenerator;
    if (written && argument.is_out()) flags |= ir::kOpOut;
    args.push_back({argument.name(), kind, written, argument.kwarg_only()});
  }
  std::vector<ir::ResultDesc> results;
  for (const c10::Argument& result : schema.returns()) {
    ir::ResultDesc desc{ir::ResultKind::kTensor, -1};
    switch (result.type()->kind()) {
      case c10::TypeKind::TensorType:
        break;
      case c10::TypeKind::ListType:
        desc.kind = ir::ResultKind::kTensorList;
        break;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        desc.kind = ir::ResultKind::kInt;
        break;
      case c10::TypeKind::FloatType:
        desc.kind = ir::ResultKind::kFloat;
        break;
      case c10::TypeKind::BoolType:
        desc.kind = ir::ResultKind::kBool;
        break;
      case c10::TypeKind::NumberType:
        desc.kind = ir::ResultKind::kScalar;
        break;
      default:
        return nullptr;
    }
    if (desc.kind > ir::ResultKind::kTensorList) flags |= ir::kOpHostResult;
    if (result.alias_info() != nullptr) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets())
          desc.alias = static_cast<int8_t>(i);
      }
    }
    results.push_back(desc);
  }
  if (writes && !(flags & ir::kOpOut)) flags |= ir::kOpInPlace;
  if (handle.hasTag(at::Tag::dynamic_output_shape)) flags |= ir::kOpDynamicShape;
  if (handle.hasTag(at::Tag::nondeterministic_seeded) || has_generator) {
    flags |= ir::kOpRandom;
    if (!has_generator) args.push_back({"generator", ArgKind::kGenerator});
  }
  const ir::Opcode opcode = ir::register_opaque(name, args, results, flags);
  if (opcode == ir::kInvalidOpcode) return nullptr;
  // An op that was removed and defined again may have another schema. The table keeps the first one.
  const ir::OpDesc& desc = ir::op_desc(opcode);
  const auto same_argument = [](const ir::ArgDesc& known, const ir::OpaqueArg& arg) {
    return known.name == arg.name && known.kind == arg.kind && known.writes == arg.writes &&
           known.keyword_only == arg.keyword_only;
  };
  const auto same_result = [](const ir::ResultDesc& known, const ir::ResultDesc& result) {
    return known.kind == result.kind && known.alias == result.alias;
  };
  const bool same = desc.flags == flags && std::ranges::equal(desc.args, args, same_argument) &&
                    std::ranges::equal(desc.results, results, same_result);
  return same ? &desc : nullptr;
}

}  // namespace torch_remote::frontend
