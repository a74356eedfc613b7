#include <string>

#include "ir/graph.h"
#include "ir/number_kinds.h"

// Decodes the code stream that ir/trace.h documents.
namespace torch_remote::ir {
namespace {

class Importer {
 public:
  Importer(const Trace& trace, const std::vector<uint64_t>& survivors, Graph* graph)
      : trace_(trace), survivors_(survivors), graph_(*graph) {}

  Status run() {
    graph_ = Graph{};
    graph_.params = static_cast<uint32_t>(trace_.params.size());
    graph_.buffers.reserve(trace_.buffers.size());
    graph_.views.reserve(trace_.views.size());
    graph_.nodes.resize(trace_.records.size());
    for (record_ = 0; record_ < trace_.records.size(); ++record_) {
      if (!import_record(graph_.nodes[record_])) return failure();
    }
    if (code_ != trace_.code.size()) return fail("it has code after the last record"), failure();
    if (param_ != trace_.params.size()) return fail("it has parameters after the last record"), failure();
    if (graph_.buffers.size() != trace_.buffers.size()) return fail("a buffer has no view"), failure();
    return {};
  }

 private:
  bool fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }

  Status failure() const {
    std::string message = "remote: the trace is damaged at record " + std::to_string(record_);
    if (desc_ != nullptr) message.append(" (").append(desc_->name).append(")");
    return Status::internal(message + ": " + error_);
  }

  bool word(uint32_t* out) {
    if (code_ >= trace_.code.size()) return fail("its code ends early");
    *out = trace_.code[code_++];
    return true;
  }

  bool peek(uint32_t wanted) const { return code_ < trace_.code.size() && trace_.code[code_] == wanted; }

  bool params(uint32_t count, Sym* first) {
    if (trace_.params.size() - param_ < count) return fail("its parameters end early");
    *first = param_;
    param_ += count;
    return true;
  }

  // A number of items, each of which takes at least one word of code or one parameter.
  bool count(size_t available, uint32_t* out) {
    if (!word(out)) return false;
    if (*out > available) return fail("a list of " + std::to_string(*out) + " items does not fit");
    return true;
  }
  bool code_count(uint32_t* out) { return count(trace_.code.size() - code_, out); }
  bool param_count(uint32_t* out) { return count(trace_.params.size() - param_, out); }

  bool import_record(Node& node) {
    const TraceRecord& record = trace_.records[record_];
    desc_ = nullptr;
    if (record.code != code_ || record.first_param != param_) return fail("the record before it has another length");
    if (!word(&node.opcode)) return false;
    if (node.opcode == kInvalidOpcode || (node.opcode < kFirstOpaque && node.opcode >= op_table().size())) {
      return fail("unknown opcode " + std::to_string(node.opcode));
    }
    desc_ = &op_desc(node.opcode);
    node.record = record_;
    node.args.resize(desc_->args.size());
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (!import_arg(desc_->args[i], node.args[i])) return fail("argument " + std::string(desc_->args[i].name));
    }
    node.results.resize(desc_->results.size());
    for (size_t i = 0; i < node.results.size(); ++i) {
      const ResultDesc& result = desc_->results[i];
      if (result.alias >= 0) continue;
      if (result.kind == ResultKind::kTensor && !operand(true, node.results[i])) return false;
      if (result.kind == ResultKind::kTensorList && !result_list(node.results[i])) return false;
    }
    return true;
  }

  bool import_arg(const ArgDesc& arg, Arg& out) {
    if (arg.role == ArgRole::kClientOnly) return true;
    const bool structural = arg.role == ArgRole::kStructural;
    switch (arg.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(false, out);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        return operand_list(false, out);
      case ArgKind::kInt:
        return structural ? structural_int(ArgTag::kInt, out) : value(ArgTag::kInt, out);
      case ArgKind::kBool:
        return structural ? structural_int(ArgTag::kBool, out) : value(ArgTag::kBool, out);
      case ArgKind::kFloat:
        return structural ? structural_float(out) : value(ArgTag::kFloat, out);
      case ArgKind::kScalar:
        return scalar(structural, out);
      case ArgKind::kOptionalInt:
      case ArgKind::kOptionalFloat:
      case ArgKind::kOptionalBool:
        return structural ? structural_optional(arg.kind, out) : value_optional(arg.kind, out);
      case ArgKind::kOptionalScalar:
        if (structural && skip_absent()) return true;
        return optional_scalar(structural, out);
      case ArgKind::kIntList:
      case ArgKind::kFloatList:
      case ArgKind::kBoolList:
      case ArgKind::kScalarList:
        return list(arg.kind, structural, out);
      case ArgKind::kOptionalIntList:
      case ArgKind::kOptionalFloatList:
        return skip_absent() || list(arg.kind, structural, out);
      case ArgKind::kString:
      case ArgKind::kOptionalString:
      case ArgKind::kDType:
      case ArgKind::kMemoryFormat:
        return skip_absent() || name(arg.kind, out);
      case ArgKind::kGenerator:
        out.tag = ArgTag::kGenerator;
        return params(2, &out.a);
      case ArgKind::kLayout:
      case ArgKind::kDevice:
      case ArgKind::kUnsupported:
        break;
    }
    return fail("an argument of this kind cannot be recorded");
  }

