#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <optional>
#include <type_traits>

#include "codegen/loop/half.h"
#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/objects.h"

namespace torch_remote::worker::cuda::lt {

struct HandleState {};

struct DescState {
  Compute compute = Compute::kFloat32;
  Type scale = Type::kFloat32;
  Operation op_a = Operation::kNone, op_b = Operation::kNone;
  uint32_t epilogue = kDefault;
  DevicePointer bias = 0, a_scale = 0, b_scale = 0;
  int8_t fast = 0;
  int32_t bias_type = -1;
};

struct LayoutState {
  Type type = Type::kFloat32;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;
  int32_t batch = 1;
  int64_t batch_stride = 0;

  // The number of elements from the first one to past the last one.
  uint64_t extent() const {
    return (columns - 1) * static_cast<uint64_t>(ld) + rows +
           static_cast<uint64_t>(batch - 1) * static_cast<uint64_t>(batch_stride);
  }
  uint32_t item() const { return item_size(type); }
};

struct PreferenceState {
  uint64_t workspace = 0;
  uint32_t reductions = 7;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};
};

}  // namespace torch_remote::worker::cuda::lt

namespace torch_remote::worker::cuda::emulated {
namespace {

using lt::Type;
using Status = lt::Result;

// --- objects ---------------------------------------------------------------------------------------------------------

template <typename State>
Status make(State** object, State state = {}) {
  *object = create(std::move(state));
  return Status::kSuccess;
}
template <typename State>
Status remove(State* object) {
  return destroy(object) ? Status::kSuccess : Status::kInvalidValue;
}

template <typename T>
Status set(T* field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return Status::kInvalidValue;
  std::memcpy(field, value, bytes);
  return Status::kSuccess;
}

// Begins a call of the driver: a context must be current, and its GPU must have no error.
std::optional<Call> enter(const char* name) {
  std::optional<Call> call(std::in_place, name);
  if (!call->ready()) call.reset();
  return call;
}

Status handle_create(lt::Handle* handle) {
  const auto call = enter("cublasLtCreate");
  return call ? make(handle) : Status::kNotInitialized;
}

Status desc_create(lt::Desc* desc, lt::Compute compute, Type scale) {
  return make(desc, lt::DescState{.compute = compute, .scale = scale});
}

Status desc_set(lt::Desc desc, lt::DescAttribute attribute, const void* value, size_t bytes) {
  if (!exists(desc)) return Status::kInvalidValue;
  switch (attribute) {
    case lt::DescAttribute::kTransposeA:
      return set(&desc->op_a, value, bytes);
    case lt::DescAttribute::kTransposeB:
      return set(&desc->op_b, value, bytes);
    case lt::DescAttribute::kEpilogue:
      return set(&desc->epilogue, value, bytes);
    case lt::DescAttribute::kBiasPointer:
      return set(&desc->bias, value, bytes);
    case lt::DescAttribute::kAScalePointer:
      return set(&desc->a_scale, value, bytes);
    case lt::DescAttribute::kBScalePointer:
      return set(&desc->b_scale, value, bytes);
    case lt::DescAttribute::kFastAccumulation:
      return set(&desc->fast, value, bytes);
    case lt::DescAttribute::kBiasType:
      return set(&desc->bias_type, value, bytes);
  }
  return Status::kInvalidValue;
}

Status layout_create(lt::Layout* layout, Type type, uint64_t rows, uint64_t columns, int64_t ld) {
  return make(layout, lt::LayoutState{.type = type, .rows = rows, .columns = columns, .ld = ld});
}

Status layout_set(lt::Layout layout, lt::LayoutAttribute attribute, const void* value, size_t bytes) {
  if (!exists(layout)) return Status::kInvalidValue;
  if (attribute == lt::LayoutAttribute::kBatchCount) return set(&layout->batch, value, bytes);
  if (attribute == lt::LayoutAttribute::kBatchStride) return set(&layout->batch_stride, value, bytes);
  return Status::kInvalidValue;
}

Status preference_create(lt::Preference* preference) { return make(preference); }

Status preference_set(lt::Preference preference, lt::PreferenceAttribute attribute, const void* value, size_t bytes) {
  if (!exists(preference)) return Status::kInvalidValue;
  if (attribute == lt::PreferenceAttribute::kWorkspaceBytes) return set(&preference->workspace, value, bytes);
  if (attribute == lt::PreferenceAttribute::kReductionSchemes) return set(&preference->reductions, value, bytes);
  const int which = static_cast<int>(attribute) - static_cast<int>(lt::PreferenceAttribute::kAlignmentA);
  if (which < 0 || which > 3) return Status::kInvalidValue;
  return set(&preference->alignments[static_cast<size_t>(which)], value, bytes);
}

// --- checks of a matmul ----------------------------------------------------------------------------------------------

struct Matmul {
  const lt::DescState* desc = nullptr;
  const lt::LayoutState *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
  uint64_t m = 0, n = 0, k = 0;
};

bool is_float8(Type type) { return type == Type::kFloat8E4M3 || type == Type::kFloat8E5M2; }
bool is_half(Type type) { return type == Type::kFloat16 || type == Type::kBFloat16; }
bool is_complex(Type type) { return type == Type::kComplex64 || type == Type::kComplex128; }

// Follows the table of cublasLtMatmul in cuBLAS's documentation. Rows that we never use are left out.
bool has_types(const Matmul& p) {
  const Type a = p.a->type, b = p.b->type, d = p.d->type;
  if (p.c->type != d) return false;
  switch (p.desc->compute) {
    case lt::Compute::kInt32:
      return a == Type::kInt8 && b == a && d == Type::kInt32 && p.desc->scale == Type::kInt32;
    case lt::Compute::kFloat64:
      return (a == Type::kFloat64 || a == Type::kComplex128) && b == a && d == a && p.desc->scale == a;
    case lt::Compute::kFloat32:
      if (a == Type::kComplex64) return b == a && d == a && p.desc->scale == a;
      if (p.desc->scale != Type::kFloat32) return false;
      if (is_float8(a)) {
        const bool both_wide = a == Type::kFloat8E5M2 && b == a;
        return is_float8(b) && !both_wide && (is_half(d) || d == Type::kFloat32);
      }
      return b == a && ((is_half(a) && (d == a || d == Type::kFloat32)) || (a == Type::kFloat32 && d == a));
    case lt::Compute::kTf32:
      return (a == Type::kFloat32 || a == Type::kComplex64) && b == a && d == a && p.desc->scale == a;
  }
  return false;
}

bool has_epilogue(const Matmul& p) {
  const uint32_t epilogue = p.desc->epilogue;
  if (epilogue == lt::kDefault) return true;
  const bool known = epilogue == lt::kRelu || epilogue == lt::kBias || epilogue == lt::kGelu ||
                     epilogue == (lt::kRelu | lt::kBias) || epilogue == (lt::kGelu | lt::kBias);
  if (!known || is_complex(p.d->type) || p.d->type == Type::kInt32) return false;
  if (p.d->type == Type::kFloat64 && epilogue != lt::kBias) return false;
  if ((epilogue & lt::kBias) == 0) return true;
  const Type bias = p.desc->bias_type < 0 ? p.d->type : static_cast<Type>(p.desc->bias_type);
  if (p.desc->bias == 0) return false;
  return is_float8(p.a->type) && p.d->type == Type::kFloat32 ? bias == Type::kBFloat16 : bias == p.d->type;
}

// Whether columns do not overlap, nor the matrices of a batch if they are written.
bool is_valid_layout(const lt::LayoutState& layout, bool written, int32_t batch) {
  if (layout.rows == 0 || layout.columns == 0 || layout.ld < 0 || layout.batch != batch || batch < 1) return false;
  if (static_cast<uint64_t>(layout.ld) < layout.rows || layout.batch_stride < 0) return false;
  const uint64_t one = (layout.columns - 1) * static_cast<uint64_t>(layout.ld) + layout.rows;
  return !written || batch == 1 || static_cast<uint64_t>(layout.batch_stride) >= one;
}

Status describe(lt::Handle handle, lt::Desc desc, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d, Matmul* p) {
  if (!exists(handle)) return Status::kNotInitialized;
  if (!exists(desc) || !exists(a) || !exists(b) || !exists(c) || !exists(d)) return Status::kInvalidValue;
  *p = {desc, a, b, c, d};
  const auto rows = [](const lt::LayoutState& x, lt::Operation op) {
    return op == lt::Operation::kNone ? x.rows : x.columns;
  };
  const auto columns = [](const lt::LayoutState& x, lt::Operation op) {
    return op == lt::Operation::kNone ? x.columns : x.rows;
  };
  p->m = rows(*a, desc->op_a);
  p->k = columns(*a, desc->op_a);
  p->n = columns(*b, desc->op_b);
  const bool fits =
      rows(*b, desc->op_b) == p->k && d->rows == p->m && d->columns == p->n && c->rows == p->m && c->columns == p->n;
  if (!fits) return Status::kInvalidValue;
  if (!is_valid_layout(*a, false, d->batch) || !is_valid_layout(*b, false, d->batch) ||
      !is_valid_layout(*c, true, d->batch) || !is_valid_layout(*d, true, d->batch)) {
    return Status::kInvalidValue;
  }
  if (!has_types(*p) || !has_epilogue(*p)) return Status::kNotSupported;
  const bool tensor_cores = a->type == Type::kInt8 || is_float8(a->type);
  if (!is_float8(a->type) && (desc->a_scale != 0 || desc->b_scale != 0 || desc->fast != 0))
    return Status::kInvalidValue;
  if (!tensor_cores) return Status::kSuccess;
  // These types require "TN" and dims in multiples that tensor cores support.
  if (desc->op_a != lt::Operation::kTranspose || desc->op_b != lt::Operation::kNone) return Status::kNotSupported;
  const uint64_t multiple = a->type == Type::kInt8 ? 4 : 16;
  if (p->m % multiple != 0 || p->k % multiple != 0) return Status::kNotSupported;
  for (const lt::LayoutState* x : {a, b, c, d}) {
    if (static_cast<uint64_t>(x->ld) * x->item() % multiple != 0) return Status::kNotSupported;
  }
  return Status::kSuccess;
}

// The contents of an algorithm: magic number, algorithm id, workspace.
constexpr uint64_t kMagic = 0x314C45435554;
constexpr size_t kSplitKWorkspace = 64 << 10;

bool supports(const Matmul& p, MatmulAlgorithm id) {
  if (id == MatmulAlgorithm::kSplitK) return p.k >= 32 && !is_complex(p.d->type) && p.d->type != Type::kInt32;
  if (id == MatmulAlgorithm::kBasic) return true;
  for (const lt::LayoutState* x : {p.a, p.b, p.c, p.d}) {
    if (static_cast<uint64_t>(x->ld) * x->item() % 16 != 0) return false;
    if (x->batch > 1 && static_cast<uint64_t>(x->batch_stride) * x->item() % 16 != 0) return false;
  }
  return true;
}

size_t workspace_of(MatmulAlgorithm id) { return id == MatmulAlgorithm::kSplitK ? kSplitKWorkspace : 0; }

lt::HeuristicResult candidate_of(MatmulAlgorithm id) {
  lt::HeuristicResult candidate;
  candidate.algorithm.data[0] = kMagic;
  candidate.algorithm.data[1] = static_cast<uint64_t>(id);
  candidate.workspace = workspace_of(id);
  candidate.waves = 1;
  return candidate;
}

Status find_algorithms(lt::Handle handle, lt::Desc desc, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d,
                       lt::Preference preference, int asked, lt::HeuristicResult* candidates, int* count) {
  if (!enter("cublasLtMatmulAlgoGetHeuristic")) return Status::kNotInitialized;
  Matmul p;
  *count = 0;
  if (asked <= 0 || !exists(preference)) return Status::kInvalidValue;
  if (const Status status = describe(handle, desc, a, b, c, d, &p); status != Status::kSuccess) return status;
  for (const MatmulAlgorithm id : {MatmulAlgorithm::kVectors, MatmulAlgorithm::kSplitK, MatmulAlgorithm::kBasic}) {
    const bool aligned = std::ranges::all_of(preference->alignments, [](uint32_t bytes) { return bytes % 16 == 0; });
    if (!supports(p, id) || (id == MatmulAlgorithm::kVectors && !aligned)) continue;
    if (workspace_of(id) > preference->workspace) continue;
    if (id == MatmulAlgorithm::kSplitK && (preference->reductions & lt::kReductionComputeType) == 0) continue;
    if (*count < asked) candidates[(*count)++] = candidate_of(id);
  }
  return *count != 0 ? Status::kSuccess : Status::kNotSupported;
}

std::optional<MatmulAlgorithm> id_of(const lt::Algorithm* algorithm) {
  if (algorithm == nullptr || algorithm->data[0] != kMagic || algorithm->data[1] > 2) return std::nullopt;
  return static_cast<MatmulAlgorithm>(algorithm->data[1]);
}

Status check_algorithm(lt::Handle handle, lt::Desc desc, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d,
                       const lt::Algorithm* algorithm, lt::HeuristicResult* candidate) {
  if (!enter("cublasLtMatmulAlgoCheck")) return Status::kNotInitialized;
  Matmul p;
  if (const Status status = describe(handle, desc, a, b, c, d, &p); status != Status::kSuccess) return status;
  const std::optional<MatmulAlgorithm> id = id_of(algorithm);
  if (!id) return Status::kInvalidValue;
  if (!supports(p, *id)) return Status::kNotSupported;
  const lt::Algorithm same = *algorithm;
  *candidate = candidate_of(*id);
  candidate->algorithm = same;
  return Status::kSuccess;
}

// --- numbers ---------------------------------------------------------------------------------------------------------

float from_float8(uint8_t bits, int exponent_bits) {
  const int fraction_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1), fraction = bits & ((1 << fraction_bits) - 1);
  const float sign = (bits & 0x80) != 0 ? -1.f : 1.f;
  const bool last = exponent == (1 << exponent_bits) - 1;
  if (exponent_bits == 5 && last) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent_bits == 4 && last && fraction == 7) return NAN;
  const float mantissa = std::ldexp(static_cast<float>(fraction), -fraction_bits) + (exponent != 0 ? 1.f : 0.f);
  return sign * std::ldexp(mantissa, (exponent != 0 ? exponent : 1) - bias);
}

