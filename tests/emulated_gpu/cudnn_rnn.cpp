#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "ir/rnn.h"
#include "tests/emulated_gpu/cudnn_state.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/objects.h"

// Recurrent layers: one layer, in one or both directions, computed step by step in float64. The reserve space has
// everything that gradients need from the forward pass. Its first element marks the last completed pass, because weight
// gradients require data gradients first.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::RnnDataDescriptor;
using dnn::RnnDescriptor;
using dnn::RnnDescriptorState;
using dnn::TensorDescriptor;
using dnn::Type;
using ir::RnnMode;
using Status = dnn::Result;

constexpr size_t kGap = 256;         // bytes between weights
constexpr size_t kWorkspace = 4096;  // bytes for training; inference needs half of it

int64_t gates_of(const RnnDescriptorState& rnn) { return ir::rnn_gates(static_cast<RnnMode>(rnn.mode)); }
size_t index(int64_t i) { return static_cast<size_t>(i); }

// --- descriptors -----------------------------------------------------------------------------------------------------

template <typename State>
Status make(State** object) {
  *object = create(State{});
  return Status::kSuccess;
}
template <typename State>
Status remove(State* object) {
  return destroy(object) ? Status::kSuccess : Status::kBadParam;
}

Status set_tensor(TensorDescriptor descriptor, Type type, int dims, const int* sizes, const int* strides) {
  if (!exists(descriptor) || dims < 3 || dims > 8) return Status::kBadParam;
  *descriptor = {type, {sizes, sizes + dims}, {strides, strides + dims}};
  return Status::kSuccess;
}

bool is_known(Type type) { return type == Type::kFloat32 || type == Type::kFloat16 || type == Type::kBFloat16; }

Status set_rnn(RnnDescriptor rnn, dnn::RnnAlgorithm algorithm, int mode, dnn::RnnBias bias, dnn::RnnDirection direction,
               dnn::RnnInput input, Type type, Type precision, dnn::MathType math, int32_t inputs, int32_t units,
               int32_t projected, int32_t layers, void* dropout, uint32_t flags) {
  if (!exists(rnn) || mode < 0 || mode > 3 || inputs < 1 || units < 1 || layers < 1) return Status::kBadParam;
  if (algorithm != dnn::RnnAlgorithm::kStandard || input != dnn::RnnInput::kLinear || projected != units ||
      layers != 1 || dropout != nullptr || flags != dnn::kRnnPaddedIo || !is_known(type) || precision != Type::kFloat32)
    return Status::kNotSupported;
  // Tensor cores would compute float32 as TF32.
  if ((math == dnn::MathType::kExact) != (type == Type::kFloat32)) return Status::kNotSupported;
  *rnn = {mode, inputs, units, direction == dnn::RnnDirection::kBoth ? 2 : 1, bias == dnn::RnnBias::kDouble, type};
  return Status::kSuccess;
}

Status set_data(RnnDataDescriptor data, Type type, dnn::RnnLayout layout, int steps, int batch, int elements,
                const int* lengths, void* padding) {
  if (!exists(data) || steps < 1 || batch < 1 || elements < 1 || padding != nullptr) return Status::kBadParam;
  if (layout != dnn::RnnLayout::kSteps || std::count(lengths, lengths + batch, steps) != batch)
    return Status::kNotSupported;
  *data = {type, steps, batch, elements};
  return Status::kSuccess;
}

// --- weights ---------------------------------------------------------------------------------------------------------

// Offsets of a weight. The order differs from torch: gates of the hidden state come first, with gaps.
struct WeightOffsets {
  size_t matrix = 0, bias = 0;
};
WeightOffsets weight_offsets(const RnnDescriptorState& rnn, int64_t direction, int64_t linear, size_t* end) {
  const size_t item = dnn::item_size(rnn.type), gates = index(gates_of(rnn)), units = index(rnn.units);
  const auto padded = [](size_t bytes) { return (bytes + kGap - 1) / kGap * kGap + kGap; };
  const size_t hidden = padded(units * units * item), input = padded(units * index(rnn.inputs) * item),
               bias = rnn.biases ? padded(units * item) : 0;
  const size_t whole = gates * (hidden + input + 2 * bias), begin = index(direction) * whole;
  *end = begin + whole;
  const bool is_hidden = index(linear) >= gates;
  const size_t gate = index(linear) % gates;
  return {begin + (is_hidden ? gate * hidden : gates * hidden + gate * input),
          begin + gates * (hidden + input) + index(linear) * bias};
}

