#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <utility>

#include "tests/emulated_gpu/cudnn_state.h"

// Graphs of attention and its gradients: which ones are supported, and their evaluation, operation by operation in
// float32.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Attribute;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::PointwiseMode;
using dnn::Type;
using Status = dnn::Result;

Status fail(std::string* why, Status status, std::string text) {
  *why = std::move(text);
  return status;
}

bool is_half(Type type) { return type == Type::kFloat16 || type == Type::kBFloat16; }

bool operator==(const DnnTensor& a, const DnnTensor& b) {
  return a.type == b.type && a.sizes == b.sizes && a.strides == b.strides && a.alignment == b.alignment &&
         a.is_virtual == b.is_virtual && a.is_host_scalar == b.is_host_scalar;
}

std::string_view name_of(PointwiseMode mode) {
  using enum PointwiseMode;
  switch (mode) {
    case kAdd:
      return "add";
    case kMultiply:
      return "mul";
    case kDivide:
      return "div";
    case kSubtract:
      return "sub";
    case kExp:
      return "exp";
    case kLog:
      return "log";
    case kIdentity:
      return "id";
    case kGreaterEqual:
      return "ge";
    case kIndex:
      return "index";
    case kSelect:
      return "select";
  }
  return "?";
}

// Names of the operations in order, as "matmul mul max ".
std::string names_of(const DnnOperations& graph) {
  std::string names;
  for (const DnnOperation& each : graph.operations) {
    if (each.kind == DescriptorType::kMatmulOperation) {
      names += "matmul";
    } else if (each.kind == DescriptorType::kReshapeOperation) {
      names += "reshape";
    } else if (each.kind == DescriptorType::kReductionOperation) {
      names += each.reduction == dnn::ReductionMode::kMax ? "max" : "sum";
    } else {
      names += name_of(each.pointwise);
      if (each.pointwise == PointwiseMode::kIndex) names += std::to_string(each.axis);
    }
    names += " ";
  }
  return names;
}

constexpr const char* kSeen = "(index2 index3 ge select )?";

bool is_packed(const DnnTensor& tensor) {
  int64_t step = 1;
  for (size_t d = tensor.sizes.size(); d-- > 0; step *= tensor.sizes[d]) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != step) return false;
  }
  return true;
}

// Whether rows or columns are contiguous and begin at multiples of 16 bytes.
bool has_aligned_rows(const DnnTensor& tensor) {
  const size_t rank = tensor.sizes.size();
  const size_t inner = tensor.strides[rank - 1] == 1 ? rank - 1 : rank - 2;
  if (tensor.strides[inner] != 1 || tensor.alignment < 16) return false;
  for (size_t d = 0; d < rank; ++d) {
    if (d != inner && tensor.sizes[d] != 1 && tensor.strides[d] % 8 != 0) return false;
  }
  return true;
}

// -- operations alone

// Checks that the tensors and the operation's parameters are descriptors of the right kinds.
Status check_kinds(const dnn::DescriptorState& state, DescriptorType how, Attribute of_how, std::string* why) {
  for (const auto& [attribute, value] : state.values) {
    const DescriptorType wanted = attribute == of_how ? how : DescriptorType::kTensor;
    if (get_scalar<Descriptor>(state, attribute)->kind != wanted)
      return fail(why, Status::kBadParamDescriptorType, "a descriptor of another kind");
  }
  return Status::kSuccess;
}

// The number of operands of each mode.
size_t operands_of(dnn::PointwiseMode mode) {
  using enum dnn::PointwiseMode;
  switch (mode) {
    case kExp:
    case kLog:
    case kIdentity:
    case kIndex:
      return 1;
    case kSelect:
      return 3;
    default:
      return 2;
  }
}