template <typename T, typename From>
T load_as(const std::byte* from) {
  From value;
  std::memcpy(&value, from, sizeof(value));
  if constexpr (std::is_convertible_v<From, T>) {
    return static_cast<T>(value);
  } else {
    return T{};
  }
}

template <typename T>
T load(Type type, const std::byte* from) {
  switch (type) {
    case Type::kFloat32:
      return load_as<T, float>(from);
    case Type::kFloat64:
      return load_as<T, double>(from);
    case Type::kInt8:
      return load_as<T, int8_t>(from);
    case Type::kInt32:
      return load_as<T, int32_t>(from);
    case Type::kComplex64:
      return load_as<T, std::complex<float>>(from);
    case Type::kComplex128:
      return load_as<T, std::complex<double>>(from);
    default:
      break;
  }
  float value = 0;
  if (is_half(type)) {
    const auto bits = load_as<uint16_t, uint16_t>(from);
    value = type == Type::kFloat16 ? codegen::from_f16(bits) : codegen::from_bf16(bits);
  } else {
    value = from_float8(static_cast<uint8_t>(*from), type == Type::kFloat8E4M3 ? 4 : 5);
  }
  return static_cast<T>(value);
}

template <typename T>
void store(Type type, T value, std::byte* to) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_half(type)) {
      const uint16_t bits = type == Type::kFloat16 ? codegen::to_f16(value) : codegen::to_bf16(value);
      std::memcpy(to, &bits, sizeof(bits));
      return;
    }
  }
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T activate(uint32_t epilogue, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if ((epilogue & lt::kRelu) != 0) return value < 0 ? T{0} : value;
    if ((epilogue & lt::kGelu) != 0) {
      const T inner = static_cast<T>(0.7978845608028654) * (value + static_cast<T>(0.044715) * value * value * value);
      return static_cast<T>(0.5) * value * (1 + std::tanh(inner));
    }
  }
  return value;
}