size_t weight_bytes(const RnnDescriptorState& rnn) {
  size_t end = 0;
  (void)weight_offsets(rnn, rnn.directions - 1, 0, &end);
  return end;
}

// The number of float64 elements in the reserve space. Each direction and step has the activated gates, the hidden
// state's part of a GRU's last gate, and cells. The gradients of both parts of the gates follow.
size_t kept_elements(const RnnDescriptorState& rnn, const dnn::RnnDataDescriptorState& data) {
  return index(rnn.directions) * index(data.steps) * index(data.batch) * index(rnn.units) *
         (3 * index(gates_of(rnn)) + 2);
}

Status weight_size(dnn::Handle handle, RnnDescriptor rnn, size_t* bytes) {
  if (!exists(handle) || !exists(rnn) || rnn->units == 0) return Status::kBadParam;
  *bytes = weight_bytes(*rnn);
  return Status::kSuccess;
}

Status sizes(dnn::Handle handle, RnnDescriptor rnn, dnn::ForwardMode mode, RnnDataDescriptor input, size_t* workspace,
             size_t* reserve) {
  if (!exists(handle) || !exists(rnn) || !exists(input) || input->elements != rnn->inputs) return Status::kBadParam;
  const bool trains = mode == dnn::ForwardMode::kTraining;
  *workspace = trains ? kWorkspace : kWorkspace / 2;
  *reserve = trains ? (kept_elements(*rnn, *input) + 1) * sizeof(double) : 0;
  return Status::kSuccess;
}

Status weight_place(dnn::Handle handle, RnnDescriptor rnn, int32_t direction, size_t bytes, const void* weights,
                    int32_t linear, TensorDescriptor of_matrix, void** matrix, TensorDescriptor of_bias, void** bias) {
  if (!exists(handle) || !exists(rnn) || !exists(of_matrix) || !exists(of_bias) || weights == nullptr ||
      bytes != weight_bytes(*rnn) || direction < 0 || direction >= rnn->directions || linear < 0 ||
      linear >= 2 * gates_of(*rnn))
    return Status::kBadParam;
  size_t end = 0;
  const WeightOffsets place = weight_offsets(*rnn, direction, linear, &end);
  auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(weights));
  *matrix = from + place.matrix;
  *bias = rnn->biases ? from + place.bias : nullptr;
  return Status::kSuccess;
}

// --- what is computed ------------------------------------------------------------------------------------------------

// Memory of a call, as host addresses. Null: not given.
struct Layer {
  RnnDescriptorState rnn;
  int64_t steps = 0, batch = 0;
  const std::byte *input = nullptr, *hx = nullptr, *cx = nullptr, *weights = nullptr, *output_before = nullptr;
  const std::byte *grad_output = nullptr, *grad_hy = nullptr, *grad_cy = nullptr;
  std::byte *output = nullptr, *hy = nullptr, *cy = nullptr, *grad_input = nullptr, *grad_hx = nullptr,
            *grad_cx = nullptr, *grad_weights = nullptr;
  std::byte* reserve = nullptr;

