#include "worker/targets/cuda/gemm/gemm.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "ir/analysis.h"
#include "ir/number.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::DType;

// --- nodes -----------------------------------------------------------------------------------------------------------

// A node's arguments by name.
class Arguments {
 public:
  Arguments(const ir::Graph& graph, const ir::Node& node) : graph_(graph), node_(node) {}

  const Arg* find(std::string_view name) const { return ir::find_argument(node_, name); }
  // False: the argument is not a tensor.
  bool view(std::string_view name, uint32_t* view) const {
    const Arg* arg = find(name);
    if (arg == nullptr || arg->tag != ArgTag::kView || graph_.views[arg->a].dynamic) return false;
    *view = arg->a;
    return true;
  }
  // True also if the argument is absent.
  bool optional_view(std::string_view name, uint32_t* found) const {
    const Arg* arg = find(name);
    return arg == nullptr || arg->tag == ArgTag::kNone || view(name, found);
  }
  bool flag(std::string_view name, bool* value) const {
    const Arg* arg = find(name);
    int64_t number = 0;
    if (arg == nullptr) return true;
    if (arg->tag != ArgTag::kBool || !graph_.is_constant(arg->a, &number)) return false;
    *value = number != 0;
    return true;
  }
  // The view that the node writes: a result, or the argument that it aliases.
  bool result(uint32_t* view) const {
    const Arg* const found = node_.results.size() == 1 ? ir::find_result(graph_, node_, 0) : nullptr;
    if (found == nullptr) return false;
    *view = found->a;
    return true;
  }

 private:
  const ir::Graph& graph_;
  const ir::Node& node_;
};

bool is_half(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }
bool is_float8(DType type) { return type == DType::kFloat8E4M3FN || type == DType::kFloat8E5M2; }

std::optional<lt::Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return lt::Type::kFloat32;
    case DType::kFloat64:
      return lt::Type::kFloat64;
    case DType::kFloat16:
      return lt::Type::kFloat16;
    case DType::kBFloat16:
      return lt::Type::kBFloat16;
    case DType::kComplex64:
      return lt::Type::kComplex64;
    case DType::kComplex128:
      return lt::Type::kComplex128;
    case DType::kInt8:
      return lt::Type::kInt8;
    case DType::kInt32:
      return lt::Type::kInt32;
    case DType::kFloat8E4M3FN:
      return lt::Type::kFloat8E4M3;
    case DType::kFloat8E5M2:
      return lt::Type::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

bool has_types(const ir::Graph& graph, const Gemm& gemm, bool scaled) {
  const DType left = graph.views[gemm.left].dtype, right = graph.views[gemm.right].dtype,
              result = graph.views[gemm.result].dtype;
  if (scaled) {
    const bool both_wide = left == DType::kFloat8E5M2 && right == DType::kFloat8E5M2;
    const bool has_bias = gemm.addend != kNoView;
    if (has_bias && (!is_half(result) || graph.views[gemm.addend].dtype != result)) return false;
    return is_float8(left) && is_float8(right) && !both_wide && (is_half(result) || result == DType::kFloat32) &&
           graph.views[gemm.left_scale].dtype == DType::kFloat32 &&
           graph.views[gemm.right_scale].dtype == DType::kFloat32;
  }
  if (left != right) return false;
  if (left == DType::kInt8) return result == DType::kInt32;
  const bool is_number = left == DType::kFloat32 || left == DType::kFloat64 || is_half(left) || ir::is_complex(left);
  if (!is_number || left == DType::kComplex32) return false;
  if (gemm.addend != kNoView) {
    const DType addend = graph.views[gemm.addend].dtype;
    if (addend != result && !(is_half(addend) && result == DType::kFloat32)) return false;
  }
  return result == left || (is_half(left) && result == DType::kFloat32);
}

}  // namespace