// --- a matmul --------------------------------------------------------------------------------------------------------

// Everything that the stream needs to execute the matmul. Pointers are host addresses.
struct Work {
  lt::DescState desc;
  lt::LayoutState a, b, c, d;
  uint64_t m = 0, n = 0, k = 0;
  const std::byte *a_data = nullptr, *b_data = nullptr, *c_data = nullptr, *bias = nullptr, *a_scale = nullptr,
                  *b_scale = nullptr;
  std::byte *d_data = nullptr, *workspace = nullptr;
  std::array<std::byte, 16> alpha{}, beta{};
  MatmulAlgorithm id = MatmulAlgorithm::kBasic;
};

// TF32 has 10 fraction bits.
template <typename T>
T to_tf32(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000) & ~uint32_t{0x1FFF});
  } else if constexpr (std::is_same_v<T, std::complex<float>>) {
    return {to_tf32(value.real()), to_tf32(value.imag())};
  } else {
    return value;
  }
}

template <typename T>
std::vector<T> gather(const lt::LayoutState& x, lt::Operation op, const std::byte* data, uint64_t rows,
                      uint64_t columns, bool tf32) {
  std::vector<T> values(rows * columns);
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < columns; ++j) {
      const uint64_t row = op == lt::Operation::kNone ? i : j, column = op == lt::Operation::kNone ? j : i;
      T value = load<T>(x.type, data + (row + column * static_cast<uint64_t>(x.ld)) * x.item());
      if constexpr (!std::is_arithmetic_v<T>) {
        if (op == lt::Operation::kConjugate) value = std::conj(value);
      }
      values[i * columns + j] = tf32 ? to_tf32(value) : value;
    }
  }
  return values;
}

