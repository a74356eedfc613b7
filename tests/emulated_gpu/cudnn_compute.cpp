#include <array>
#include <bit>
#include <cstring>

#include "codegen/loop/half.h"
#include "tests/emulated_gpu/cudnn_state.h"

namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Type;

template <typename T>
T load(Type type, const std::byte* from) {
  if (type == Type::kFloat32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<T>(value);
  }
  if (type == Type::kFloat64) {
    double value = 0;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<T>(value);
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return static_cast<T>(type == Type::kFloat16 ? codegen::from_f16(bits) : codegen::from_bf16(bits));
}

template <typename T>
void store(Type type, T value, std::byte* to) {
  if (type == Type::kFloat32) {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof(single));
  } else if (type == Type::kFloat64) {
    const auto wide = static_cast<double>(value);
    std::memcpy(to, &wide, sizeof(wide));
  } else {
    const auto single = static_cast<float>(value);
    const uint16_t bits = type == Type::kFloat16 ? codegen::to_f16(single) : codegen::to_bf16(single);
    std::memcpy(to, &bits, sizeof(bits));
  }
}

using Sizes = std::array<int64_t, 5>;  // batch and channels, then three spatial dims, aligned to the end

Sizes five(const std::vector<int64_t>& list, int64_t fill) {
  Sizes made = {list[0], list[1], fill, fill, fill};
  for (size_t d = 2; d < list.size(); ++d) made[5 - list.size() + d] = list[d];
  return made;
}
std::array<int64_t, 3> three(const std::vector<int64_t>& list, int64_t fill) {
  std::array<int64_t, 3> made = {fill, fill, fill};
  for (size_t d = 0; d < list.size(); ++d) made[3 - list.size() + d] = list[d];
  return made;
}

// Reads a tensor's elements in the order of its dims, and writes them back.
template <typename F>
void for_each_element(const DnnTensor& tensor, F&& f) {
  const Sizes sizes = five(tensor.sizes, 1), strides = five(tensor.strides, 0);
  size_t i = 0;
  for (int64_t n = 0; n < sizes[0]; ++n) {
    for (int64_t c = 0; c < sizes[1]; ++c) {
      for (int64_t z = 0; z < sizes[2]; ++z) {
        for (int64_t y = 0; y < sizes[3]; ++y) {
          for (int64_t x = 0; x < sizes[4]; ++x) {
            const int64_t at = n * strides[0] + c * strides[1] + z * strides[2] + y * strides[3] + x * strides[4];
            f(i++, static_cast<uint64_t>(at) * dnn::item_size(tensor.type), c);
          }
        }
      }
    }
  }
}

template <typename T>
std::vector<T> gather(const DnnTensor& tensor, const std::byte* from, bool low) {
  std::vector<T> values(static_cast<size_t>(tensor.count()));
  for_each_element(tensor, [&](size_t i, uint64_t at, int64_t) {
    values[i] = load<T>(tensor.type, from + at);
    if (low) {  // TF32 has 10 fraction bits
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(values[i]));
      values[i] = static_cast<T>(std::bit_cast<float>((bits + 0x1000) & ~uint32_t{0x1FFF}));
    }
  });
  return values;
}

// Calls f(image, filter, output) for all triples of array indices that one multiply-add combines.
template <typename F>
void for_each_triple(const DnnGraph& graph, F&& f) {
  const Sizes image = five(graph.image.sizes, 1), filter = five(graph.filter.sizes, 1),
              output = five(graph.output.sizes, 1);
  const auto padding = three(graph.padding, 0), stride = three(graph.stride, 1), dilation = three(graph.dilation, 1);
  const int64_t groups = image[1] / filter[1], group_outputs = filter[0] / groups;
  const auto place = [](const Sizes& sizes, int64_t a, int64_t b, int64_t z, int64_t y) {
    return (((a * sizes[1] + b) * sizes[2] + z) * sizes[3] + y) * sizes[4];
  };
  for (int64_t n = 0; n < output[0]; ++n) {
    for (int64_t k = 0; k < output[1]; ++k) {
      for (int64_t c = 0; c < filter[1]; ++c) {
        const int64_t channel = k / group_outputs * filter[1] + c;
        for (int64_t i = 0; i < filter[2] * filter[3] * filter[4]; ++i) {
          const int64_t fz = i / (filter[3] * filter[4]), fy = i / filter[4] % filter[3], fx = i % filter[4];
          for (int64_t oz = 0; oz < output[2]; ++oz) {
            const int64_t z = oz * stride[0] - padding[0] + fz * dilation[0];
            if (z < 0 || z >= image[2]) continue;
            for (int64_t oy = 0; oy < output[3]; ++oy) {
              const int64_t y = oy * stride[1] - padding[1] + fy * dilation[1];
              if (y < 0 || y >= image[3]) continue;
              const int64_t in = place(image, n, channel, z, y), out = place(output, n, k, oz, oy);
              const int64_t weight = place(filter, k, c, fz, fy) + fx;
              for (int64_t ox = 0; ox < output[4]; ++ox) {
                const int64_t x = ox * stride[2] - padding[2] + fx * dilation[2];
                if (x >= 0 && x < image[4]) f(in + x, weight, out + ox);
              }
            }
          }
        }
      }
    }
  }
}

template <typename T>
void compute_as(const DnnGraph& graph, Engine engine, const DnnAddresses& addresses) {
  const bool low = engine == Engine::kLowPrecision;
  const DnnTensor& result = graph.result();
  std::vector<T> made(static_cast<size_t>(result.count()));
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  if (graph.pass == dnn::DescriptorType::kForward) {
    const auto image = gather<T>(graph.image, addresses.image, low),
               filter = gather<T>(graph.filter, addresses.filter, low);
    for_each_triple(graph, [&](int64_t i, int64_t f, int64_t o) { made[at(o)] += image[at(i)] * filter[at(f)]; });
  } else if (graph.pass == dnn::DescriptorType::kBackwardData) {
    const auto output = gather<T>(graph.output, addresses.output, low),
               filter = gather<T>(graph.filter, addresses.filter, low);
    for_each_triple(graph, [&](int64_t i, int64_t f, int64_t o) { made[at(i)] += output[at(o)] * filter[at(f)]; });
  } else {
    const auto output = gather<T>(graph.output, addresses.output, low),
               image = gather<T>(graph.image, addresses.image, low);
    for_each_triple(graph, [&](int64_t i, int64_t f, int64_t o) { made[at(f)] += output[at(o)] * image[at(i)]; });
  }
  for_each_element(result, [&](size_t i, uint64_t to, int64_t channel) {
    T value = made[i];
    if (graph.adds_bias) {
      const auto from = static_cast<uint64_t>(channel * graph.bias.strides[1]) * dnn::item_size(graph.bias.type);
      value += load<T>(graph.bias.type, addresses.bias + from);
    }
    store<T>(result.type, value, addresses.result + to);
  });
}

}  // namespace

void compute(const DnnGraph& graph, Engine engine, const DnnAddresses& addresses) {
  if (graph.computes_in_f64) {
    compute_as<double>(graph, engine, addresses);
  } else {
    compute_as<float>(graph, engine, addresses);
  }
}

float load_element(dnn::Type type, const std::byte* from) { return load<float>(type, from); }
void store_element(dnn::Type type, float value, std::byte* to) { store<float>(type, value, to); }

}  // namespace torch_remote::worker::cuda::emulated