bool is_gemm_op(ir::Opcode opcode) {
  using namespace ir::ops;
  constexpr ir::Opcode kOps[] = {aten_mm,     aten_mm_dtype,    aten_bmm,  aten_bmm_dtype, aten__int_mm,
                                 aten_addmm,  aten_addmm_dtype, aten_mv,   aten_addmv,     aten__addmm_activation,
                                 aten_addbmm, aten_baddbmm,     aten_addr, aten_vdot,      aten_baddbmm_dtype,
                                 aten_dot,    aten__scaled_mm};
  return std::ranges::find(kOps, ir::op_desc(opcode).functional) != std::end(kOps);
}

bool find_gemm(const ir::Graph& graph, const ir::Node& node, Gemm* gemm) {
  using namespace ir::ops;
  const Arguments arguments(graph, node);
  Gemm found;
  const auto operands = [&](std::string_view left, std::string_view right) {
    return arguments.view(left, &found.left) && arguments.view(right, &found.right) && arguments.result(&found.result);
  };
  const auto adds = [&] {
    found.alpha = arguments.find("alpha");
    found.beta = arguments.find("beta");
    return arguments.view("self", &found.addend);
  };
  bool good = false, gelu = false, scaled = false;
  switch (ir::op_desc(node.opcode).functional) {
    case aten_mm:
    case aten_mm_dtype:
    case aten_bmm:
    case aten_bmm_dtype:
    case aten__int_mm:
      good = operands("self", "mat2");
      break;
    case aten_addmm:
    case aten_addmm_dtype:
      good = operands("mat1", "mat2") && adds();
      break;
    case aten__addmm_activation:
      good = operands("mat1", "mat2") && adds() && arguments.flag("use_gelu", &gelu);
      found.activation = gelu ? Activation::kGelu : Activation::kRelu;
      break;
    case aten_addbmm:
      found.sums_batch = true;
      [[fallthrough]];
    case aten_baddbmm:
    case aten_baddbmm_dtype:
      good = operands("batch1", "batch2") && adds();
      break;
    case aten_mv:
      good = operands("self", "vec");
      found.right_layout = found.result_layout = DimLayout::kColumn;
      break;
    case aten_addmv:
      good = operands("mat", "vec") && adds();
      found.right_layout = found.result_layout = DimLayout::kColumn;
      break;
    case aten_addr:  // Real ones run on another kernel, which propagates NaN when alpha is 0.
      good = operands("vec1", "vec2") && adds() && ir::is_complex(graph.views[found.left].dtype);
      found.left_layout = DimLayout::kColumn;
      found.right_layout = DimLayout::kRow;
      break;
    case aten_vdot:
      good = operands("self", "other");
      found.conjugates_left = good && ir::is_complex(graph.views[found.left].dtype);
      found.left_layout = DimLayout::kRow;
      found.right_layout = DimLayout::kColumn;
      found.result_layout = DimLayout::kNumber;
      break;
    case aten_dot:
      good = operands("self", "tensor");
      found.left_layout = DimLayout::kRow;
      found.right_layout = DimLayout::kColumn;
      found.result_layout = DimLayout::kNumber;
      break;
    case aten__scaled_mm:
      scaled = true;
      good = operands("self", "mat2") && arguments.view("scale_a", &found.left_scale) &&
             arguments.view("scale_b", &found.right_scale) && arguments.optional_view("bias", &found.addend) &&
             arguments.find("scale_result")->tag == ArgTag::kNone &&
             arguments.flag("use_fast_accum", &found.fast_accumulation);
      break;
    default:
      return false;
  }
  if (!good || !has_types(graph, found, scaled)) return false;
  *gemm = found;
  return true;
}