Status check_pointwise(const dnn::DescriptorState& state, std::string* why) {
  if (const Status status = check_kinds(state, DescriptorType::kPointwise, Attribute::kPointwiseOperation, why);
      status != Status::kSuccess)
    return status;
  const auto mode = get_scalar<dnn::PointwiseMode>(*get_scalar<Descriptor>(state, Attribute::kPointwiseOperation),
                                                   Attribute::kPointwiseMode);
  const DnnTensor left = tensor_of(*get_scalar<Descriptor>(state, Attribute::kPointwiseLeft)),
                  result = tensor_of(*get_scalar<Descriptor>(state, Attribute::kPointwiseResult));
  bool fits = left.sizes == result.sizes;
  size_t operands = 1;
  for (const Attribute attribute : {Attribute::kPointwiseRight, Attribute::kPointwiseThird}) {
    if (find(state, attribute) == nullptr) continue;
    ++operands;
    const DnnTensor other = tensor_of(*get_scalar<Descriptor>(state, attribute));
    fits = fits && other.sizes.size() == left.sizes.size();
    for (size_t d = 0; fits && d < left.sizes.size(); ++d)
      fits = other.sizes[d] == 1 || other.sizes[d] == left.sizes[d];
  }
  if (operands != operands_of(mode)) return fail(why, Status::kBadParam, "another number of operands");
  return fits ? Status::kSuccess : fail(why, Status::kBadParamShapeMismatch, "sizes do not fit");
}

Status check_matmul(const dnn::DescriptorState& state, std::string* why) {
  if (const Status status = check_kinds(state, DescriptorType::kMatmul, Attribute::kMatmulDescriptor, why);
      status != Status::kSuccess)
    return status;
  const auto sizes = [&](Attribute attribute) { return tensor_of(*get_scalar<Descriptor>(state, attribute)).sizes; };
  const auto left = sizes(Attribute::kMatmulLeft), right = sizes(Attribute::kMatmulRight),
             result = sizes(Attribute::kMatmulResult);
  const size_t rank = left.size();
  bool fits = right.size() == rank && result.size() == rank && left[rank - 1] == right[rank - 2] &&
              left[rank - 2] == result[rank - 2] && right[rank - 1] == result[rank - 1];
  for (size_t d = 0; fits && d + 2 < rank; ++d) fits = left[d] == result[d] && result[d] % right[d] == 0;
  return fits ? Status::kSuccess : fail(why, Status::kBadParamShapeMismatch, "sizes do not fit");
}

Status check_reduction(const dnn::DescriptorState& state, std::string* why) {
  if (const Status status = check_kinds(state, DescriptorType::kReduction, Attribute::kReductionDescriptor, why);
      status != Status::kSuccess)
    return status;
  const DnnTensor from = tensor_of(*get_scalar<Descriptor>(state, Attribute::kReductionFrom)),
                  to = tensor_of(*get_scalar<Descriptor>(state, Attribute::kReductionTo));
  bool fits = from.sizes.size() == to.sizes.size();
  for (size_t d = 0; fits && d < to.sizes.size(); ++d) fits = from.sizes[d] % to.sizes[d] == 0;
  return fits ? Status::kSuccess : fail(why, Status::kBadParamShapeMismatch, "sizes do not fit");
}

Status check_reshape(const dnn::DescriptorState& state, std::string* why) {
  if (const Status status = check_kinds(state, DescriptorType::kTensor, Attribute::kReshapeFrom, why);
      status != Status::kSuccess)
    return status;
  const DnnTensor from = tensor_of(*get_scalar<Descriptor>(state, Attribute::kReshapeFrom)),
                  to = tensor_of(*get_scalar<Descriptor>(state, Attribute::kReshapeTo));
  return from.count() == to.count() ? Status::kSuccess : fail(why, Status::kBadParamShapeMismatch, "sizes do not fit");
}

}  // namespace

Status check_operation_sizes(const dnn::DescriptorState& state, std::string* why) {
  switch (state.kind) {
    case DescriptorType::kPointwiseOperation:
      return check_pointwise(state, why);
    case DescriptorType::kMatmulOperation:
      return check_matmul(state, why);
    case DescriptorType::kReductionOperation:
      return check_reduction(state, why);
    default:
      return check_reshape(state, why);
  }
}

void for_each_row(const DnnTensor& tensor, const std::function<void(uint64_t at, uint64_t bytes)>& f) {
  const size_t rank = tensor.sizes.size();
  const uint32_t item = dnn::item_size(tensor.type);
  size_t inner = rank - 1;
  for (size_t d = 0; d < rank; ++d) {
    if (tensor.strides[d] == 1 && tensor.sizes[d] > 1) inner = d;
  }
  std::vector<int64_t> at(rank);
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset += at[d] * tensor.strides[d];
    f(static_cast<uint64_t>(offset) * item, static_cast<uint64_t>(tensor.sizes[inner]) * item);
    size_t d = rank;
    while (d-- > 0) {
      if (d == inner) continue;
      if (++at[d] < tensor.sizes[d]) break;
      at[d] = 0;
    }
    if (d > rank) return;
  }
}