  bool skip_absent() {
    if (!peek(kAbsent)) return false;
    ++code_;
    return true;
  }

  // -- operands ------------------------------------------------------------------------------------------------------

  bool operand(bool result, Arg& out) {
    uint32_t w = 0;
    if (!word(&w)) return false;
    if (w == kAbsent) return true;
    if (w < kNewView) {
      if (w >= graph_.views.size()) return fail("view " + std::to_string(w) + " is used before it is defined");
      out.tag = ArgTag::kView;
      out.a = w;
      return true;
    }
    if (w == kDynamicResult && result) return dynamic_result(out);
    if ((w & 0xF000'0000) == kNewView) return new_view(w, out);
    if ((w & 0xF000'0000) == kScalarOperand && !result) return scalar_operand(w, out);
    return fail("operand word " + std::to_string(w) + " has no meaning");
  }

  bool operand_list(bool result, Arg& out) {
    uint32_t n = 0;
    if (!code_count(&n)) return false;
    out.tag = ArgTag::kList;
    out.items.resize(n);
    for (Arg& item : out.items) {
      if (!operand(result, item)) return false;
    }
    return true;
  }

  bool result_list(Arg& out) { return peek(kDynamicResult) ? operand(true, out) : operand_list(true, out); }

  bool new_buffer(BufferKind kind, Sym nbytes) {
    const size_t ordinal = graph_.buffers.size();
    if (ordinal / 64 >= survivors_.size())
      return fail("there is no survivor bit for buffer " + std::to_string(ordinal));
    Buffer& buffer = graph_.buffers.emplace_back();
    buffer.kind = kind;
    buffer.survives = survivors_[ordinal / 64] >> (ordinal % 64) & 1;
    buffer.nbytes = nbytes;
    return true;
  }

  bool dynamic_result(Arg& out) {
    out.tag = ArgTag::kView;
    out.a = static_cast<uint32_t>(graph_.views.size());
    View& view = graph_.views.emplace_back();
    view.buffer = static_cast<uint32_t>(graph_.buffers.size());
    view.dynamic = true;
    return new_buffer(BufferKind::kFresh, kNoSym);
  }

  bool new_view(uint32_t w, Arg& out) {
    const DType dtype = static_cast<DType>(w >> 16 & 0xFF);
    const uint32_t rank = w >> 6 & 0xFF;
    if (!is_valid(dtype)) return fail("dtype " + std::to_string(w >> 16 & 0xFF) + " has no meaning");
    if (rank > kMaxRank) return fail("rank " + std::to_string(rank) + " exceeds 64");
    uint32_t buffer = static_cast<uint32_t>(graph_.buffers.size());
    const ViewOrigin origin = static_cast<ViewOrigin>(w >> 14 & 3);
    if (origin == ViewOrigin::kKnownBuffer) {
      if (!word(&buffer)) return false;
      if (buffer >= graph_.buffers.size())
        return fail("buffer " + std::to_string(buffer) + " is used before it is defined");
    } else if (origin == ViewOrigin::kInputBuffer) {
      if (!new_buffer(BufferKind::kInput, kNoSym)) return false;
    } else if (origin == ViewOrigin::kFreshBuffer) {
      Sym nbytes = kNoSym;
      if (!params(1, &nbytes) || !new_buffer(BufferKind::kFresh, nbytes)) return false;
    } else {
      return fail("view origin 3 has no meaning");
    }
    out.tag = ArgTag::kView;
    out.a = static_cast<uint32_t>(graph_.views.size());
    View& view = graph_.views.emplace_back();
    view.buffer = buffer;
    view.dtype = dtype;
    return geometry(rank, view);
  }

  bool geometry(uint32_t rank, View& view) {
    const uint32_t mask_words = (rank + 15) / 16;
    if (trace_.code.size() - code_ < mask_words) return fail("its code ends early");
    const uint32_t* masks = trace_.code.data() + code_;
    code_ += mask_words;
    Sym first = kNoSym;
    if (!params(2 * rank + 1, &first)) return false;
    view.sizes.resize(rank);
    view.strides.resize(rank);
    for (uint32_t i = 0; i < rank; ++i) {
      const uint32_t mask = masks[i / 16] >> (2 * (i % 16)) & 3;
      if (mask == 3) return fail("dim mask 3 has no meaning");
      view.sizes[i] = mask == 2 ? first + i : graph_.constant(mask);
      view.strides[i] = first + rank + i;
    }
    view.offset = first + 2 * rank;
    return true;
  }

  bool scalar_operand(uint32_t w, Arg& out) {
    const DType dtype = static_cast<DType>(w >> 8 & 0xFF);
    if (!is_valid(dtype)) return fail("dtype " + std::to_string(w >> 8 & 0xFF) + " has no meaning");
    out.tag = ArgTag::kScalarTensor;
    out.b = (w >> 8 & 0xFF) | (w & 1) << 8;
    return params(is_complex(dtype) ? 2 : 1, &out.a);
  }

  // -- numbers -------------------------------------------------------------------------------------------------------

  bool value(ArgTag tag, Arg& out) {
    out.tag = tag;
    return params(1, &out.a);
  }

  bool integer(int64_t* out) {
    uint32_t w = 0;
    if (!word(&w)) return false;
    if (w < kWideInt) {
      *out = w;
      return true;
    }
    uint32_t lo = 0;
    uint32_t hi = 0;
    if (w != kWideInt) return fail("integer word " + std::to_string(w) + " has no meaning");
    if (!word(&lo) || !word(&hi)) return false;
    *out = static_cast<int64_t>(static_cast<uint64_t>(hi) << 32 | lo);
    return true;
  }

  bool bits(int64_t* out) {
    uint32_t lo = 0;
    uint32_t hi = 0;
    if (!word(&lo) || !word(&hi)) return false;
    *out = static_cast<int64_t>(static_cast<uint64_t>(hi) << 32 | lo);
    return true;
  }

  bool structural_int(ArgTag tag, Arg& out) {
    int64_t number = 0;
    if (!integer(&number)) return false;
    out.tag = tag;
    out.a = graph_.constant(number);
    return true;
  }

  bool structural_float(Arg& out) {
    int64_t number = 0;
    if (!bits(&number)) return false;
    out.tag = ArgTag::kFloat;
    out.a = graph_.constant(number);
    return true;
  }

  bool structural_number(ArgKind kind, Arg& out) {
    const ArgTag tag = number_tag(kind);
    return tag == ArgTag::kFloat ? structural_float(out) : structural_int(tag, out);
  }

  bool structural_optional(ArgKind kind, Arg& out) { return skip_absent() || structural_number(kind, out); }

  bool value_optional(ArgKind kind, Arg& out) {
    uint32_t given = 0;
    if (!word(&given)) return false;
    if (given > 1) return fail("presence word " + std::to_string(given) + " has no meaning");
    return given == 0 || value(number_tag(kind), out);
  }

  bool scalar(bool structural, Arg& out) {
    if (!optional_scalar(structural, out)) return false;
    return out.tag != ArgTag::kNone || fail("a required scalar is missing");
  }

  bool optional_scalar(bool structural, Arg& out) {
    uint32_t tag = 0;
    if (!word(&tag)) return false;
    switch (static_cast<ScalarTag>(tag)) {
      case ScalarTag::kAbsent:
        return true;
      case ScalarTag::kInt:
        out.tag = ArgTag::kInt;
        break;
      case ScalarTag::kFloat:
        out.tag = ArgTag::kFloat;
        break;
      case ScalarTag::kBool:
        out.tag = ArgTag::kBool;
        break;
      case ScalarTag::kComplex:
        out.tag = ArgTag::kComplex;
        break;
      default:
        return fail("scalar tag " + std::to_string(tag) + " has no meaning");
    }
    const bool complex = out.tag == ArgTag::kComplex;
    if (!structural) return params(complex ? 2 : 1, &out.a);
    int64_t number = 0;
    if (!bits(&number)) return false;
    if (!complex) {
      out.a = graph_.constant(number);
      return true;
    }
    // Real and imaginary part must be adjacent symbols; shared constants may not be.
    out.a = graph_.symbols();
    graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, number});
    if (!bits(&number)) return false;
    graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, number});
    return true;
  }

