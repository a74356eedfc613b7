#include "codegen/cpu/testing/harness.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "codegen/loop/half.h"
#include "codegen/loop/scalar_math.h"

namespace torch_remote::codegen::cpu::testing {
namespace {

using ir::DType;

// Bytes that end at a page boundary; the next page is inaccessible.
class Guarded {
 public:
  explicit Guarded(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size + page - 1) / page * page + page;
    base_ = static_cast<uint8_t*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - page, page, PROT_NONE);
    data_ = base_ + mapped_ - page - size;
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }
  uint8_t* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_, mapped_;
  uint8_t *base_, *data_;
};

double random_number(std::mt19937_64& rng, bool specials) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kSpecial[] = {0.0, -0.0, kInf, -kInf, kNan, 1e-40, -1e-42, 3e38, 1.0, 65519.0};
  if (specials && rng() % 16 == 0) return kSpecial[rng() % std::size(kSpecial)];
  return static_cast<double>(static_cast<int64_t>(rng() % 200001) - 100000) / 12345.0;
}

template <typename T>
void put(Bytes& bytes, size_t element, T value) {
  std::memcpy(bytes.data() + element * sizeof(T), &value, sizeof(T));
}

void fill(Bytes& bytes, DType dtype, std::mt19937_64& rng) {
  const size_t count = bytes.size() / ir::item_size(dtype);
  const bool specials = rng() % 3 == 0;
  for (size_t i = 0; i < count; ++i) {
    const double x = random_number(rng, specials);
    switch (dtype) {
      case DType::kFloat64:
        put(bytes, i, x);
        break;
      case DType::kFloat32:
        put(bytes, i, static_cast<float>(x));
        break;
      case DType::kFloat16:
        put(bytes, i, to_f16(static_cast<float>(x)));
        break;
      case DType::kBFloat16:
        put(bytes, i, to_bf16(static_cast<float>(x)));
        break;
      case DType::kBool:
        put(bytes, i, static_cast<uint8_t>(rng() % 3));  // any byte but 0 is true
        break;
      default:
        for (size_t b = 0; b < ir::item_size(dtype); ++b)
          bytes[i * ir::item_size(dtype) + b] = static_cast<uint8_t>(rng());
        if (rng() % 4 != 0) {  // mostly small
          const auto small = static_cast<int64_t>(rng() % 21) - 10;
          std::memcpy(bytes.data() + i * ir::item_size(dtype), &small, ir::item_size(dtype));
        }
    }
  }
}

}  // namespace

Case make_case(const Kernel& kernel, const std::vector<int64_t>& sizes, const std::vector<int64_t>& bounds,
               uint64_t seed, int64_t gap) {
  Case result{.sizes = sizes, .strides = {}, .bounds = bounds, .scalars = {}, .data = {}};
  std::mt19937_64 rng(seed);
  size_t bound = 0;
  for (const Operand& operand : kernel.operands) {
    std::vector<int64_t> strides(kernel.dims() + operand.indexed);
    int64_t stride = operand.strided ? gap : 1, elements = 1;
    const auto extend = [&](size_t dim, int64_t size) {
      strides[dim] = stride;
      elements = size == 0 || elements == 0 ? 0 : elements + (size - 1) * stride;
      stride *= std::max<int64_t>(size, 1);
    };
    for (uint32_t d = kernel.dims(); d-- > 0;) {
      if ((operand.dims >> d & 1) != 0) extend(d, sizes[d]);
    }
    for (uint32_t d = operand.indexed; d-- > 0;) extend(kernel.dims() + d, bounds[bound + d]);
    bound += operand.indexed;
    result.strides.insert(result.strides.end(), strides.begin(), strides.end());
    result.data.emplace_back(static_cast<size_t>(elements) * ir::item_size(operand.dtype));
    fill(result.data.back(), operand.dtype, rng);
  }
  for (const DType scalar : kernel.scalars) {
    const double x = random_number(rng, false);
    result.scalars.push_back(scalar == DType::kFloat64 ? std::bit_cast<uint64_t>(x)
                                                       : rng() % (scalar == DType::kBool ? 2 : 100));
  }
  return result;
}

std::vector<std::string_view> targets() {
#if defined(__x86_64__)
  std::vector<std::string_view> result;
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide) result.push_back("x86-64-v4");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) result.push_back("x86-64-v3");
  return result;
#else
  return {best_target()};
#endif
}

Status compile_and_place(const Kernel& kernel, const CompileOptions& options, Compiled* compiled) {
  compiled->kernel = kernel;
  expand_functions(compiled->kernel);
  compiled->schedule = schedule(compiled->kernel);
  if (Status status = compile(kernel, options, &compiled->code); !status) return status;
  return ExecutableCode::load(compiled->code.bytes, &compiled->placed);
}

namespace {

Arguments view_of(const Case& arguments, const std::vector<void*>& data) {
  return {.sizes = arguments.sizes,
          .data = data,
          .strides = arguments.strides,
          .bounds = arguments.bounds,
          .scalars = arguments.scalars};
}

}  // namespace

Status run_interpreter(const Kernel& kernel, Case* arguments, IndexFailure* failure) {
  std::vector<void*> data;
  data.reserve(arguments->data.size());
  for (Bytes& bytes : arguments->data) data.push_back(bytes.data());
  return interpret(kernel, view_of(*arguments, data), {}, failure);
}

