#include "codegen/formulas/formulas.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "codegen/formulas/print_cuda.h"
#include "codegen/lower/lower.h"
#include "ir/graph.h"

namespace torch_remote::codegen::formulas {
namespace {

using ir::ArgKind;
using ir::DType;
using ir::ScalarNode;
using ir::ScalarOp;

// A call of an op, whose operands are elements or numbers.
struct Call {
  std::string text;                // "aten::fmod.Tensor($0, $1)"; $k is operand k
  std::vector<bool> are_elements;  // for each operand
};

constexpr std::string_view text_of(DType type) {
  return type == DType::kFloat32 ? "f32" : type == DType::kFloat64 ? "f64" : "i64";
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The kernel of the call for contiguous elements of one type. None: there is no kernel in this type.
std::optional<TypedFormula> lower(const Call& call, DType type) {
  const bool is_float = ir::is_float(type);
  const std::string dtype(text_of(type));
  std::string parameters, buffers, views, node = call.text;
  std::vector<uint32_t> buffer_operands, number_operands;
  for (uint32_t i = 0; i < call.are_elements.size(); ++i) {
    const std::string number = std::to_string(i);
    if (call.are_elements[i]) {
      const std::string buffer = std::to_string(buffer_operands.size());
      buffers += join({"  b", buffer, ": input survives\n"});
      views += join({"  %", buffer, ": ", dtype, "[10] @b", buffer, "\n"});
      node = replaced(std::move(node), join({"$", number}), join({"%", buffer}));
      buffer_operands.push_back(i);
    } else {
      const std::string name = "s" + std::to_string(number_operands.size());
      parameters += join({parameters.empty() ? "" : ", ", name});
      node = replaced(std::move(node), join({"$", number}), is_float ? join({"float(", name, ")"}) : name);
      number_operands.push_back(i);
    }
  }
  const std::string made = std::to_string(buffer_operands.size());
  const std::string results = "%" + made + ": " + dtype + "[10] @b" + made;
  const std::string text = "graph(" + parameters + ") {\n" + buffers + "  b" + made + ": fresh(80) survives ssa\n" +
                           views + "  group pointwise {\n  " + results + " = " + node + "\n  }\n}\n";
  ir::Graph graph;
  if (!ir::parse_graph(text, &graph).ok() || graph.groups.size() != 1) return std::nullopt;
  const std::vector<int64_t> numbers(number_operands.size(), is_float ? std::bit_cast<int64_t>(1.0) : 1);
  std::vector<int64_t> values;
  std::vector<Launch> launches;
  if (!ir::evaluate(graph, numbers.data(), &values).ok()) return std::nullopt;
  if (!lower_group(graph, graph.groups[0], values, &launches).ok() || launches.size() != 1) return std::nullopt;
  Launch& launch = launches[0];
  if (launch.kernel.stores.size() != 1) return std::nullopt;
  // A kernel for these numbers only, except that a divisor is not 0. (Later symbols are constants of the graph.)
  const bool is_special =
      std::ranges::any_of(launch.depends, [&](ir::Sym symbol) { return symbol < number_operands.size(); });
  if (is_special && std::ranges::none_of(launch.kernel.values, divides_integers)) return std::nullopt;
  TypedFormula formula;
  for (const Binding& binding : launch.operands) {
    formula.loads.push_back(binding.buffer < buffer_operands.size() ? buffer_operands[binding.buffer] : 0);
  }
  for (const ir::Sym symbol : launch.scalar_symbols) {
    if (symbol >= number_operands.size()) return std::nullopt;
    formula.scalars.push_back(number_operands[symbol]);
  }
  formula.kernel = std::move(launch.kernel);
  return formula;
}

// The arguments that a tree uses, in the schema's order.
std::vector<uint8_t> arguments_of(std::span<const ScalarNode> tree) {
  std::vector<uint8_t> arguments;
  for (const ScalarNode& node : tree) {
    if (node.op == ScalarOp::kArgument) arguments.push_back(node.a);
  }
  std::ranges::sort(arguments);
  arguments.erase(std::unique(arguments.begin(), arguments.end()), arguments.end());
  return arguments;
}

// None: the op has arguments that are neither elements nor numbers.
std::optional<Call> call_of(const ir::OpDesc& desc, std::span<const uint8_t> arguments) {
  Call call{std::string(desc.name) + "(", {}};
  bool is_first = true;
  for (size_t i = 0; i < desc.args.size(); ++i) {
    const ir::ArgDesc& arg = desc.args[i];
    if (std::ranges::find(arguments, i) == arguments.end()) return std::nullopt;
    const bool is_element = arg.kind == ArgKind::kTensor || arg.kind == ArgKind::kOptionalTensor;
    const bool is_number = arg.kind == ArgKind::kScalar || arg.kind == ArgKind::kOptionalScalar ||
                           arg.kind == ArgKind::kFloat || arg.kind == ArgKind::kOptionalFloat;
    if (!is_element && !is_number) return std::nullopt;
    call.text += is_first ? "" : ", ";
    if (arg.keyword_only) call.text += join({arg.name, "="});
    call.text += join({"$", std::to_string(call.are_elements.size())});
    call.are_elements.push_back(is_element);
    is_first = false;
  }
  call.text += ")";
  return call;
}

// "aten::fmod.Tensor" -> "kFmod"; the overload is added if the name exists.
std::string enumerator(std::string_view name, const std::vector<Formula>& existing) {
  name.remove_prefix(name.find("::") + 2);
  const std::string_view base = name.substr(0, name.find('.'));
  std::string made = "k";
  bool begins = true;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i == base.size() && std::ranges::find(existing, made, &Formula::name) == existing.end()) break;
    const char c = name[i];
    const bool is_separator = c == '_' || c == '.';
    if (!is_separator) made += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = is_separator;
  }
  return made;
}

using Key = std::vector<std::tuple<ScalarOp, uint8_t, uint8_t, uint8_t, double>>;

// The same for all trees that differ only in the places of their arguments.
Key key_of(std::span<const ScalarNode> tree, std::span<const uint8_t> arguments) {
  Key key;
  for (const ScalarNode& node : tree) {
    const bool is_argument = node.op == ScalarOp::kArgument;
    const auto place = std::ranges::find(arguments, node.a) - arguments.begin();
    key.emplace_back(node.op, is_argument ? static_cast<uint8_t>(place) : node.a, node.b, node.c, node.number);
  }
  return key;
}

}  // namespace