bool find_epilogue(const ir::Graph& graph, const ir::Group& group, Gemm* gemm) {
  using namespace ir::ops;
  if (group.kind != ir::GroupKind::kMatmul || group.last != group.first + 1) return false;
  const ir::Node& second = graph.nodes[group.last];
  Gemm found;
  if (!find_gemm(graph, graph.nodes[group.first], &found) || found.activation != Activation::kNone) return false;
  const Arguments arguments(graph, second);
  uint32_t activated = kNoView, result = kNoView;
  if (!arguments.view("self", &activated) || second.results[0].tag != ArgTag::kView || !arguments.result(&result)) {
    return false;
  }
  const ir::View &made = graph.views[found.result], &taken = graph.views[activated], &left = graph.views[result];
  if (!(taken == made) || !graph.buffers[made.buffer].group_local || left.dtype != made.dtype ||
      left.sizes != made.sizes) {
    return false;
  }
  if (made.dtype != DType::kFloat32 && !is_half(made.dtype)) return false;
  const Arg* approximate = arguments.find("approximate");
  if (second.opcode == aten_relu) {
    found.activation = Activation::kRelu;
  } else if (second.opcode == aten_gelu && approximate != nullptr && approximate->text == "tanh") {
    found.activation = Activation::kGeluTanh;
  } else {
    return false;
  }
  found.result = result;
  *gemm = found;
  return true;
}

Number number_of(const ir::Arg* arg, std::span<const int64_t> values) {
  if (arg == nullptr) return {};
  if (arg->tag == ArgTag::kComplex) {
    return {std::bit_cast<double>(values[arg->a]), std::bit_cast<double>(values[arg->a + 1])};
  }
  return {ir::number_of(*arg, values).value_or(1), 0};
}

GemmScalars scalars_of(const Gemm& gemm, std::span<const int64_t> values) {
  const auto is = [](Number number, double value) { return number.real == value && number.imaginary == 0; };
  if (gemm.addend == kNoView) return {};
  const Number alpha = number_of(gemm.alpha, values), beta = number_of(gemm.beta, values);
  return {is(alpha, 0), is(beta, 0), is(beta, 1)};
}

// --- plans -----------------------------------------------------------------------------------------------------------

namespace {

// A matrix of a batch with any strides, in elements.
struct Matrix {
  Location location;
  DType dtype = DType::kFloat32;
  int64_t rows = 1, columns = 1, row_stride = 0, column_stride = 0, batch_stride = 0;

  Matrix transposed() const {
    Matrix other = *this;
    std::swap(other.rows, other.columns);
    std::swap(other.row_stride, other.column_stride);
    return other;
  }
  // Whether the matrix is column-major: the row stride is 1, and columns do not overlap.
  bool has_columns() const {
    return (row_stride == 1 || rows == 1) && (columns == 1 || column_stride >= std::max<int64_t>(rows, 1));
  }
  int64_t ld() const { return columns == 1 ? rows : column_stride; }
  uint64_t item() const { return ir::item_size(dtype); }
  // The number of bytes from the first element to one past the last.
  uint64_t reach(int64_t batch) const {
    return static_cast<uint64_t>((rows - 1) * row_stride + (columns - 1) * column_stride + (batch - 1) * batch_stride +
                                 1) *
           item();
  }
};

// Alignment requirements of dims, and whether only op(a) = transposed, op(b) = not transposed is supported.
struct OperandRequirements {
  int64_t rows = 1, inner = 1;
  uint32_t alignment = 1;  // bytes
  bool transposed = false;
};

// Calls of one plan at most.
constexpr int64_t kMaxCalls = 1 << 16;

class GemmPlanner {
 public:
  GemmPlanner(const ir::Graph& graph, const Gemm& gemm, std::span<const int64_t> values, GemmPlan& plan)
      : graph_(graph), gemm_(gemm), values_(values), plan_(plan) {}