  double get(const std::byte* data, int64_t at) const {
    if (data == nullptr) return 0;
    return static_cast<double>(load_element(rnn.type, data + at * static_cast<int64_t>(dnn::item_size(rnn.type))));
  }
  void put(std::byte* data, int64_t at, double value) const {
    if (data == nullptr) return;
    store_element(rnn.type, static_cast<float>(value), data + at * static_cast<int64_t>(dnn::item_size(rnn.type)));
  }
  int64_t units() const { return rnn.units; }
  int64_t gates() const { return gates_of(rnn); }
  int64_t width() const { return rnn.directions * units(); }  // of the output
  RnnMode mode() const { return static_cast<RnnMode>(rnn.mode); }
  double matrix(int64_t direction, int64_t linear, int64_t row, int64_t column) const {
    size_t end = 0;
    const bool hidden = linear >= gates();
    return get(weights + weight_offsets(rnn, direction, linear, &end).matrix,
               row * (hidden ? units() : rnn.inputs) + column);
  }
  double bias(int64_t direction, int64_t linear, int64_t row) const {
    size_t end = 0;
    return rnn.biases ? get(weights + weight_offsets(rnn, direction, linear, &end).bias, row) : 0;
  }
  // An element of the reserve space. Parts: [gates], the hidden part, the cell, and [gates] and [gates] of gradients.
  double& reserve_element(int64_t direction, int64_t step, int64_t part, int64_t image, int64_t unit) const {
    const int64_t parts = 3 * gates() + 2;
    return reinterpret_cast<double*>(
        reserve)[1 + (((direction * steps + step) * parts + part) * batch + image) * units() + unit];
  }
  double& mark() const { return *reinterpret_cast<double*>(reserve); }
};
constexpr double kForwardDone = 1234, kDataDone = 5678;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void forward(const Layer& layer, bool trains) {
  const int64_t units = layer.units(), gates = layer.gates(), inputs = layer.rnn.inputs;
  for (int64_t direction = 0; direction < layer.rnn.directions; ++direction) {
    for (int64_t image = 0; image < layer.batch; ++image) {
      std::vector<double> h(index(units)), c(index(units));
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = (direction * layer.batch + image) * units + u;
        h[index(u)] = layer.get(layer.hx, at);
        c[index(u)] = layer.get(layer.cx, at);
      }
      for (int64_t step = 0; step < layer.steps; ++step) {
        const int64_t t = direction == 1 ? layer.steps - 1 - step : step;
        std::vector<double> next(index(units));
        for (int64_t u = 0; u < units; ++u) {
          std::vector<double> of_input(index(gates)), of_hidden(index(gates));
          for (int64_t g = 0; g < gates; ++g) {
            double& x = of_input[index(g)] = layer.bias(direction, g, u);
            double& y = of_hidden[index(g)] = layer.bias(direction, gates + g, u);
            for (int64_t i = 0; i < inputs; ++i)
              x += layer.matrix(direction, g, u, i) * layer.get(layer.input, (t * layer.batch + image) * inputs + i);
            for (int64_t i = 0; i < units; ++i) y += layer.matrix(direction, gates + g, u, i) * h[index(i)];
          }
          std::vector<double> made(index(gates));
          double& cell = c[index(u)];
          if (layer.mode() == RnnMode::kLstm) {
            for (size_t g = 0; g < 4; ++g)
              made[g] = g == 2 ? std::tanh(of_input[g] + of_hidden[g]) : sigmoid(of_input[g] + of_hidden[g]);
            cell = made[1] * cell + made[0] * made[2];
            next[index(u)] = made[3] * std::tanh(cell);
          } else if (layer.mode() == RnnMode::kGru) {
            made[0] = sigmoid(of_input[0] + of_hidden[0]);
            made[1] = sigmoid(of_input[1] + of_hidden[1]);
            made[2] = std::tanh(of_input[2] + made[0] * of_hidden[2]);
            next[index(u)] = (1 - made[1]) * made[2] + made[1] * h[index(u)];
          } else {
            const double sum = of_input[0] + of_hidden[0];
            next[index(u)] = made[0] = layer.mode() == RnnMode::kTanh ? std::tanh(sum) : std::max(sum, 0.0);
          }
          if (trains) {
            for (int64_t g = 0; g < gates; ++g) layer.reserve_element(direction, t, g, image, u) = made[index(g)];
            layer.reserve_element(direction, t, gates, image, u) = of_hidden.back();
            layer.reserve_element(direction, t, gates + 1, image, u) = cell;
          }
        }
        h = next;
        for (int64_t u = 0; u < units; ++u) {
          const int64_t at = (t * layer.batch + image) * layer.width() + direction * units + u;
          layer.put(layer.output, at, h[index(u)]);
          h[index(u)] = layer.get(layer.output, at);  // rounded to the output type
        }
      }
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = (direction * layer.batch + image) * units + u;
        layer.put(layer.hy, at, h[index(u)]);
        layer.put(layer.cy, at, c[index(u)]);
      }
    }
  }
  if (trains) layer.mark() = kForwardDone;
}

