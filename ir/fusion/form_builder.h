#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/analysis.h"
#include "ir/fusion/fusion.h"

// Base of the classes that find a node's KernelForm (fusion_forms.cpp, fusion_indices.cpp). It has the form under
// construction, and finds the node's arguments by name. Functions that add to the form return false if no kernel can
// compute the node.
namespace torch_remote::ir {

class FormBuilder {
 protected:
  FormBuilder(const Graph& graph, const Node& node, KernelForm* form)
      : graph_(graph), node_(node), desc_(op_desc(node.opcode)), form_(*form) {}

  bool is_one(Sym size) const {
    int64_t known = 0;
    return graph_.is_constant(size, &known) && known == 1;
  }

  bool is_float_argument(std::string_view name) const {
    const Arg* arg = argument(name);
    return arg != nullptr && arg->tag == ArgTag::kView && is_float(graph_.views[arg->a].dtype);
  }

  // -- arguments by name

  const Arg* argument(std::string_view name) const { return find_argument(node_, name); }

  std::optional<int64_t> constant(std::string_view name) const {
    const Arg* arg = argument(name);
    int64_t value = 0;
    if (arg == nullptr || (arg->tag != ArgTag::kInt && arg->tag != ArgTag::kBool)) return std::nullopt;
    if (!graph_.is_constant(arg->a, &value)) return std::nullopt;
    return value;
  }

  // Adds the argument as a part that is read. An undefined tensor adds none.
  bool reads(std::string_view name, AxisMapping mapping = AxisMapping::kLast) {
    const Arg* arg = argument(name);
    if (arg == nullptr) return false;
    if (arg->tag == ArgTag::kNone) return true;
    if (arg->tag != ArgTag::kView) return false;
    form_.parts.push_back({arg->a, mapping, true, false, false});
    return true;
  }

  // Adds a result as a part that is written; an undefined one adds none. `reduces_other_axes`: see Part.
  bool result(size_t index, AxisMapping mapping, bool reduces_other_axes = false) {
    const Arg& arg = node_.results[index];
    if (arg.tag == ArgTag::kView) form_.parts.push_back({arg.a, mapping, false, true, reduces_other_axes});
    return arg.tag == ArgTag::kView || arg.tag == ArgTag::kNone;
  }

  // Sets the form's space to that of an argument, or of the first result.
  bool space(std::string_view name) {
    const Arg* arg = argument(name);
    if (arg == nullptr || arg->tag != ArgTag::kView) return false;
    form_.space = arg->a;
    return !graph_.views[arg->a].dynamic;
  }

  bool space_of_result() {
    form_.space = node_.results[0].a;
    return node_.results[0].tag == ArgTag::kView;
  }

  // -- ranks and index tensors

  size_t rank_of(uint32_t view) const { return graph_.views[view].sizes.size(); }

  bool reads_index(std::string_view name, AxisMapping mapping) {
    if (!is_index(name) || !reads(name, mapping)) return false;
    form_.parts.back().is_index = true;
    return true;
  }
  void reads_index(const Arg& arg, std::vector<uint32_t> axes) {
    form_.parts.push_back({arg.a, AxisMapping::kNamed, true, false, false, false, std::move(axes), true});
  }
  bool is_index(const Arg& arg) const {
    return arg.tag == ArgTag::kView &&
           (graph_.views[arg.a].dtype == DType::kInt64 || graph_.views[arg.a].dtype == DType::kInt32);
  }
  bool is_index(std::string_view name) const {
    const Arg* arg = argument(name);
    return arg != nullptr && is_index(*arg);
  }

  const Graph& graph_;
  const Node& node_;
  const OpDesc& desc_;
  KernelForm& form_;
};

// Finds the form of a node whose expansion reads or writes at indices. `form` already has the expansion.
bool find_index_form(const Graph& graph, const Node& node, KernelForm* form);

}  // namespace torch_remote::ir
