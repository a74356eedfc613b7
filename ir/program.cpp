#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "flatbuffers/flatbuffers.h"
#include "ir/graph.h"
#include "ir/opaque.h"
#include "ir/program_generated.h"

namespace torch_remote::ir {
namespace {

// Grows when the meaning of a field in ir/program.fbs changes. A reader refuses every other version.
constexpr uint32_t kFormatVersion = 7;

constexpr size_t kMaxOpArgs = 512;
constexpr size_t kMaxNameLength = 1024;

static_assert(static_cast<int>(ArgTag::kScalarTensor) == static_cast<int>(fbs::ArgTag::ScalarTensor));
static_assert(static_cast<int>(ArgTag::kList) == static_cast<int>(fbs::ArgTag::List));
static_assert(static_cast<int>(ArgTag::kString) == static_cast<int>(fbs::ArgTag::String));
static_assert(static_cast<int>(ArgTag::kGenerator) == static_cast<int>(fbs::ArgTag::Generator));
static_assert(static_cast<int>(ArgTag::kGenerator) == static_cast<int>(fbs::ArgTag::MAX));

class Encoder {
 public:
  explicit Encoder(const Graph& graph) : graph_(graph), builder_(1024 + 96 * graph.nodes.size()) {}

  std::vector<uint8_t> run() {
    views();
    nodes();
    std::vector<fbs::Expr> exprs;
    exprs.reserve(graph_.exprs.size());
    for (const Expr& expr : graph_.exprs) {
      exprs.emplace_back(expr.value, expr.a, expr.b, static_cast<uint8_t>(expr.kind));
    }
    std::vector<fbs::Buffer> buffers;
    buffers.reserve(graph_.buffers.size());
    for (const Buffer& buffer : graph_.buffers) {
      buffers.emplace_back(buffer.nbytes, buffer.may_reuse, static_cast<uint8_t>(buffer.kind), buffer.survives,
                           buffer.written_once, buffer.group_local);
    }
    std::vector<fbs::Group> groups;
    groups.reserve(graph_.groups.size());
    for (const Group& group : graph_.groups) {
      groups.emplace_back(group.first, group.last, static_cast<uint8_t>(group.kind), group.properties);
    }

    const auto op_names = builder_.CreateVector(op_names_);
    const auto op_hashes = builder_.CreateVector(op_hashes_);
    const auto expr_vector = builder_.CreateVectorOfStructs(exprs);
    const auto buffer_vector = builder_.CreateVectorOfStructs(buffers);
    const auto view_vector = builder_.CreateVectorOfStructs(views_);
    const auto dim_vector = builder_.CreateVector(dims_);
    const auto arg_vector = builder_.CreateVectorOfStructs(args_);
    const auto node_vector = builder_.CreateVectorOfStructs(nodes_);
    const auto string_vector = builder_.CreateVector(strings_);
    std::vector<flatbuffers::Offset<flatbuffers::String>> source_lines;
    source_lines.reserve(graph_.source_lines.size());
    for (const std::string& source : graph_.source_lines) source_lines.push_back(builder_.CreateSharedString(source));
    const auto source_line_vector = builder_.CreateVector(source_lines);
    const auto opaque_vector = builder_.CreateVector(opaque_ops_);
    const auto group_vector = builder_.CreateVectorOfStructs(groups);
    builder_.Finish(fbs::CreateProgram(builder_, kFormatVersion, graph_.params, op_names, op_hashes, expr_vector,
                                       buffer_vector, view_vector, dim_vector, arg_vector, node_vector, string_vector,
                                       source_line_vector, opaque_vector, group_vector),
                    fbs::ProgramIdentifier());
    return {builder_.GetBufferPointer(), builder_.GetBufferPointer() + builder_.GetSize()};
  }

 private:
  void views() {
    views_.reserve(graph_.views.size());
    dims_.reserve(6 * graph_.views.size());
    for (const View& view : graph_.views) {
      views_.emplace_back(view.buffer, static_cast<uint32_t>(dims_.size()), static_cast<uint8_t>(view.dtype),
                          static_cast<uint8_t>(view.sizes.size()), view.dynamic);
      if (view.dynamic) continue;
      dims_.insert(dims_.end(), view.sizes.begin(), view.sizes.end());
      dims_.insert(dims_.end(), view.strides.begin(), view.strides.end());
      dims_.push_back(view.offset);
    }
  }

  void nodes() {
    nodes_.reserve(graph_.nodes.size());
    args_.reserve(5 * graph_.nodes.size());
    for (const Node& node : graph_.nodes) {
      nodes_.emplace_back(op_index(node.opcode), static_cast<uint32_t>(args_.size()), node.record, node.in_place);
      uint32_t items = static_cast<uint32_t>(args_.size() + node.args.size() + node.results.size());
      for (const Arg& arg : node.args) add_arg(arg, &items);
      for (const Arg& arg : node.results) add_arg(arg, &items);
      for (const Arg& arg : node.args) add_items(arg);
      for (const Arg& arg : node.results) add_items(arg);
    }
  }