  Status run() {
    Matrix left, right, result, addend;
    const ir::View& left_view = graph_.views[gemm_.left];
    const size_t matrix_rank = gemm_.left_layout == DimLayout::kMatrix ? 2 : 1;
    const bool batched = left_view.sizes.size() > matrix_rank;
    batch_ = batched ? values_[left_view.sizes[0]] : 1;
    const int64_t batch = batch_;
    if (!read(gemm_.left, gemm_.left_layout, batched, &left) ||
        !read(gemm_.right, gemm_.right_layout, batched, &right) ||
        !read(gemm_.result, gemm_.result_layout, batched && !gemm_.sums_batch, &result)) {
      return unsupported("operands of other ranks");
    }
    const bool has_batch =
        !batched || (first_size(gemm_.right) == batch && (gemm_.sums_batch || first_size(gemm_.result) == batch));
    if (!has_batch) return unsupported("batches that do not match");
    const GemmScalars numbers = scalars_of(gemm_, values_);
    const bool is_bias = gemm_.left_scale != kNoView && gemm_.addend != kNoView;
    const bool adds = gemm_.addend != kNoView && (is_bias || !numbers.beta_is_0);
    if (adds && !broadcast(result, batched && !gemm_.sums_batch, &addend))
      return unsupported("an addend that cannot be broadcast");
    if (gemm_.left_scale != kNoView) {
      for (const uint32_t view : {gemm_.left_scale, gemm_.right_scale}) {
        if (count(view) != 1) return unsupported("scales other than one number for each operand");
      }
    }
    if (result.rows == 0 || result.columns == 0 || (batch == 0 && !gemm_.sums_batch)) return {};
    if (left.rows != result.rows || right.columns != result.columns || left.columns != right.rows) {
      return unsupported("sizes that do not match");
    }
    const bool nothing = left.columns == 0 || numbers.alpha_is_0 || batch == 0;
    if (nothing && gemm_.sums_batch) batch_ = 1;
    calls_ = gemm_.sums_batch && !nothing ? batch_ : 1;
    if (calls_ > kMaxCalls) return unsupported("too large a batch");
    if (gemm_.sums_batch) batch_ = 1;
    orient(left, right, result, addend, adds);
    const bool unit = numbers.beta_is_1 || is_bias;
    return build(left, right, result, addend, adds, unit, nothing);
  }

 private:
  static Status unsupported(const std::string& what) { return {ErrorCode::kUnsupported, "a matmul with " + what}; }

  int64_t count(uint32_t view) const {
    int64_t count = 1;
    for (const ir::Sym size : graph_.views[view].sizes) count *= values_[size];
    return count;
  }

  int64_t first_size(uint32_t view) const { return values_[graph_.views[view].sizes[0]]; }

  Location location_of(const ir::View& view) const {
    return {view.buffer, static_cast<uint64_t>(values_[view.offset]) * ir::item_size(view.dtype)};
  }

  bool read(uint32_t index, DimLayout layout, bool batched, Matrix* matrix) const {
    const ir::View& view = graph_.views[index];
    const size_t own = layout == DimLayout::kMatrix ? 2 : layout == DimLayout::kNumber ? 0 : 1;
    if (view.sizes.size() != own + (batched ? 1 : 0)) return false;
    const auto size = [&](size_t d) { return values_[view.sizes[d]]; };
    const auto stride = [&](size_t d) { return values_[view.strides[d]]; };
    matrix->location = location_of(view);
    matrix->dtype = view.dtype;
    const size_t first = batched ? 1 : 0;
    if (batched && size(0) > 1) matrix->batch_stride = stride(0);
    if (layout == DimLayout::kMatrix || layout == DimLayout::kColumn) {
      matrix->rows = size(first);
      matrix->row_stride = stride(first);
    }
    if (layout == DimLayout::kMatrix || layout == DimLayout::kRow) {
      matrix->columns = size(view.sizes.size() - 1);
      matrix->column_stride = stride(view.sizes.size() - 1);
    }
    return true;
  }