bool divides_integers(const Value& value) {
  return value.kind == Kind::kScalarOp && !ir::is_float(value.type) && ir::divides_integers(value.op);
}

std::vector<Formula> all_formulas() {
  std::vector<Formula> formulas;
  std::map<Key, size_t> known;
  std::vector<std::vector<Call>> calls;
  for (const ir::OpDesc& desc : ir::op_table()) {
    const std::vector<uint8_t> arguments = arguments_of(desc.tree);
    const bool has_lists = std::ranges::any_of(desc.args, [](const ir::ArgDesc& arg) {
      return arg.kind == ArgKind::kTensorList || arg.kind == ArgKind::kScalarList;
    });
    if (desc.tree.empty() || has_lists || arguments.size() > kMaxOperands) continue;
    const auto [place, is_new] = known.emplace(key_of(desc.tree, arguments), formulas.size());
    if (is_new) {
      formulas.push_back({enumerator(desc.name, formulas), std::string(desc.expression), {}, {}});
      calls.emplace_back();
    }
    formulas[place->second].opcodes.push_back(desc.opcode);
    const bool is_functional = (desc.flags & (ir::kOpInPlace | ir::kOpOut)) == 0;
    if (auto call = call_of(desc, arguments); call && is_functional) calls[place->second].push_back(*std::move(call));
  }
  for (size_t i = 0; i < formulas.size(); ++i) {
    for (size_t t = 0; t < std::size(kTypes); ++t) {
      // First with elements in all places: with numbers, special kernels may exist.
      for (int64_t elements = kMaxOperands; elements >= 0; --elements) {
        for (const Call& call : calls[i]) {
          const bool is_next = std::ranges::count(call.are_elements, true) == elements;
          if (is_next && !formulas[i].typed[t]) formulas[i].typed[t] = lower(call, kTypes[t]);
        }
      }
    }
  }
  std::erase_if(formulas, [](const Formula& formula) {
    return std::ranges::none_of(formula.typed, [](const auto& typed) { return typed.has_value(); });
  });
  return formulas;
}

}  // namespace torch_remote::codegen::formulas