  void add_items(const Arg& arg) {
    uint32_t none = 0;  // lists hold no lists
    for (const Arg& item : arg.items) add_arg(item, &none);
  }

  void add_arg(const Arg& arg, uint32_t* items) {
    uint32_t a = arg.a;
    uint32_t b = arg.b;
    if (arg.tag == ArgTag::kList) {
      a = *items;
      b = static_cast<uint32_t>(arg.items.size());
      *items += b;
    } else if (arg.tag == ArgTag::kString) {
      a = static_cast<uint32_t>(strings_.size());
      strings_.push_back(builder_.CreateString(arg.text));
    }
    args_.emplace_back(a, b, static_cast<fbs::ArgTag>(arg.tag));
  }

  uint32_t op_index(Opcode opcode) {
    const auto [found, added] = op_indices_.try_emplace(opcode, static_cast<uint32_t>(op_names_.size()));
    if (added) {
      const OpDesc& desc = op_desc(opcode);
      op_names_.push_back(builder_.CreateString(desc.name.data(), desc.name.size()));
      op_hashes_.push_back(desc.signature_hash);
      if (opcode >= kFirstOpaque) add_opaque(found->second, desc);
    }
    return found->second;
  }

  void add_opaque(uint32_t index, const OpDesc& desc) {
    std::vector<flatbuffers::Offset<fbs::OpaqueArg>> args;
    for (const ArgDesc& arg : desc.args) {
      const auto name = builder_.CreateString(arg.name.data(), arg.name.size());
      args.push_back(
          fbs::CreateOpaqueArg(builder_, name, static_cast<uint8_t>(arg.kind), arg.writes, arg.keyword_only));
    }
    std::vector<fbs::OpaqueResult> results;
    for (const ResultDesc& result : desc.results) {
      results.emplace_back(result.alias, static_cast<uint8_t>(result.kind));
    }
    const auto arg_vector = builder_.CreateVector(args);
    const auto result_vector = builder_.CreateVectorOfStructs(results);
    opaque_ops_.push_back(fbs::CreateOpaqueOp(builder_, index, desc.flags, arg_vector, result_vector));
  }

  const Graph& graph_;
  flatbuffers::FlatBufferBuilder builder_;
  std::unordered_map<Opcode, uint32_t> op_indices_;
  std::vector<flatbuffers::Offset<flatbuffers::String>> op_names_;
  std::vector<uint64_t> op_hashes_;
  std::vector<flatbuffers::Offset<fbs::OpaqueOp>> opaque_ops_;
  std::vector<fbs::View> views_;
  std::vector<Sym> dims_;
  std::vector<fbs::Arg> args_;
  std::vector<fbs::Node> nodes_;
  std::vector<flatbuffers::Offset<flatbuffers::String>> strings_;
};

Status damaged(const std::string& what) {
  return Status::invalid("remote: the program is damaged: " + what + "; build it again");
}

// Reads a buffer that flatbuffers' verifier accepted. Offsets are valid and vectors may be absent; everything else is
// checked here.
class Decoder {
 public:
  Decoder(const fbs::Program& program, Graph* graph) : program_(program), graph_(*graph) {}

  Status run() {
    graph_ = Graph{};
    if (Status status = ops(); !status) return status;
    graph_.params = program_.params();
    if (!is_aligned(program_.exprs(), alignof(fbs::Expr))) return damaged("an expression is invalid");
    for (const fbs::Expr& expr : elements(program_.exprs())) {
      graph_.exprs.push_back({static_cast<ExprKind>(expr.kind()), expr.a(), expr.b(), expr.value()});
    }
    for (const fbs::Buffer& buffer : elements(program_.buffers())) {
      graph_.buffers.push_back({static_cast<BufferKind>(buffer.kind()), buffer.survives(), buffer.written_once(),
                                buffer.nbytes(), buffer.group_local(), buffer.may_reuse()});
    }
    for (const fbs::Group& group : elements(program_.groups())) {
      graph_.groups.push_back({group.first(), group.last(), static_cast<GroupKind>(group.kind()), group.properties()});
    }
    for (uint32_t i = 0; i < size(program_.source_lines()); ++i) {
      const flatbuffers::String* source = program_.source_lines()->Get(i);
      // Strings may be shared, so that damaged or hostile bytes can reference one long string many times.
      source_line_bytes_ += source->size();
      if (source_line_bytes_ > kMaxTextBytes) return damaged("its source lines are too long");
      graph_.source_lines.push_back(source->str());
    }
    if (Status status = views(); !status) return status;
    return nodes();
  }