  bool list(ArgKind kind, bool structural, Arg& out) {
    uint32_t n = 0;
    if (peek(kAbsent)) return fail("a required list is missing");
    if (!(structural || kind == ArgKind::kScalarList ? code_count(&n) : param_count(&n))) return false;
    out.tag = ArgTag::kList;
    out.items.resize(n);
    for (Arg& item : out.items) {
      if (kind == ArgKind::kScalarList) {
        if (!scalar(structural, item)) return false;
      } else if (!(structural ? structural_number(kind, item) : value(number_tag(kind), item))) {
        return false;
      }
    }
    return true;
  }

  bool name(ArgKind kind, Arg& out) {
    uint32_t w = 0;
    if (!word(&w)) return false;
    if (kind == ArgKind::kDType) {
      if (w > 0xFF || !is_valid(static_cast<DType>(w))) return fail("dtype " + std::to_string(w) + " has no meaning");
      out.tag = ArgTag::kDType;
      out.a = w;
    } else if (kind == ArgKind::kMemoryFormat) {
      out.tag = ArgTag::kMemoryFormat;
      out.a = w;
    } else {
      out.tag = ArgTag::kString;
      out.text = interned_string(w);
    }
    return true;
  }

  const Trace& trace_;
  const std::vector<uint64_t>& survivors_;
  Graph& graph_;
  uint32_t record_ = 0;
  uint32_t code_ = 0;   // next word of code
  uint32_t param_ = 0;  // next parameter
  const OpDesc* desc_ = nullptr;
  std::string error_;
};

}  // namespace

Status import_trace(const Trace& trace, const std::vector<uint64_t>& survivors, Graph* graph) {
  return Importer(trace, survivors, graph).run();
}

}  // namespace torch_remote::ir