template <typename T>
void compute_one(const Work& w, uint64_t place) {
  const auto at = [&](const lt::LayoutState& x, const std::byte* data) {
    return data + place * static_cast<uint64_t>(x.batch_stride) * x.item();
  };
  const bool tf32 = w.desc.compute == lt::Compute::kTf32;
  const std::vector<T> a = gather<T>(w.a, w.desc.op_a, at(w.a, w.a_data), w.m, w.k, tf32);
  const std::vector<T> b = gather<T>(w.b, w.desc.op_b, at(w.b, w.b_data), w.k, w.n, tf32);
  const T alpha = load_as<T, T>(w.alpha.data()), beta = load_as<T, T>(w.beta.data());
  T scale{1};
  if (w.a_scale != nullptr) scale *= load<T>(Type::kFloat32, w.a_scale);
  if (w.b_scale != nullptr) scale *= load<T>(Type::kFloat32, w.b_scale);
  const Type bias_type = w.desc.bias_type < 0 ? w.d.type : static_cast<Type>(w.desc.bias_type);
  const uint64_t half = w.id == MatmulAlgorithm::kSplitK ? w.k / 2 : w.k;
  std::vector<T> sums(w.n), more(w.n);
  for (uint64_t i = 0; i < w.m; ++i) {
    std::ranges::fill(sums, T{});
    std::ranges::fill(more, T{});
    for (uint64_t l = 0; l < w.k; ++l) {
      std::vector<T>& to = l < half ? sums : more;
      for (uint64_t j = 0; j < w.n; ++j) to[j] += a[i * w.k + l] * b[l * w.n + j];
    }
    for (uint64_t j = 0; j < w.n; ++j) {
      T value = alpha * scale * (sums[j] + more[j]);
      const uint64_t c = (i + j * static_cast<uint64_t>(w.c.ld)) * w.c.item();
      if (beta != T{}) value += beta * load<T>(w.c.type, at(w.c, w.c_data) + c);
      if (w.bias != nullptr) value += load<T>(bias_type, w.bias + i * lt::item_size(bias_type));
      const uint64_t d = (i + j * static_cast<uint64_t>(w.d.ld)) * w.d.item();
      store<T>(w.d.type, activate(w.desc.epilogue, value), const_cast<std::byte*>(at(w.d, w.d_data)) + d);
    }
  }
}