 private:
  static constexpr size_t kMaxTextBytes = 64 << 20;

  // An absent vector is an empty one.
  template <typename T>
  static std::span<const T> elements(const flatbuffers::Vector<const T*>* structs) {
    if (structs == nullptr) return {};
    return {reinterpret_cast<const T*>(structs->Data()), structs->size()};
  }
  template <typename T>
  static uint32_t size(const flatbuffers::Vector<T>* vector) {
    return vector == nullptr ? 0 : vector->size();
  }
  // Only for elements of 8 bytes: flatbuffers' verifier checks that vectors are aligned to 4 bytes, not their elements.
  // Its builder does not align empty vectors.
  template <typename T>
  static bool is_aligned(const flatbuffers::Vector<T>* vector, size_t alignment) {
    return size(vector) == 0 || reinterpret_cast<uintptr_t>(vector->Data()) % alignment == 0;
  }

  Status ops() {
    const auto* names = program_.ops();
    std::vector<const fbs::OpaqueOp*> opaque(size(names));
    for (uint32_t i = 0; i < size(program_.opaque_ops()); ++i) {
      const fbs::OpaqueOp* op = program_.opaque_ops()->Get(i);
      if (op->op() >= opaque.size() || opaque[op->op()] != nullptr) return damaged("a signature belongs to no op");
      opaque[op->op()] = op;
    }
    if (!is_aligned(program_.op_hashes(), alignof(uint64_t))) return damaged("the hashes of its ops are invalid");
    std::vector<uint64_t> hashes(opaque.size());
    for (uint32_t i = 0; i < std::min<size_t>(hashes.size(), size(program_.op_hashes())); ++i) {
      hashes[i] = program_.op_hashes()->Get(i);
    }
    for (uint32_t i = 0; i < opaque.size(); ++i) {
      const std::string_view name = names->Get(i)->string_view();
      Opcode opcode = find_op(name);
      if (opaque[i] != nullptr) {
        if (Status status = register_op(name, *opaque[i], &opcode); !status) return status;
      } else if (opcode == kInvalidOpcode || opcode >= kFirstOpaque) {
        return other_op(name, "this side does not know it");
      } else if (hashes[i] != 0 && hashes[i] != op_desc(opcode).signature_hash) {
        return other_op(name, "this side knows it with other arguments or properties");
      }
      opcodes_.push_back(opcode);
    }
    return {};
  }

  static Status other_op(std::string_view name, const std::string& why) {
    return {ErrorCode::kUnsupported, "remote: the program contains the op '" + std::string(name.substr(0, 200)) +
                                         "', but " + why +
                                         "; use versions of torch-remote that agree about this op on both sides"};
  }

  static Status register_op(std::string_view name, const fbs::OpaqueOp& op, Opcode* opcode) {
    if (name.empty() || name.size() > kMaxNameLength || size(op.args()) > kMaxOpArgs ||
        size(op.results()) > kMaxOpArgs) {
      return damaged("an op's signature is too long");
    }
    std::vector<OpaqueArg> args;
    for (uint32_t i = 0; i < size(op.args()); ++i) {
      const fbs::OpaqueArg* arg = op.args()->Get(i);
      if (arg->kind() > static_cast<uint8_t>(ArgKind::kUnsupported)) return damaged("an argument has an unknown kind");
      if (arg->name() != nullptr && arg->name()->size() > kMaxNameLength)
        return damaged("an argument's name is too long");
      args.push_back({arg->name() == nullptr ? std::string() : arg->name()->str(), static_cast<ArgKind>(arg->kind()),
                      arg->writes(), arg->keyword_only()});
    }
    std::vector<ResultDesc> results;
    for (const fbs::OpaqueResult& result : elements(op.results())) {
      if (result.kind() > static_cast<uint8_t>(ResultKind::kScalar)) return damaged("a result has an unknown kind");
      if (result.alias() < -1 || result.alias() >= static_cast<int>(args.size()) || result.alias() > INT8_MAX) {
        return damaged("a result aliases something other than an argument");
      }
      results.push_back({static_cast<ResultKind>(result.kind()), static_cast<int8_t>(result.alias())});
    }
    return declare_opaque(name, args, results, op.flags(), opcode);
  }