  // The addend, broadcast to the result's sizes from the last dim on.
  bool broadcast(const Matrix& result, bool batched, Matrix* addend) const {
    const ir::View& view = graph_.views[gemm_.addend];
    addend->location = location_of(view);
    addend->dtype = view.dtype;
    addend->rows = result.rows;
    addend->columns = result.columns;
    std::vector<std::pair<int64_t, int64_t*>> dims;  // Sizes and strides of the result's dims, the last one first.
    if (gemm_.result_layout == DimLayout::kMatrix) dims.emplace_back(result.columns, &addend->column_stride);
    if (gemm_.result_layout != DimLayout::kNumber) dims.emplace_back(result.rows, &addend->row_stride);
    if (batched) dims.emplace_back(batch_, &addend->batch_stride);
    if (view.sizes.size() > dims.size()) return false;
    for (size_t i = 0; i < view.sizes.size(); ++i) {
      const size_t d = view.sizes.size() - 1 - i;
      const int64_t size = values_[view.sizes[d]];
      if (size != 1 && size != dims[i].first) return false;
      if (size != 1) *dims[i].second = values_[view.strides[d]];
    }
    return true;
  }

  // Transposes the problem, (left right)^T = right^T left^T, unless the result is column-major only, or a single
  // column. Afterwards the result is column-major, or neither of its strides is 1.
  void orient(Matrix& left, Matrix& right, Matrix& result, Matrix& addend, bool adds) {
    const bool is_column = result.columns == 1 && result.has_columns();
    if (is_column || (!result.transposed().has_columns() && result.has_columns())) return;
    std::swap(left, right);
    swapped_ = true;
    for (Matrix* matrix : {&left, &right, &result}) *matrix = matrix->transposed();
    if (adds) addend = addend.transposed();
  }

  uint32_t scratch(uint64_t bytes) {
    plan_.scratch.push_back(std::max<uint64_t>(bytes, 1));
    return kScratch + static_cast<uint32_t>(plan_.scratch.size() - 1);
  }

  bool overlaps(const Matrix& a, const Matrix& b) const {
    if (a.location.buffer != b.location.buffer) return false;
    const uint64_t a_end = a.location.offset + a.reach(std::max(batch_, calls_));
    const uint64_t b_end = b.location.offset + b.reach(std::max(batch_, calls_));
    return a.location.offset < b_end && b.location.offset < a_end;
  }

  void move(const Matrix& from, const Matrix& to, int64_t batch, std::vector<StridedMove>* moves) const {
    StridedMove moved{from.location, to.location, from.dtype, to.dtype, {}, {}, {}};
    // The dim with the smallest stride in the destination comes last.
    const bool columns_last = to.column_stride < to.row_stride;
    const auto dim = [&](int64_t size, int64_t from_stride, int64_t to_stride) {
      if (size == 1) return;
      moved.sizes.push_back(size);
      moved.from_strides.push_back(from_stride);
      moved.to_strides.push_back(to_stride);
    };
    dim(batch, from.batch_stride, to.batch_stride);
    if (columns_last) dim(from.rows, from.row_stride, to.row_stride);
    dim(from.columns, from.column_stride, to.column_stride);
    if (!columns_last) dim(from.rows, from.row_stride, to.row_stride);
    moves->push_back(std::move(moved));
  }

  static uint32_t alignment_of(const Matrix& matrix, int64_t batch) {
    uint64_t bits = matrix.location.offset | 16;
    if (batch > 1) bits |= static_cast<uint64_t>(matrix.batch_stride) * matrix.item();
    return static_cast<uint32_t>(bits & (~bits + 1));
  }