std::array<std::atomic<int64_t>, 3>& delays() {
  static std::array<std::atomic<int64_t>, 3> delays;
  return delays;
}

// Whether all elements were written. The memory must be tracked.
bool is_written(const emulator::DeviceMemory& memory, const lt::LayoutState& x, const std::byte* data) {
  for (uint64_t place = 0; place < static_cast<uint64_t>(x.batch); ++place) {
    for (uint64_t column = 0; column < x.columns; ++column) {
      for (uint64_t row = 0; row < x.rows; ++row) {
        const uint64_t element =
            place * static_cast<uint64_t>(x.batch_stride) + column * static_cast<uint64_t>(x.ld) + row;
        if (memory.cells(data + element * x.item())->writer == emulator::kUninitialized) return false;
      }
    }
  }
  return true;
}

Result compute(Machine& machine, Gpu& gpu, const Work& w) {
  emulator::DeviceMemory& memory = gpu.device->memory();
  const bool reads_c = std::ranges::any_of(w.beta, [](std::byte byte) { return byte != std::byte{0}; });
  if (machine.options.checked) {
    memory.assume_written();
    const bool good = is_written(memory, w.a, w.a_data) && is_written(memory, w.b, w.b_data) &&
                      (!reads_c || is_written(memory, w.c, w.c_data));
    if (!good) {
      const std::lock_guard lock(machine.mutex);
      machine.findings.push_back("cublasLtMatmul reads uninitialised memory");
      return Result::kLaunchFailed;
    }
  }
  for (uint64_t place = 0; place < static_cast<uint64_t>(w.d.batch); ++place) {
    if (w.desc.compute == lt::Compute::kInt32) {
      compute_one<int32_t>(w, place);
    } else if (w.desc.scale == Type::kFloat64) {
      compute_one<double>(w, place);
    } else if (w.desc.scale == Type::kComplex64) {
      compute_one<std::complex<float>>(w, place);
    } else if (w.desc.scale == Type::kComplex128) {
      compute_one<std::complex<double>>(w, place);
    } else {
      compute_one<float>(w, place);
    }
    for (uint64_t j = 0; machine.options.checked && j < w.n; ++j) {
      const uint64_t column = place * static_cast<uint64_t>(w.d.batch_stride) + j * static_cast<uint64_t>(w.d.ld);
      (void)memory.written(w.d_data + column * w.d.item(), w.m * w.d.item());
    }
  }
  if (w.workspace != nullptr) std::memset(w.workspace, 0xFF, workspace_of(w.id));
  const std::chrono::microseconds delay(delays()[static_cast<size_t>(w.id)].load());
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  return Result::kSuccess;
}