  Status views() {
    const auto* dims = program_.dims();
    uint32_t next = 0;
    graph_.views.reserve(size(program_.views()));
    for (const fbs::View& in : elements(program_.views())) {
      View& view = graph_.views.emplace_back();
      view.buffer = in.buffer();
      view.dtype = static_cast<DType>(in.dtype());
      view.dynamic = in.dynamic();
      const uint32_t rank = in.rank();
      const uint32_t words = view.dynamic ? 0 : 2 * rank + 1;
      if (in.first_dim() != next || size(dims) - next < words || (view.dynamic && rank != 0))
        return damaged("the dims of a view are invalid");
      if (view.dynamic) continue;
      view.sizes.resize(rank);
      view.strides.resize(rank);
      for (uint32_t d = 0; d < rank; ++d) {
        view.sizes[d] = dims->Get(next + d);
        view.strides[d] = dims->Get(next + rank + d);
      }
      view.offset = dims->Get(next + 2 * rank);
      next += words;
    }
    return next == size(dims) ? Status() : damaged("some dims belong to no view");
  }

  Status nodes() {
    graph_.nodes.reserve(size(program_.nodes()));
    for (const fbs::Node& in : elements(program_.nodes())) {
      if (in.op() >= opcodes_.size()) return damaged("a node has no op");
      if (in.first_arg() != next_arg_) return damaged("the arguments of a node are invalid");
      Node& node = graph_.nodes.emplace_back();
      node.opcode = opcodes_[in.op()];
      node.record = in.record();
      node.in_place = in.in_place();
      const OpDesc& desc = op_desc(node.opcode);
      if (!read(desc.args.size(), node.args) || !read(desc.results.size(), node.results) || !items(node.args) ||
          !items(node.results)) {
        return damaged("the arguments of a node are invalid");
      }
    }
    if (next_arg_ != size(program_.args())) return damaged("some arguments belong to no node");
    return next_string_ == size(program_.strings()) ? Status() : damaged("some strings belong to no argument");
  }

  // Reads the next `count` args. A list's items come later; until then its `a` and `b` hold their position and number.
  bool read(size_t count, std::vector<Arg>& out) {
    const auto* args = program_.args();
    if (size(args) - next_arg_ < count) return false;
    out.resize(count);
    for (Arg& arg : out) {
      const fbs::Arg* in = args->Get(next_arg_++);
      if (in->tag() > fbs::ArgTag::MAX) return false;
      arg.tag = static_cast<ArgTag>(in->tag());
      arg.a = in->a();
      arg.b = in->b();
      if (arg.tag != ArgTag::kString) continue;
      if (arg.a != next_string_ || next_string_ == size(program_.strings())) return false;
      arg.text = program_.strings()->Get(next_string_++)->str();
      string_bytes_ += arg.text.size();
      if (string_bytes_ > kMaxTextBytes) return false;
      arg.a = 0;
    }
    return true;
  }

  bool items(std::vector<Arg>& args) {
    for (Arg& arg : args) {
      if (arg.tag != ArgTag::kList) continue;
      if (arg.a != next_arg_ || !read(arg.b, arg.items)) return false;
      for (const Arg& item : arg.items) {
        if (item.tag == ArgTag::kList) return false;
      }
      arg.a = 0;
      arg.b = 0;
    }
    return true;
  }

  const fbs::Program& program_;
  Graph& graph_;
  std::vector<Opcode> opcodes_;
  uint32_t next_arg_ = 0;
  uint32_t next_string_ = 0;
  size_t source_line_bytes_ = 0;
  size_t string_bytes_ = 0;
};

Status decode_aligned(const uint8_t* data, size_t size, Graph* graph) {
  flatbuffers::Verifier verifier(data, size, /*max_depth=*/16, /*max_tables=*/1'000'000);
  if (!fbs::VerifyProgramBuffer(verifier)) return damaged("it is not a flatbuffer of a program");
  const fbs::Program& program = *fbs::GetProgram(data);
  if (program.version() != kFormatVersion) {
    return {ErrorCode::kUnsupported,
            "remote: the program has format version " + std::to_string(program.version()) +
                ", but this side reads version " + std::to_string(kFormatVersion) +
                "; use the same torch-remote on both sides, or for a file the one that wrote it"};
  }
  if (Status status = Decoder(program, graph).run(); !status) return status;
  return verify(*graph);
}

}  // namespace

std::vector<uint8_t> encode_program(const Graph& graph) { return Encoder(graph).run(); }

Status decode_program(const uint8_t* data, size_t size, Graph* graph) {
  if (size < 8 || size >= FLATBUFFERS_MAX_BUFFER_SIZE) return damaged("it has " + std::to_string(size) + " bytes");
  if (reinterpret_cast<uintptr_t>(data) % 8 == 0) return decode_aligned(data, size, graph);
  // Flatbuffers' verifier and accessors need 8-byte alignment.
  std::vector<uint64_t> aligned((size + 7) / 8);
  std::memcpy(aligned.data(), data, size);
  return decode_aligned(reinterpret_cast<const uint8_t*>(aligned.data()), size, graph);
}

}  // namespace torch_remote::ir
