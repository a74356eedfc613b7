#include "worker/targets/aten/checks/schema.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <unordered_map>

#include "worker/targets/aten/checks/guard.h"

namespace torch_remote::worker::aten {
namespace {

c10::OperatorName parse_name(std::string_view name) {
  const size_t dot = name.find('.', name.find("::"));
  if (dot == std::string_view::npos) return {std::string(name), ""};
  return {std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
}

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// All overloads of a name. The dispatcher has no such index, so we build one on first use.
const std::vector<c10::OperatorName>& overloads(const std::string& name) {
  static const auto* index = [] {
    auto* all = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) (*all)[op.name].push_back(op);
    return all;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = index->find(name);
  return found == index->end() ? none : found->second;
}

bool is_out_variant(const c10::FunctionSchema& out, const c10::FunctionSchema& functional) {
  const auto& args = functional.arguments();
  const auto& out_args = out.arguments();
  if (out_args.size() != args.size() + functional.returns().size()) return false;
  for (size_t i = 0; i < out_args.size(); ++i) {
    if (i >= args.size()) {
      if (!writes(out_args[i]) || out_args[i].type()->kind() != c10::TypeKind::TensorType) return false;
    } else if (writes(out_args[i]) || out_args[i].name() != args[i].name() || *out_args[i].type() != *args[i].type()) {
      return false;
    }
  }
  return true;
}

}  // namespace

c10::OperatorHandle find_operator(std::string_view name) {
  const auto found = c10::Dispatcher::singleton().findSchema(parse_name(name));
  TORCH_CHECK_NOT_IMPLEMENTED(found, "remote: the worker's torch has no op '", name,
                              "'; a custom op must be registered in the worker's process too");
  return *found;
}

bool can_run(std::string_view name, c10::DispatchKey key) {
  if (refusal_reason(name)) return false;
  const auto found = c10::Dispatcher::singleton().findSchema(parse_name(name));
  return found && (found->hasKernelForDispatchKey(key) ||
                   found->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                   found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

namespace {

bool is_tensor(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return is_tensor(*optional->getElementType());
  if (const auto* list = type.castRaw<c10::ListType>()) return is_tensor(*list->getElementType());
  return type.kind() == c10::TypeKind::TensorType;
}

// Whether the argument holds indices, judged by the names that torch gives such arguments.
bool has_positions(const c10::Argument& argument) {
  const std::string& name = argument.name();
  return is_tensor(*argument.type()) &&
         (name.find("ind") != std::string::npos || name.starts_with("target") || name == "offsets");
}

}  // namespace

bool can_run_on_gpu(std::string_view name) {
  if (refusal_reason(name) != nullptr || find_guard(name).reads_elements) return false;
  const auto found = c10::Dispatcher::singleton().findSchema(parse_name(name));
  if (!found || !found->hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) return false;
  const auto& arguments = found->schema().arguments();
  const bool random = found->hasTag(at::Tag::nondeterministic_seeded) ||
                      std::ranges::any_of(arguments, [](const c10::Argument& argument) {
                        return argument.type()->str().find("Generator") != std::string::npos;
                      });
  // An op that neither returns nor writes anything is an assertion on data. It checks on the host, or with a kernel
  // whose failure ends all work on the GPU.
  const bool makes = !found->schema().returns().empty() || std::ranges::any_of(arguments, writes);
  const bool harmless = makes || !found->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  return harmless && !random && std::ranges::none_of(arguments, has_positions);
}

std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& functional, c10::DispatchKey key) {
  const c10::FunctionSchema& schema = functional.schema();
  if (schema.returns().empty()) return std::nullopt;
  if (std::any_of(schema.arguments().begin(), schema.arguments().end(), writes)) return std::nullopt;
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType) return std::nullopt;
  }
  for (const c10::OperatorName& name : overloads(schema.name())) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && op->hasKernelForDispatchKey(key) && is_out_variant(op->schema(), schema)) return op;
  }
  return std::nullopt;
}

}  // namespace torch_remote::worker::aten