Status matmul(lt::Handle handle, lt::Desc desc, const void* alpha, DevicePointer a, lt::Layout a_layout,
              DevicePointer b, lt::Layout b_layout, const void* beta, DevicePointer c, lt::Layout c_layout,
              DevicePointer d, lt::Layout d_layout, const lt::Algorithm* algorithm, DevicePointer workspace,
              size_t workspace_bytes, Stream stream_handle) {
  std::optional<Call> call = enter("cublasLtMatmul");
  if (!call) return Status::kExecutionFailed;
  Matmul p;
  const Status status = describe(handle, desc, a_layout, b_layout, c_layout, d_layout, &p);
  if (status != Status::kSuccess) return status;
  const std::optional<MatmulAlgorithm> id = id_of(algorithm);
  if (!id || alpha == nullptr || beta == nullptr) return Status::kInvalidValue;
  if (!supports(p, *id)) return Status::kNotSupported;
  StreamState* const stream = call->stream(stream_handle);
  if (stream == nullptr) return Status::kInvalidValue;

  Work w{.desc = *desc, .a = *a_layout, .b = *b_layout, .c = *c_layout, .d = *d_layout};
  w.m = p.m;
  w.n = p.n;
  w.k = p.k;
  w.id = *id;
  const size_t scalar_bytes = lt::item_size(desc->scale);
  std::memcpy(w.alpha.data(), alpha, scalar_bytes);
  std::memcpy(w.beta.data(), beta, scalar_bytes);
  const bool tensor_cores = a_layout->type == Type::kInt8 || is_float8(a_layout->type);
  bool good = true;
  const auto find = [&](DevicePointer address, uint64_t bytes, uint64_t alignment) {
    void* const found = good ? call->memory(address, bytes) : nullptr;
    good = found != nullptr && address % alignment == 0;
    return static_cast<std::byte*>(found);
  };
  const auto matrix = [&](DevicePointer address, const lt::LayoutState& x) {
    const uint64_t wants = *id == MatmulAlgorithm::kVectors || is_float8(p.a->type) ? 16 : tensor_cores ? 4 : 1;
    return find(address, x.extent() * x.item(), std::max<uint64_t>(wants, x.item()));
  };
  w.a_data = matrix(a, *a_layout);
  w.b_data = matrix(b, *b_layout);
  w.c_data = matrix(c, *c_layout);
  w.d_data = matrix(d, *d_layout);
  if ((desc->epilogue & lt::kBias) != 0) {
    const uint32_t item = lt::item_size(desc->bias_type < 0 ? d_layout->type : static_cast<Type>(desc->bias_type));
    w.bias = find(desc->bias, p.m * item, item);
  }
  if (desc->a_scale != 0) w.a_scale = find(desc->a_scale, 4, 4);
  if (desc->b_scale != 0) w.b_scale = find(desc->b_scale, 4, 4);
  if (workspace_of(*id) != 0) {
    if (workspace_bytes < workspace_of(*id)) return Status::kInvalidValue;
    w.workspace = find(workspace, workspace_of(*id), lt::kWorkspaceAlignment);
  }
  if (!good) return Status::kInvalidValue;
  // The result may not overlap an input, except that d may be c.
  const auto overlaps = [&](DevicePointer x, const lt::LayoutState& layout) {
    return x < d + d_layout->extent() * d_layout->item() && d < x + layout.extent() * layout.item();
  };
  const bool is_c = c == d && c_layout->ld == d_layout->ld && c_layout->batch_stride == d_layout->batch_stride;
  if (overlaps(a, *a_layout) || overlaps(b, *b_layout) || (!is_c && overlaps(c, *c_layout))) {
    call->machine->findings.push_back("cublasLtMatmul: what it writes overlaps what it reads");
    return Status::kInvalidValue;
  }
  const Result result = call->submit(
      *stream,
      {NodeType::kKernel,
       [machine = call->machine, gpu = call->gpu, w = std::move(w)] { return compute(*machine, *gpu, w); }, nullptr});
  return result == Result::kSuccess ? Status::kSuccess : Status::kExecutionFailed;
}