namespace {

// The initial value of a reduction.
Bytes neutral(const Value& value) {
  Bytes bytes(ir::item_size(value.type));
  store_element(value.type, identity(value.reduction, value.type), bytes.data());
  return bytes;
}

int64_t columns_of(const Kernel& kernel, const Arguments& arguments, DimSet dims) {
  int64_t count = 1;
  for (uint32_t d = kernel.rows; d < kernel.dims(); ++d) {
    if ((dims >> d & 1) != 0) count *= arguments.sizes[d];
  }
  return count;
}

using Buffers = std::vector<std::unique_ptr<Guarded>>;

std::vector<void*> pointers(const Buffers& buffers) {
  std::vector<void*> result;
  for (const auto& buffer : buffers) result.push_back(buffer->data());
  return result;
}

}  // namespace

void run_compiled(const Compiled& compiled, const Arguments& arguments, IndexRecord* failure, int64_t piece) {
  const Kernel& kernel = compiled.kernel;
  const Schedule& schedule = compiled.schedule;
  const int64_t rows = kernel.rows == 0 ? 1 : arguments.sizes[0];
  const int64_t chunk = Order().chunk, chunks = (rows + chunk - 1) / chunk;
  Buffers kept, totals;
  for (const uint32_t value : schedule.spilled) {
    const int64_t elements = columns_of(kernel, arguments, kernel.column_dims());
    kept.push_back(std::make_unique<Guarded>(static_cast<size_t>(elements) * ir::item_size(kernel.values[value].type)));
  }
  std::vector<int64_t> lines;
  for (const uint32_t total : schedule.totals) {
    const Bytes one = neutral(kernel.values[total]);
    const int64_t elements = columns_of(kernel, arguments, schedule.values[total].dims);
    lines.push_back(elements * static_cast<int64_t>(one.size()));
    totals.push_back(std::make_unique<Guarded>(static_cast<size_t>(lines.back() * chunks)));
    for (int64_t i = 0; i < elements * chunks; ++i) {
      std::copy(one.begin(), one.end(), totals.back()->data() + i * static_cast<int64_t>(one.size()));
    }
  }
  const std::vector<void*> kept_pointers = pointers(kept);
  Call call{.data = arguments.data.data(),
            .sizes = arguments.sizes.data() + kernel.rows,
            .strides = arguments.strides.data(),
            .bounds = arguments.bounds.data(),
            .scalars = arguments.scalars.data(),
            .row_buffers = kept_pointers.data(),
            .totals = nullptr,
            .chunk_strides = lines.data(),
            .failure = failure};
  const auto run = compiled.placed.function<RowsFunction>(compiled.code.rows);
  for (int64_t c = 0; c < chunks; ++c) {
    std::vector<void*> of_chunk = pointers(totals);
    for (size_t t = 0; t < of_chunk.size(); ++t) of_chunk[t] = static_cast<uint8_t*>(of_chunk[t]) + c * lines[t];
    call.totals = of_chunk.data();
    const int64_t end = std::min(rows, (c + 1) * chunk);
    for (int64_t row = c * chunk; row < end; row += piece) run(&call, row, std::min(row + piece, end));
  }
  if (compiled.code.finish == compiled.code.rows) return;
  const std::vector<void*> first = pointers(totals);
  call.totals = first.data();
  compiled.placed.function<FinishFunction>(compiled.code.finish)(&call, chunks);
}

void run_compiled(const Compiled& compiled, Case* arguments, IndexRecord* failure) {
  Buffers buffers;
  for (const Bytes& bytes : arguments->data) {
    buffers.push_back(std::make_unique<Guarded>(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), buffers.back()->data());
  }
  const std::vector<void*> data = pointers(buffers);
  run_compiled(compiled, view_of(*arguments, data), failure);
  for (size_t i = 0; i < buffers.size(); ++i) {
    arguments->data[i].assign(buffers[i]->data(), buffers[i]->data() + buffers[i]->size());
  }
}

namespace {

bool is_nan(DType dtype, const uint8_t* at) {
  const auto read = [&](auto like) {
    std::memcpy(&like, at, sizeof(like));
    return like;
  };
  switch (dtype) {
    case DType::kFloat64:
      return std::isnan(read(double{}));
    case DType::kFloat32:
      return std::isnan(read(float{}));
    case DType::kFloat16:
      return std::isnan(from_f16(read(uint16_t{})));
    case DType::kBFloat16:
      return std::isnan(from_bf16(read(uint16_t{})));
    default:
      return false;
  }
}

std::string hex(const uint8_t* at, size_t size) {
  std::string text = "0x";
  for (size_t i = size; i-- > 0;) {
    text += "0123456789abcdef"[at[i] >> 4];
    text += "0123456789abcdef"[at[i] & 15];
  }
  return text;
}

}  // namespace

std::string difference(const Kernel& kernel, const Case& expected, const Case& got) {
  for (size_t o = 0; o < kernel.operands.size(); ++o) {
    const DType dtype = kernel.operands[o].dtype;
    const size_t size = ir::item_size(dtype);
    for (size_t at = 0; at < expected.data[o].size(); at += size) {
      const uint8_t *x = expected.data[o].data() + at, *y = got.data[o].data() + at;
      if (std::memcmp(x, y, size) == 0 || (is_nan(dtype, x) && is_nan(dtype, y))) continue;
      return "a" + std::to_string(o) + " (" + std::string(ir::name(dtype)) + ") element " + std::to_string(at / size) +
             ": " + hex(x, size) + " by the interpreter, " + hex(y, size) + " by the code";
    }
  }
  return {};
}

}  // namespace torch_remote::codegen::cpu::testing