Status read_operations(const std::vector<Descriptor>& descriptors, DnnOperations* graph, std::string* why) {
  std::set<int64_t> used;
  for (const Descriptor descriptor : descriptors) {
    const auto& state = *descriptor;
    DnnOperation operation;
    operation.kind = state.kind;
    std::vector<Attribute> reads;
    Attribute writes{};
    switch (state.kind) {
      case DescriptorType::kMatmulOperation:
        reads = {Attribute::kMatmulLeft, Attribute::kMatmulRight};
        writes = Attribute::kMatmulResult;
        break;
      case DescriptorType::kReductionOperation:
        reads = {Attribute::kReductionFrom};
        writes = Attribute::kReductionTo;
        operation.reduction = get_scalar<dnn::ReductionMode>(
            *get_scalar<Descriptor>(state, Attribute::kReductionDescriptor), Attribute::kReductionMode);
        break;
      case DescriptorType::kReshapeOperation:
        reads = {Attribute::kReshapeFrom};
        writes = Attribute::kReshapeTo;
        break;
      case DescriptorType::kPointwiseOperation: {
        const auto& how = *get_scalar<Descriptor>(state, Attribute::kPointwiseOperation);
        operation.pointwise = get_scalar<PointwiseMode>(how, Attribute::kPointwiseMode);
        operation.axis = get_scalar<int64_t>(how, Attribute::kPointwiseAxis);
        if ((operation.pointwise == PointwiseMode::kIndex) != (find(how, Attribute::kPointwiseAxis) != nullptr))
          return fail(why, Status::kBadParam, "an index has an axis, and nothing else");
        for (const Attribute each :
             {Attribute::kPointwiseLeft, Attribute::kPointwiseRight, Attribute::kPointwiseThird}) {
          if (find(state, each) != nullptr) reads.push_back(each);
        }
        writes = Attribute::kPointwiseResult;
        break;
      }
      default:
        return fail(why, Status::kNotSupportedGraphPattern, "an operation that is not known");
    }
    const auto take = [&](Attribute attribute) {
      const DnnTensor tensor = tensor_of(*get_scalar<Descriptor>(state, attribute));
      const auto [known, is_new] = graph->tensors.emplace(tensor.id, tensor);
      return is_new || known->second == tensor ? &known->second : nullptr;
    };
    for (const Attribute attribute : reads) {
      const DnnTensor* const tensor = take(attribute);
      if (tensor == nullptr) return fail(why, Status::kBadParamDuplicatedEntries, "an id of two tensors");
      if (tensor->is_virtual && !graph->computed.contains(tensor->id))
        return fail(why, Status::kNotSupportedGraphPattern, "what is read is not made before, and has no memory");
      used.insert(tensor->id);
      operation.operands.push_back(tensor->id);
    }
    const DnnTensor* const made = take(writes);
    if (made == nullptr) return fail(why, Status::kBadParamDuplicatedEntries, "an id of two tensors");
    if (made->is_host_scalar || !graph->computed.insert(made->id).second || used.contains(made->id))
      return fail(why, Status::kNotSupportedGraphPattern, "what is made is a number, or made twice, or read before");
    operation.result = made->id;
    graph->operations.push_back(std::move(operation));
  }
  for (const auto& [id, tensor] : graph->tensors) {
    if (tensor.is_virtual && !used.contains(id))
      return fail(why, Status::kNotSupportedGraphPattern, "what is made is not used, and has no memory");
    const bool is_one = std::ranges::all_of(tensor.sizes, [](int64_t size) { return size == 1; });
    if (tensor.is_host_scalar && (!is_one || tensor.type != Type::kFloat32))
      return fail(why, Status::kNotSupportedGraphPattern, "a number of many elements, or of another type");
  }
  return Status::kSuccess;
}