  // Describes the operand such that op(a) is this matrix [rows, inner]. For b, its transpose is given; b is never
  // conjugated. An operand with other strides is copied first.
  StoredMatrix operand(const Matrix& matrix, bool transposed_only, bool first, const OperandRequirements& wants,
                       int64_t rows, int64_t inner, bool conjugates, lt::Operation* op, Location* location) {
    // The op for a if its rows have stride 1 (`op_if_column_major`) or its columns do (`op_if_row_major`). b is given
    // transposed, so both are swapped.
    const bool by_rows = matrix.has_columns(), by_columns = matrix.transposed().has_columns();
    const lt::Operation op_if_column_major = first ? lt::Operation::kNone : lt::Operation::kTranspose;
    const lt::Operation op_if_row_major = first ? lt::Operation::kTranspose : lt::Operation::kNone;
    const int64_t batch = std::max(batch_, calls_);
    const auto fits = [&](int64_t ld) {
      const auto bytes = static_cast<uint64_t>(ld) * matrix.item();
      return matrix.rows == rows && matrix.columns == inner && bytes % wants.alignment == 0 &&
             alignment_of(matrix, batch) >= wants.alignment;
    };
    StoredMatrix stored;
    stored.type = *type_of(matrix.dtype);
    stored.batch_stride = batch_ > 1 ? matrix.batch_stride : 0;
    *location = matrix.location;
    stored.alignment = alignment_of(matrix, batch);
    // The conjugate is only available transposed.
    const bool any = !transposed_only && !conjugates;
    if (by_columns && fits(matrix.transposed().ld())) {
      *op = conjugates ? lt::Operation::kConjugate : op_if_row_major;
      stored.rows = matrix.columns;
      stored.columns = matrix.rows;
      stored.ld = matrix.transposed().ld();
      return stored;
    }
    if (any && by_rows && fits(matrix.ld())) {
      *op = op_if_column_major;
      stored.rows = matrix.rows;
      stored.columns = matrix.columns;
      stored.ld = matrix.ld();
      return stored;
    }
    // A copy in scratch memory, with contiguous inner dims.
    Matrix packed = matrix;
    packed.location = {scratch(static_cast<uint64_t>(batch * rows * inner) * matrix.item()), 0};
    packed.column_stride = 1;
    packed.row_stride = inner;
    packed.batch_stride = rows * inner;
    if (matrix.rows != rows || matrix.columns != inner) plan_.zeros.push_back(packed.location.buffer - kScratch);
    move(matrix, packed, batch, &plan_.before);
    batch_strides_[first ? 0 : 1] = static_cast<uint64_t>(packed.batch_stride) * matrix.item();
    *op = conjugates ? lt::Operation::kConjugate : op_if_row_major;
    *location = packed.location;
    stored.rows = inner;
    stored.columns = rows;
    stored.ld = inner;
    stored.batch_stride = batch_ > 1 ? packed.batch_stride : 0;
    stored.alignment = alignment_of(packed, batch);
    return stored;
  }

  // An operand of zeros.
  StoredMatrix zeros(DType dtype, int64_t rows, int64_t inner, uint32_t buffer, bool first, lt::Operation* op,
                     Location* location) {
    *op = first ? lt::Operation::kTranspose : lt::Operation::kNone;
    *location = {buffer, 0};
    StoredMatrix stored;
    stored.type = *type_of(dtype);
    stored.rows = stored.ld = inner;
    stored.columns = rows;
    return stored;
  }

  static OperandRequirements wants_of(DType dtype) {
    if (dtype == DType::kInt8) return {4, 4, 4, true};
    if (is_float8(dtype)) return {16, 16, 16, true};
    return {};
  }

  static int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