// The hidden state at the beginning of a step.
double hidden_before(const Layer& layer, int64_t direction, int64_t step, int64_t image, int64_t u) {
  if (step == 0) return layer.get(layer.hx, (direction * layer.batch + image) * layer.units() + u);
  const int64_t t = direction == 1 ? layer.steps - step : step - 1;
  return layer.get(layer.output_before, (t * layer.batch + image) * layer.width() + direction * layer.units() + u);
}

void backward_data(const Layer& layer) {
  const int64_t units = layer.units(), gates = layer.gates(), inputs = layer.rnn.inputs;
  std::vector<double> of_input(index(layer.steps * layer.batch * inputs));
  for (int64_t direction = 0; direction < layer.rnn.directions; ++direction) {
    for (int64_t image = 0; image < layer.batch; ++image) {
      std::vector<double> grad(index(units)), grad_cell(index(units));
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = (direction * layer.batch + image) * units + u;
        grad[index(u)] = layer.get(layer.grad_hy, at);
        grad_cell[index(u)] = layer.get(layer.grad_cy, at);
      }
      for (int64_t step = layer.steps; step-- > 0;) {
        const int64_t t = direction == 1 ? layer.steps - 1 - step : step;
        const auto gate = [&](int64_t g, int64_t u) { return layer.reserve_element(direction, t, g, image, u); };
        std::vector<double> before(index(units));
        for (int64_t u = 0; u < units; ++u) {
          const int64_t at = (t * layer.batch + image) * layer.width() + direction * units + u;
          const double g = grad[index(u)] + layer.get(layer.grad_output, at);
          std::vector<double> x(index(gates));
          std::optional<double> last;  // GRU only: gradient of the hidden state's part
          if (layer.mode() == RnnMode::kLstm) {
            const double cell = std::tanh(gate(gates + 1, u));
            double was = 0;
            if (step == 0) {
              was = layer.get(layer.cx, (direction * layer.batch + image) * units + u);
            } else {
              was = layer.reserve_element(direction, direction == 1 ? t + 1 : t - 1, gates + 1, image, u);
            }
            const double c = grad_cell[index(u)] + g * gate(3, u) * (1 - cell * cell);
            x[0] = c * gate(2, u) * gate(0, u) * (1 - gate(0, u));
            x[1] = c * was * gate(1, u) * (1 - gate(1, u));
            x[2] = c * gate(0, u) * (1 - gate(2, u) * gate(2, u));
            x[3] = g * cell * gate(3, u) * (1 - gate(3, u));
            grad_cell[index(u)] = c * gate(1, u);
          } else if (layer.mode() == RnnMode::kGru) {
            const double h = hidden_before(layer, direction, step, image, u);
            x[2] = g * (1 - gate(1, u)) * (1 - gate(2, u) * gate(2, u));
            x[1] = g * (h - gate(2, u)) * gate(1, u) * (1 - gate(1, u));
            x[0] = x[2] * gate(gates, u) * gate(0, u) * (1 - gate(0, u));
            last = x[2] * gate(0, u);
            before[index(u)] += g * gate(1, u);
          } else {
            x[0] = layer.mode() == RnnMode::kTanh ? g * (1 - gate(0, u) * gate(0, u)) : gate(0, u) > 0 ? g : 0;
          }
          for (int64_t i = 0; i < gates; ++i) {
            const double y = i == 2 && last ? *last : x[index(i)];
            layer.reserve_element(direction, t, gates + 2 + i, image, u) = x[index(i)];
            layer.reserve_element(direction, t, 2 * gates + 2 + i, image, u) = y;
            for (int64_t k = 0; k < inputs; ++k)
              of_input[index((t * layer.batch + image) * inputs + k)] += x[index(i)] * layer.matrix(direction, i, u, k);
            for (int64_t k = 0; k < units; ++k) before[index(k)] += y * layer.matrix(direction, gates + i, u, k);
          }
        }
        grad = before;
      }
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = (direction * layer.batch + image) * units + u;
        layer.put(layer.grad_hx, at, grad[index(u)]);
        layer.put(layer.grad_cx, at, grad_cell[index(u)]);
      }
    }
  }
  for (size_t i = 0; i < of_input.size(); ++i) layer.put(layer.grad_input, static_cast<int64_t>(i), of_input[i]);
  layer.mark() = kDataDone;
}