Status supports_attention(const DnnOperations& graph, std::string* why) {
  const std::string names = names_of(graph);
  static const std::regex forward("matmul mul (add )?" + std::string(kSeen) + "max sub exp sum log add div matmul "),
      backward("mul sum mul matmul mul (add )?sub " + std::string(kSeen) +
               "exp reshape matmul (sum )?matmul sub mul mul reshape matmul (sum )?reshape matmul (id )?");
  const bool is_backward = std::regex_match(names, backward);
  if (!is_backward && !std::regex_match(names, forward))
    return fail(why, Status::kNotSupportedGraphPattern, "no attention: " + names);
  const int64_t most = is_backward ? 128 : 256;
  const auto& products = graph.operations[is_backward ? 3 : 0];
  const DnnTensor& query = graph.tensors.at(products.operands[0]);
  const int64_t size = query.sizes.back();
  if (query.sizes.size() != 4 || !is_half(query.type)) return fail(why, Status::kNotSupportedDataType, "no half type");
  if (size > most || size % 8 != 0) return fail(why, Status::kNotSupportedShape, "heads of such a size");
  for (const auto& [id, tensor] : graph.tensors) {
    if (tensor.is_host_scalar) continue;
    const bool whole = tensor.type == Type::kInt32 || tensor.type == Type::kBool;
    if (tensor.type != query.type && tensor.type != Type::kFloat32 && !(whole && tensor.is_virtual))
      return fail(why, Status::kNotSupportedDataType, "types differ");
    if (tensor.is_virtual) continue;
    // The gradient reads float32 sums as packed, whatever strides the descriptor states.
    if (tensor.type == Type::kFloat32 && !is_packed(tensor))
      return fail(why, Status::kNotSupportedLayout, "f32 with gaps");
    if (tensor.type != Type::kFloat32 && !has_aligned_rows(tensor))
      return fail(why, Status::kNotSupportedLayout, "rows that are not aligned");
  }
  return Status::kSuccess;
}

// --- evaluation ------------------------------------------------------------------------------------------------------

namespace {

using Values = std::vector<float>;

// Visits the elements in the order of the dims.
template <typename F>
void for_each_element(const DnnTensor& tensor, F&& f) {
  const auto& n = tensor.sizes;
  const auto& s = tensor.strides;
  size_t i = 0;
  for (int64_t a = 0; a < n[0]; ++a) {
    for (int64_t b = 0; b < n[1]; ++b) {
      for (int64_t c = 0; c < n[2]; ++c) {
        for (int64_t d = 0; d < n[3]; ++d) {
          const int64_t at = a * s[0] + b * s[1] + c * s[2] + d * s[3];
          f(i++, static_cast<uint64_t>(at) * dnn::item_size(tensor.type));
        }
      }
    }
  }
}

float rounded(Type type, float value) {
  if (!is_half(type)) return value;
  std::byte bits[2];
  store_element(type, value, bits);
  return load_element(type, bits);
}

// Index of an element of one tensor in another tensor, which is broadcast along dims of size 1.
size_t broadcast(const std::vector<int64_t>& sizes, const std::vector<int64_t>& other, size_t i) {
  size_t at = 0, step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    const auto size = static_cast<size_t>(sizes[d]), own = static_cast<size_t>(other[d]);
    if (own != 1) at += i % size * step;
    step *= own;
    i /= size;
  }
  return at;
}

void multiply(const DnnTensor& left, const Values& a, const DnnTensor& right, const Values& b, Values& made) {
  const auto number = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t rows = number(left.sizes[2]), inner = number(left.sizes[3]), columns = number(right.sizes[3]);
  const size_t heads = number(left.sizes[1]), shared = heads / number(right.sizes[1]);
  for (size_t line = 0; line < number(left.sizes[0]) * heads; ++line) {
    const size_t other = line / heads * number(right.sizes[1]) + line % heads / shared;
    for (size_t row = 0; row < rows; ++row) {
      for (size_t column = 0; column < columns; ++column) {
        float sum = 0;
        for (size_t k = 0; k < inner; ++k) {
          sum += a[(line * rows + row) * inner + k] * b[(other * inner + k) * columns + column];
        }
        made[(line * rows + row) * columns + column] = sum;
      }
    }
  }
}