  // left [m, k], right [k, n], result [m, n]. If the result is not column-major, a column-major copy is made first.
  Status build(const Matrix& left, const Matrix& right, const Matrix& result, const Matrix& addend, bool adds,
               bool unit, bool nothing) {
    const OperandRequirements wants = wants_of(left.dtype);
    const int64_t m = round_up(result.rows, wants.rows), n = result.columns;
    const int64_t k = nothing ? wants.inner : round_up(left.columns, wants.inner);
    Problem& problem = plan_.problem;
    problem.batch = static_cast<int32_t>(batch_);
    if (batch_ > INT32_MAX) return unsupported("too large a batch");
    set_types(left.dtype, problem);
    GemmCall call;
    if (nothing) {
      const uint32_t buffer = scratch(static_cast<uint64_t>(k * std::max(m, n)) * left.item());
      plan_.zeros.push_back(buffer - kScratch);
      problem.a = zeros(left.dtype, m, k, buffer, true, &problem.op_a, &call.a);
      problem.b = zeros(right.dtype, n, k, buffer, false, &problem.op_b, &call.b);
    } else {
      batch_strides_[0] = static_cast<uint64_t>(left.batch_stride) * left.item();
      batch_strides_[1] = static_cast<uint64_t>(right.batch_stride) * right.item();
      problem.a = operand(left, wants.transposed, true, wants, m, k, gemm_.conjugates_left, &problem.op_a, &call.a);
      problem.b = operand(right.transposed(), wants.transposed, false, wants, n, k, false, &problem.op_b, &call.b);
    }
    // The result is written in place if cuBLASLt supports its layout and no operand is read there.
    Matrix made = result;
    const bool is_read = !nothing && (overlaps(result, left) || overlaps(result, right));
    const bool in_place = !is_read && result.has_columns() && result.rows == m && is_apart(result) &&
                          static_cast<uint64_t>(result.ld()) * result.item() % wants.alignment == 0 &&
                          alignment_of(result, batch_) >= wants.alignment;
    const bool is_self = adds && is_same(addend, result);
    if (!in_place || (adds && !is_self && overlaps(result, addend))) {
      made.location = {scratch(static_cast<uint64_t>(batch_ * m * n) * made.item()), 0};
      made.row_stride = 1;
      made.column_stride = m;
      made.batch_stride = m * n;
      move(made, result, batch_, &plan_.after);
    }
    problem.d.type = *type_of(made.dtype);
    problem.d.rows = m;
    problem.d.columns = n;
    problem.d.ld = n == 1 ? m : made.column_stride;
    problem.d.batch_stride = batch_ > 1 ? made.batch_stride : 0;
    problem.d.alignment = alignment_of(made, batch_);
    call.d = made.location;
    problem.c = problem.d;
    call.c = call.d;
    if (gemm_.activation == Activation::kRelu) problem.epilogue = lt::kRelu;
    if (gemm_.activation == Activation::kGeluTanh) problem.epilogue = lt::kGelu;
    if (adds) add(addend, made, unit, problem, call);
    if (gemm_.left_scale != kNoView) scale(problem, call);
    problem.fast_accumulation = gemm_.fast_accumulation;
    plan_.problem_next = problem;
    plan_.problem_next.beta_is_nonzero = true;
    plan_.problem_next.c = problem.d;
    for (int64_t i = 0; i < calls_; ++i) {
      plan_.calls.push_back(call);
      call.first = false;
      call.c = call.d;
      call.a.offset += batch_strides_[0];
      call.b.offset += batch_strides_[1];
    }
    return {};
  }

  static void set_types(DType dtype, Problem& problem) {
    const bool twice = dtype == DType::kFloat64 || dtype == DType::kComplex128;
    problem.compute = dtype == DType::kInt8 ? lt::Compute::kInt32
                      : twice               ? lt::Compute::kFloat64
                                            : lt::Compute::kFloat32;
    problem.scale = dtype == DType::kInt8   ? lt::Type::kInt32
                    : ir::is_complex(dtype) ? *type_of(dtype)
                    : twice                 ? lt::Type::kFloat64
                                            : lt::Type::kFloat32;
  }

  static bool is_same(const Matrix& a, const Matrix& b) {
    return a.location.buffer == b.location.buffer && a.location.offset == b.location.offset && a.dtype == b.dtype &&
           (a.rows == 1 || a.row_stride == b.row_stride) && (a.columns == 1 || a.column_stride == b.column_stride) &&
           a.batch_stride == b.batch_stride;
  }