void backward_weights(const Layer& layer) {
  const int64_t units = layer.units(), gates = layer.gates();
  for (int64_t direction = 0; direction < layer.rnn.directions; ++direction) {
    for (int64_t linear = 0; linear < 2 * gates; ++linear) {
      size_t end = 0;
      const WeightOffsets place = weight_offsets(layer.rnn, direction, linear, &end);
      const bool hidden = linear >= gates;
      const int64_t columns = hidden ? units : layer.rnn.inputs;
      for (int64_t u = 0; u < units; ++u) {
        std::vector<double> sums(index(columns));
        double sum = 0;
        for (int64_t step = 0; step < layer.steps; ++step) {
          const int64_t t = direction == 1 ? layer.steps - 1 - step : step;
          for (int64_t image = 0; image < layer.batch; ++image) {
            const double g = layer.reserve_element(direction, t, gates + 2 + linear, image, u);
            sum += g;
            for (int64_t k = 0; k < columns; ++k) {
              sums[index(k)] += g * (hidden ? hidden_before(layer, direction, step, image, k)
                                            : layer.get(layer.input, (t * layer.batch + image) * columns + k));
            }
          }
        }
        std::byte* const matrix = layer.grad_weights + place.matrix;
        for (int64_t k = 0; k < columns; ++k) {
          const int64_t at = u * columns + k;
          layer.put(matrix, at, layer.get(matrix, at) + sums[index(k)]);
        }
        std::byte* const bias = layer.grad_weights + place.bias;
        if (layer.rnn.biases) layer.put(bias, u, layer.get(bias, u) + sum);
      }
    }
  }
}

// --- calls -----------------------------------------------------------------------------------------------------------

// Resolves the memory of a call, and enqueues the computation on the stream.
class LayerCall {
 public:
  LayerCall(const char* name, dnn::Handle handle, RnnDescriptor rnn, RnnDataDescriptor input, RnnDataDescriptor output,
            TensorDescriptor state)
      : call_(name), name_(name) {
    good_ = call_.ready() && exists(handle) && exists(rnn) && exists(input) && exists(output) && exists(state);
    if (!good_) return;
    layer_.rnn = *rnn;
    layer_.steps = input->steps;
    layer_.batch = input->batch;
    stream_ = call_.stream(handle->stream);
    const std::vector<int> sizes = {rnn->directions, input->batch, rnn->units};
    good_ = stream_ != nullptr && input->type == rnn->type && output->type == rnn->type && state->type == rnn->type &&
            input->elements == rnn->inputs && output->elements == rnn->directions * rnn->units &&
            output->steps == input->steps && output->batch == input->batch && state->sizes == sizes;
  }