// Reduces groups of consecutive elements of a dim to one element each.
void reduce(dnn::ReductionMode mode, const DnnTensor& from, const Values& values, const DnnTensor& to, Values& made) {
  const bool is_max = mode == dnn::ReductionMode::kMax;
  std::ranges::fill(made, is_max ? -std::numeric_limits<float>::infinity() : 0.0F);
  for (size_t i = 0; i < values.size(); ++i) {
    size_t at = 0, step = 1, rest = i;
    for (size_t d = from.sizes.size(); d-- > 0;) {
      const auto size = static_cast<size_t>(from.sizes[d]), own = static_cast<size_t>(to.sizes[d]);
      at += rest % size / (size / own) * step;
      step *= own;
      rest /= size;
    }
    made[at] = is_max ? std::max(made[at], values[i]) : made[at] + values[i];
  }
}

float pointwise(PointwiseMode mode, float left, float right, float third) {
  using enum PointwiseMode;
  switch (mode) {
    case kAdd:
      return left + right;
    case kMultiply:
      return left * right;
    case kDivide:
      return left / right;
    case kSubtract:
      return left - right;
    case kExp:
      return std::exp(left);
    case kLog:
      return std::log(left);
    case kGreaterEqual:
      return left >= right ? 1.0F : 0.0F;
    case kSelect:
      return third != 0 ? left : right;
    default:
      return left;
  }
}

}  // namespace

void compute(const DnnOperations& graph, const std::map<int64_t, std::byte*>& addresses,
             const std::map<int64_t, float>& numbers) {
  std::map<int64_t, Values> all;
  for (const auto& entry : graph.tensors) {
    const int64_t id = entry.first;
    const DnnTensor& tensor = entry.second;
    Values& values = all[id];
    values.resize(static_cast<size_t>(tensor.count()));
    if (tensor.is_host_scalar) values[0] = numbers.at(id);
    if (!graph.has_memory(tensor) || graph.computed.contains(id)) continue;
    const std::byte* const data = addresses.at(id);
    for_each_element(tensor, [&](size_t i, uint64_t at) { values[i] = load_element(tensor.type, data + at); });
  }
  for (const DnnOperation& each : graph.operations) {
    const DnnTensor& result = graph.tensors.at(each.result);
    const DnnTensor& left = graph.tensors.at(each.operands[0]);
    const Values& from = all[each.operands[0]];
    Values& made = all[each.result];
    if (each.kind == DescriptorType::kMatmulOperation) {
      multiply(left, from, graph.tensors.at(each.operands[1]), all[each.operands[1]], made);
    } else if (each.kind == DescriptorType::kReductionOperation) {
      reduce(each.reduction, left, from, result, made);
    } else if (each.kind == DescriptorType::kReshapeOperation) {  // swaps the last two dims
      const auto rows = static_cast<size_t>(left.sizes[2]), columns = static_cast<size_t>(left.sizes[3]);
      for (size_t i = 0; i < from.size(); ++i) {
        const size_t line = i / (rows * columns), row = i / columns % rows, column = i % columns;
        made[(line * columns + column) * rows + row] = from[i];
      }
    } else {
      const auto other = [&](size_t operand, size_t i) {
        if (each.operands.size() <= operand) return 0.0F;
        const int64_t id = each.operands[operand];
        return all[id][broadcast(result.sizes, graph.tensors.at(id).sizes, i)];
      };
      const auto index = [&](size_t i) {
        size_t step = 1;
        for (size_t d = result.sizes.size(); d-- > static_cast<size_t>(each.axis) + 1;)
          step *= static_cast<size_t>(result.sizes[d]);
        return static_cast<float>(i / step % static_cast<size_t>(result.sizes[static_cast<size_t>(each.axis)]));
      };
      for (size_t i = 0; i < made.size(); ++i) {
        made[i] = each.pointwise == PointwiseMode::kIndex
                      ? index(i)
                      : pointwise(each.pointwise, from[i], other(1, i), other(2, i));
      }
    }
    for (float& value : made) value = rounded(result.type, value);
    if (!graph.has_memory(result)) continue;
    for_each_element(
        result, [&](size_t i, uint64_t at) { store_element(result.type, made[i], addresses.at(each.result) + at); });
  }
}

}  // namespace torch_remote::worker::cuda::emulated