size_t get_version() { return 130101; }

}  // namespace

lt::Table cublaslt() {
  lt::Table table;
  table.get_version = get_version;
  table.create = handle_create;
  table.destroy = [](lt::Handle handle) { return remove(handle); };
  table.desc_create = desc_create;
  table.desc_destroy = [](lt::Desc desc) { return remove(desc); };
  table.desc_set_attribute = desc_set;
  table.layout_create = layout_create;
  table.layout_destroy = [](lt::Layout layout) { return remove(layout); };
  table.layout_set_attribute = layout_set;
  table.preference_create = preference_create;
  table.preference_destroy = [](lt::Preference preference) { return remove(preference); };
  table.preference_set_attribute = preference_set;
  table.find_algorithms = find_algorithms;
  table.check_algorithm = check_algorithm;
  table.matmul = matmul;
  return table;
}

void slow_down(MatmulAlgorithm id, std::chrono::microseconds delay) {
  delays()[static_cast<size_t>(id)] = delay.count();
}

std::string cublaslt_leaks() {
  std::string text;
  const auto tell = [&](size_t count, const char* what) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  tell(count_objects<lt::HandleState>(), "handle");
  tell(count_objects<lt::DescState>(), "description");
  tell(count_objects<lt::LayoutState>(), "layout");
  tell(count_objects<lt::PreferenceState>(), "preference");
  return text;
}

}  // namespace torch_remote::worker::cuda::emulated
