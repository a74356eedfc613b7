#include "tools/dump/param_uses.h"

#include <bit>
#include <charconv>

#include "ir/text.h"

namespace torch_remote::tools {
namespace {

class Finder {
 public:
  explicit Finder(const ir::Graph& graph) : graph_(graph) {}

  ParamUses run() {
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) node(n);
    for (uint32_t v = 0; v < graph_.views.size(); ++v) view(v);
    for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
      note(graph_.buffers[b].nbytes, "bytes of b" + std::to_string(b), false);
    }
    for (uint32_t i = 0; i < graph_.exprs.size(); ++i) {
      const std::string what = "in s" + std::to_string(graph_.params + i);
      note(graph_.exprs[i].a, what, false);
      note(graph_.exprs[i].b, what, false);
    }
    return std::move(uses_);
  }

 private:
  void note(ir::Sym symbol, const std::string& what, bool is_double) {
    if (symbol < graph_.params) uses_.try_emplace(symbol, ParamUse{what, is_double});
  }

  void node(uint32_t index) {
    const ir::Node& node = graph_.nodes[index];
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    for (size_t i = 0; i < node.args.size(); ++i) {
      argument(node.args[i], "argument '" + std::string(desc.args[i].name) + "' of op " + std::to_string(index) + " (" +
                                 std::string(desc.name) + ")");
    }
  }

  void argument(const ir::Arg& arg, const std::string& what) {
    switch (arg.tag) {
      case ir::ArgTag::kList:
        for (const ir::Arg& item : arg.items) argument(item, what);
        return;
      case ir::ArgTag::kInt:
      case ir::ArgTag::kBool:
        return note(arg.a, what, false);
      case ir::ArgTag::kFloat:
        return note(arg.a, what, true);
      case ir::ArgTag::kComplex:
        note(arg.a, "real part of " + what, true);
        return note(arg.a + 1, "imaginary part of " + what, true);
      case ir::ArgTag::kGenerator:
        note(arg.a, "seed of " + what, false);
        return note(arg.a + 1, "offset of " + what, false);
      case ir::ArgTag::kScalarTensor: {
        const auto dtype = static_cast<ir::DType>(arg.b & 0xFF);
        note(arg.a, what, ir::is_float(dtype) || ir::is_complex(dtype));
        if (ir::is_complex(dtype)) note(arg.a + 1, what, true);
        return;
      }
      case ir::ArgTag::kNone:
      case ir::ArgTag::kView:
      case ir::ArgTag::kString:
      case ir::ArgTag::kDType:
      case ir::ArgTag::kMemoryFormat:
        return;
    }
  }

  void view(uint32_t index) {
    const ir::View& view = graph_.views[index];
    const std::string of = " of %" + std::to_string(index);
    for (size_t d = 0; d < view.sizes.size(); ++d) note(view.sizes[d], "size " + std::to_string(d) + of, false);
    for (size_t d = 0; d < view.strides.size(); ++d) note(view.strides[d], "stride " + std::to_string(d) + of, false);
    note(view.offset, "offset" + of, false);
  }

  const ir::Graph& graph_;
  ParamUses uses_;
};

}  // namespace

ParamUses param_uses(const ir::Graph& graph) { return Finder(graph).run(); }

std::string param_text(const ParamUse& use, int64_t word) {
  if (!use.is_double) return std::to_string(word);
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), std::bit_cast<double>(word)).ptr;
  return {text, end};
}

}  // namespace torch_remote::tools