  enum Needs : uint8_t { kMust, kMay };
  LayerCall& reads(const std::byte* Layer::* member, const void* at, size_t bytes, Needs needs = kMust) {
    layer_.*member = find(at, bytes, needs);
    if (layer_.*member != nullptr) reads_.emplace_back(layer_.*member, bytes);
    return *this;
  }
  LayerCall& writes(std::byte* Layer::* member, void* at, size_t bytes, Needs needs = kMust) {
    layer_.*member = find(at, bytes, needs);
    if (layer_.*member != nullptr) writes_.emplace_back(layer_.*member, bytes);
    return *this;
  }
  LayerCall& workspace(const void* at, size_t given, size_t wanted) {
    good_ = good_ && given >= wanted && find(at, wanted, kMust) != nullptr;
    return *this;
  }
  // The gaps between weights are never written.
  LayerCall& weights_at(const void* at) {
    layer_.weights = find(at, weights(), kMust);
    return *this;
  }
  // `mark` is the pass that must already be complete.
  Status submit(void (*compute)(const Layer&), std::optional<double> mark = {}) {
    if (!good_) return Status::kBadParam;
    for (const auto& [to, size] : writes_) {
      const auto overlaps = [to = to, size = size](const auto& other) {
        return other.first < to + size && to < other.first + other.second;
      };
      if (std::ranges::any_of(reads_, overlaps) || std::ranges::count_if(writes_, overlaps) != 1)
        return Status::kBadParam;
    }
    auto work = [machine = call_.machine, gpu = call_.gpu, layer = layer_, reads = reads_, writes = writes_, compute,
                 mark, name = name_] {
      emulator::DeviceMemory& memory = gpu->device->memory();
      const auto fail = [&](const char* what) {
        const std::lock_guard lock(machine->mutex);
        machine->findings.push_back(std::string(name) + what);
        return Result::kLaunchFailed;
      };
      if (machine->options.checked) {
        memory.assume_written();
        for (const auto& [at, bytes] : reads) {
          for (uint64_t i = 0; i < bytes; i += dnn::item_size(layer.rnn.type)) {
            if (memory.cells(at + i)->writer == emulator::kUninitialized) return fail(" reads uninitialised memory");
          }
        }
      }
      if (mark && layer.mark() != *mark) return fail(": the pass before it was not done");
      compute(layer);
      if (machine->options.checked) {
        for (const auto& [at, bytes] : writes) (void)memory.written(at, bytes);
      }
      return Result::kSuccess;
    };
    return call_.submit(*stream_, {NodeType::kKernel, std::move(work), nullptr}) == Result::kSuccess
               ? Status::kSuccess
               : Status::kExecutionFailed;
  }
  size_t bytes(int64_t elements) const { return index(elements) * dnn::item_size(layer_.rnn.type); }
  size_t input_bytes() const { return bytes(layer_.steps * layer_.batch * layer_.rnn.inputs); }
  size_t output_bytes() const { return bytes(layer_.steps * layer_.batch * layer_.width()); }
  size_t state_bytes() const { return bytes(layer_.rnn.directions * layer_.batch * layer_.units()); }
  bool has_cell() const { return layer_.mode() == RnnMode::kLstm; }
  size_t weights() const { return good_ ? weight_bytes(layer_.rnn) : 0; }
  size_t reserve_bytes() const {
    dnn::RnnDataDescriptorState data;
    data.steps = static_cast<int>(layer_.steps);
    data.batch = static_cast<int>(layer_.batch);
    return (kept_elements(layer_.rnn, data) + 1) * sizeof(double);
  }

 private:
  std::byte* find(const void* at, size_t bytes, Needs needs) {
    if (at == nullptr || !good_) {
      good_ = good_ && needs == kMay;
      return nullptr;
    }
    auto* const found = static_cast<std::byte*>(call_.memory(reinterpret_cast<DevicePointer>(at), bytes));
    good_ = found != nullptr;
    return found;
  }

  Call call_;
  const char* const name_;
  bool good_ = false;
  Layer layer_;
  StreamState* stream_ = nullptr;
  std::vector<std::pair<const std::byte*, size_t>> reads_;
  std::vector<std::pair<std::byte*, size_t>> writes_;
};

Status rnn_forward(dnn::Handle handle, RnnDescriptor rnn, dnn::ForwardMode mode, const int32_t*,
                   RnnDataDescriptor of_input, const void* input, RnnDataDescriptor of_output, void* output,
                   TensorDescriptor of_hidden, const void* hx, void* hy, TensorDescriptor, const void* cx, void* cy,
                   size_t weight_size, const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
                   void* reserve) {
  LayerCall call("cudnnRNNForward", handle, rnn, of_input, of_output, of_hidden);
  const bool trains = mode == dnn::ForwardMode::kTraining;
  if (weight_size != call.weights() || (trains && reserve_size != call.reserve_bytes())) return Status::kBadParam;
  call.reads(&Layer::input, input, call.input_bytes())
      .reads(&Layer::hx, hx, call.state_bytes(), LayerCall::kMay)
      .reads(&Layer::cx, call.has_cell() ? cx : nullptr, call.state_bytes(), LayerCall::kMay)
      .writes(&Layer::output, output, call.output_bytes())
      .writes(&Layer::hy, hy, call.state_bytes(), LayerCall::kMay)
      .writes(&Layer::cy, call.has_cell() ? cy : nullptr, call.state_bytes(), LayerCall::kMay)
      .workspace(workspace, workspace_size, trains ? kWorkspace : kWorkspace / 2)
      .weights_at(weights);
  if (!trains) return call.submit([](const Layer& layer) { forward(layer, false); });
  return call.writes(&Layer::reserve, reserve, call.reserve_bytes()).submit([](const Layer& layer) {
    forward(layer, true);
  });
}