  // The batch's matrices do not overlap.
  bool is_apart(const Matrix& matrix) const {
    return batch_ <= 1 || matrix.batch_stride >= (matrix.columns - 1) * matrix.ld() + matrix.rows;
  }

  // One vector for all columns, as the bias epilogue requires; for the first call, or the only one.
  bool is_vector(const Matrix& addend, const Matrix& made) const {
    return (made.rows == 1 || addend.row_stride == 1) && (made.columns == 1 || addend.column_stride == 0) &&
           (batch_ == 1 || addend.batch_stride == 0);
  }

  void add(const Matrix& addend, const Matrix& made, bool unit, Problem& problem, GemmCall& call) {
    const bool is_real = !ir::is_complex(made.dtype) && made.dtype != DType::kInt32;
    const bool is_bias = gemm_.left_scale != kNoView;
    const bool fits = addend.dtype == made.dtype || is_bias;
    if (unit && is_real && fits && calls_ == 1 && is_vector(addend, made)) {
      problem.epilogue = (problem.epilogue & ~uint32_t{lt::kDefault}) | lt::kBias;
      problem.bias = *type_of(addend.dtype);
      problem.bias_alignment = alignment_of(addend, 1);
      call.bias = addend.location;
      if (problem.d.rows != made.rows) pad_bias(addend, problem, call);
      return;
    }
    problem.beta_is_nonzero = true;
    if (is_same(addend, made)) return;
    const bool readable = addend.has_columns() && addend.dtype == made.dtype &&
                          (batch_ == 1 || addend.batch_stride != 0) && is_apart(addend);
    if (readable) {
      problem.c.ld = addend.ld();
      problem.c.batch_stride = batch_ > 1 ? addend.batch_stride : 0;
      problem.c.alignment = alignment_of(addend, batch_);
      call.c = addend.location;
      return;
    }
    move(addend, made, batch_, &plan_.before);
  }

  // Pads the bias to as many elements as the padded result has rows.
  void pad_bias(const Matrix& addend, Problem& problem, GemmCall& call) {
    Matrix padded = addend;
    padded.columns = 1;
    padded.location = {scratch(static_cast<uint64_t>(problem.d.rows) * addend.item()), 0};
    plan_.zeros.push_back(padded.location.buffer - kScratch);
    Matrix vector = addend;
    vector.columns = 1;
    move(vector, padded, 1, &plan_.before);
    problem.bias_alignment = alignment_of(padded, 1);
    call.bias = padded.location;
  }

  void scale(Problem& problem, GemmCall& call) {
    problem.is_scaled = true;
    call.a_scale = location_of(graph_.views[gemm_.left_scale]);
    call.b_scale = location_of(graph_.views[gemm_.right_scale]);
    if (swapped_) std::swap(call.a_scale, call.b_scale);
  }

  const ir::Graph& graph_;
  const Gemm& gemm_;
  const std::span<const int64_t> values_;
  GemmPlan& plan_;
  int64_t batch_ = 1, calls_ = 1;
  bool swapped_ = false;            // a is the right operand.
  uint64_t batch_strides_[2] = {};  // Bytes; for a and b.
};

}  // namespace

Status plan_gemm(const ir::Graph& graph, const Gemm& gemm, std::span<const int64_t> values, ir::MathModes math_modes,
                 GemmPlan* plan) {
  *plan = {};
  Status status = GemmPlanner(graph, gemm, values, *plan).run();
  for (Problem* const problem : {&plan->problem, &plan->problem_next}) {
    const bool is_f32 = problem->a.type == lt::Type::kFloat32 || problem->a.type == lt::Type::kComplex64;
    if (is_f32 && (math_modes & ir::kTf32Matmuls) != 0) problem->compute = lt::Compute::kTf32;
    problem->deterministic = (math_modes & ir::kDeterministic) != 0;
  }
  return status;
}

}  // namespace torch_remote::worker::cuda