Status rnn_backward_data(dnn::Handle handle, RnnDescriptor rnn, const int32_t*, RnnDataDescriptor of_output,
                         const void* output, const void* grad_output, RnnDataDescriptor of_input, void* grad_input,
                         TensorDescriptor of_hidden, const void* hx, const void* grad_hy, void* grad_hx,
                         TensorDescriptor, const void* cx, const void* grad_cy, void* grad_cx, size_t weight_size,
                         const void* weights, size_t workspace_size, void* workspace, size_t reserve_size,
                         void* reserve) {
  LayerCall call("cudnnRNNBackwardData_v8", handle, rnn, of_input, of_output, of_hidden);
  if (weight_size != call.weights() || reserve_size != call.reserve_bytes()) return Status::kBadParam;
  const bool cell = call.has_cell();
  return call.reads(&Layer::output_before, output, call.output_bytes())
      .reads(&Layer::grad_output, grad_output, call.output_bytes())
      .reads(&Layer::hx, hx, call.state_bytes(), LayerCall::kMay)
      .reads(&Layer::grad_hy, grad_hy, call.state_bytes(), LayerCall::kMay)
      .reads(&Layer::cx, cell ? cx : nullptr, call.state_bytes(), LayerCall::kMay)
      .reads(&Layer::grad_cy, cell ? grad_cy : nullptr, call.state_bytes(), LayerCall::kMay)
      .writes(&Layer::grad_input, grad_input, call.input_bytes())
      .writes(&Layer::grad_hx, grad_hx, call.state_bytes(), LayerCall::kMay)
      .writes(&Layer::grad_cx, cell ? grad_cx : nullptr, call.state_bytes(), LayerCall::kMay)
      .writes(&Layer::reserve, reserve, call.reserve_bytes())
      .workspace(workspace, workspace_size, kWorkspace)
      .weights_at(weights)
      .submit(backward_data, kForwardDone);
}

Status rnn_backward_weights(dnn::Handle handle, RnnDescriptor rnn, dnn::GradMode mode, const int32_t*,
                            RnnDataDescriptor of_input, const void* input, TensorDescriptor of_hidden, const void* hx,
                            RnnDataDescriptor of_output, const void* output, size_t weight_size, void* grad_weights,
                            size_t workspace_size, void* workspace, size_t reserve_size, void* reserve) {
  LayerCall call("cudnnRNNBackwardWeights_v8", handle, rnn, of_input, of_output, of_hidden);
  if (mode != dnn::GradMode::kAdd || weight_size != call.weights() || reserve_size != call.reserve_bytes())
    return Status::kBadParam;
  return call.reads(&Layer::input, input, call.input_bytes())
      .reads(&Layer::hx, hx, call.state_bytes(), LayerCall::kMay)
      .reads(&Layer::output_before, output, call.output_bytes())
      .writes(&Layer::grad_weights, grad_weights, call.weights())
      .writes(&Layer::reserve, reserve, call.reserve_bytes())
      .workspace(workspace, workspace_size, kWorkspace)
      .submit(backward_weights, kDataDone);
}

}  // namespace

void add_rnn_functions(dnn::Table& table) {
  table.tensor_create = [](TensorDescriptor* made) { return make(made); };
  table.tensor_destroy = [](TensorDescriptor descriptor) { return remove(descriptor); };
  table.tensor_set = set_tensor;
  table.rnn_create = [](RnnDescriptor* made) { return make(made); };
  table.rnn_destroy = [](RnnDescriptor descriptor) { return remove(descriptor); };
  table.rnn_set = set_rnn;
  table.rnn_data_create = [](RnnDataDescriptor* made) { return make(made); };
  table.rnn_data_destroy = [](RnnDataDescriptor descriptor) { return remove(descriptor); };
  table.rnn_data_set = set_data;
  table.rnn_sizes = sizes;
  table.rnn_weight_size = weight_size;
  table.rnn_weight_params = weight_place;
  table.rnn_forward = rnn_forward;
  table.rnn_backward_data = rnn_backward_data;
  table.rnn_backward_weights = rnn_backward_weights;
}

}  // namespace torch_remote::worker::cuda::emulated
