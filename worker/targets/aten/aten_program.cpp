#include "worker/targets/aten/aten_program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "ir/analysis.h"
#include "ir/cost/work.h"
#include "ir/math_modes.h"
#include "worker/targets/aten/checks/no_warnings.h"
#include "worker/targets/aten/checks/relations.h"
#include "worker/targets/aten/host_memory.h"
#include "worker/targets/aten/kernels/images/depthwise.h"
#include "worker/targets/aten/kernels/images/images.h"
#include "worker/targets/aten/kernels/images/layout_conversion.h"
#include "worker/targets/aten/kernels/images/packed_weights.h"

namespace torch_remote::worker::aten {
namespace {

using ir::Arg;
using ir::ArgTag;

constexpr uint32_t kFewNodes = 8;  // A run of fewer nodes binds only the buffers that these nodes use.

// A storage over memory that somebody else owns.
c10::Storage make_storage(void* data, size_t nbytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                            c10::DataPtr(data, device), nullptr,
                                                            /*resizable=*/false));
}

at::ScalarType scalar_type(ir::DType dtype) { return static_cast<at::ScalarType>(dtype); }

static_assert(static_cast<int>(ir::DType::kFloat32) == static_cast<int>(at::kFloat));
static_assert(static_cast<int>(ir::DType::kBool) == static_cast<int>(at::kBool));
static_assert(static_cast<int>(ir::DType::kBFloat16) == static_cast<int>(at::kBFloat16));
static_assert(static_cast<int>(ir::DType::kFloat8E4M3FNUZ) == static_cast<int>(at::kFloat8_e4m3fnuz));
static_assert(static_cast<int>(ir::DType::kUInt64) == static_cast<int>(at::kUInt64));
static_assert(static_cast<int>(ir::DType::kFloat8E8M0FNU) == static_cast<int>(at::kFloat8_e8m0fnu));

}  // namespace

AtenProgram::AtenProgram(const tr_host& host, Threads& threads, ir::Graph graph, bool tune, const uint8_t* may_run)
    : host_(host), target_(target_of(host)), threads_(threads), graph_(std::move(graph)) {
  if (tune && threads_.can_change() && !target_.is_gpu()) tuner_.emplace();
  const c10::InferenceMode inference;
  buffers_.resize(graph_.buffers.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].storage = make_storage(nullptr, 0, target_.device);
    buffers_[i].survives = graph_.buffers[i].survives;
  }
  views_.reserve(graph_.views.size());
  for (const ir::View& view : graph_.views) {
    views_.push_back(at::detail::make_tensor<c10::TensorImpl>(c10::Storage(buffers_[view.buffer].storage),
                                                              c10::DispatchKeySet(target_.key),
                                                              c10::scalarTypeToTypeMeta(scalar_type(view.dtype))));
  }
  operations_.resize(graph_.nodes.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (may_run && !may_run[n]) continue;
    const ir::Node& node = graph_.nodes[n];
    operations_[n].emplace(node, [&](const Arg& arg) { return tensor_of(arg, node); }, graph_, target_);
  }
  find_lifetimes();
  find_written();
}

at::Tensor AtenProgram::tensor_of(const Arg& arg, const ir::Node& node) {
  if (arg.tag == ArgTag::kView) return views_[arg.a];
  const auto dtype = static_cast<ir::DType>(arg.b & 0xFF);
  const auto type = c10::scalarTypeToTypeMeta(scalar_type(number_type(arg, node)));
  ScalarTensor& scalar = scalars_.emplace_back();
  scalar.symbol = arg.a;
  scalar.dtype = dtype;
  scalar.tensor = at::detail::make_tensor<c10::TensorImpl>(make_storage(scalar.memory, type.itemsize(), c10::kCPU),
                                                           c10::DispatchKeySet(c10::DispatchKey::CPU), type);
  scalar.tensor.unsafeGetTensorImpl()->set_sizes_contiguous({});
  if (arg.b >> 8 & 1) scalar.tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return scalar.tensor;
}

// The dtype of a number that is passed in place of a tensor. PyTorch treats a Python number among floating-point
// tensors as one of their dtype, so we convert the number once, here. Otherwise torch would cast it in each call, which
// takes longer than a small op. Half and bfloat16 are excluded: their kernels use the unconverted number.
ir::DType AtenProgram::number_type(const Arg& arg, const ir::Node& node) const {
  const auto dtype = static_cast<ir::DType>(arg.b & 0xFF);
  const bool wrapped = arg.b >> 8 & 1;
  if (!wrapped || (dtype != ir::DType::kFloat64 && dtype != ir::DType::kInt64) ||
      ir::op_desc(node.opcode).family != ir::Family::kPointwise) {
    return dtype;
  }
  std::optional<ir::DType> common;
  for (const Arg& other : node.args) {
    if (other.tag == ArgTag::kList) return dtype;
    if (other.tag != ArgTag::kView) continue;
    if (common && *common != graph_.views[other.a].dtype) return dtype;
    common = graph_.views[other.a].dtype;
  }
  return common == ir::DType::kFloat32 || common == ir::DType::kFloat64 ? *common : dtype;
}

namespace {

// Whether torch may resize a tensor that the op writes. (In mode kOut, call_out looks for that.)
bool may_resize(const Operation& operation, const ir::OpDesc& desc) {
  if ((desc.flags & ir::kOpOut) != 0 || operation.mode() == Operation::Mode::kSpecial) return true;
  return (desc.flags & ir::kOpInPlace) != 0 && desc.family != ir::Family::kMultiTensor && !ir::writes_by_strides(desc);
}

}  // namespace

void AtenProgram::find_lifetimes() {
  const std::vector<ir::Lifetime> lifetimes = ir::find_lifetimes(graph_);
  nodes_.resize(graph_.nodes.size());
  std::vector<uint32_t> noted_for(buffers_.size(), ir::kNoNode);  // per buffer: the last node whose list has it
  for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    ir::for_each_view(graph_.nodes[n], [&](uint32_t view, bool) {
      const uint32_t buffer = graph_.views[view].buffer;
      if (std::exchange(noted_for[buffer], n) != n) nodes_[n].buffers.push_back(buffer);
    });
    nodes_[n].packs_weights = operations_[n] && !target_.is_gpu() && may_pack_weights(graph_.nodes[n]);
    nodes_[n].depthwise = operations_[n] && !target_.is_gpu() && operations_[n]->makes_results() &&
                          may_use_depthwise_loops(graph_.nodes[n]);
    nodes_[n].image_kernels = operations_[n] && !target_.is_gpu() && may_use_image_kernels(graph_.nodes[n]);
    nodes_[n].may_resize = operations_[n] && may_resize(*operations_[n], ir::op_desc(graph_.nodes[n].opcode));
    if (!operations_[n] || !operations_[n]->makes_results()) continue;
    ir::for_each_result_view(graph_.nodes[n], [&](uint32_t view) {
      const uint32_t buffer = graph_.views[view].buffer;
      const bool made_here = graph_.buffers[buffer].kind == ir::BufferKind::kFresh && lifetimes[buffer].first == n;
      buffers_[buffer].created |= made_here;
    });
  }
  for (uint32_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].created && !buffers_[b].survives) nodes_[lifetimes[b].last].dead_after.push_back(b);
  }
}

void AtenProgram::find_written() {
  written_.resize(graph_.views.size());
  for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    const ir::Node& node = graph_.nodes[n];
    if (!operations_[n] || ir::writes_by_strides(ir::op_desc(node.opcode))) continue;
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const bool writes =
          access == ir::Access::kCreates ? !operations_[n]->makes_results() : access != ir::Access::kReads;
      written_[view] = written_[view] || writes;
    });
  }
}

// Returns whether the tensor's sizes, strides or offset changed.
bool AtenProgram::update_view(uint32_t index, const int64_t* symbols) {
  const ir::View& view = graph_.views[index];
  if (view.dynamic) return false;
  const size_t rank = view.sizes.size();
  std::array<int64_t, ir::kMaxRank> all_sizes, all_strides;
  for (size_t i = 0; i < rank; ++i) {
    all_sizes[i] = symbols[view.sizes[i]];
    all_strides[i] = symbols[view.strides[i]];
  }
  const c10::IntArrayRef sizes(all_sizes.data(), rank), strides(all_strides.data(), rank);
  const int64_t offset = symbols[view.offset];
  c10::TensorImpl* impl = views_[index].unsafeGetTensorImpl();
  if (impl->sizes() == sizes && impl->strides() == strides && impl->storage_offset() == offset) {
    return false;
  }
  // Some of torch's kernels write numel() elements one after the other, whatever the strides are.
  TORCH_CHECK(!written_[index] || !relations::shares_memory(sizes, strides),
              "remote: an op of the program writes a tensor of sizes ", sizes, " and strides ", strides,
              ", whose elements share memory");
  impl->set_sizes_and_strides(sizes, strides, offset);
  return true;
}

void AtenProgram::update_scalars(const int64_t* symbols) {
  for (ScalarTensor& scalar : scalars_) {
    const bool complex = c10::isComplexType(scalar_type(scalar.dtype));
    const int64_t words[2] = {symbols[scalar.symbol], complex ? symbols[scalar.symbol + 1] : 0};
    if (scalar.set && words[0] == scalar.last[0] && words[1] == scalar.last[1]) continue;
    scalar.set = false;  // torch may refuse the value for the dtype
    std::memcpy(scalar.last, words, sizeof(words));
    const bool from_float = c10::isFloatingType(scalar_type(scalar.dtype));
    const double value = from_float ? std::bit_cast<double>(words[0]) : static_cast<double>(words[0]);
    switch (scalar.tensor.scalar_type()) {
      case at::kDouble:
        *scalar.tensor.mutable_data_ptr<double>() = value;
        break;
      case at::kFloat:
        *scalar.tensor.mutable_data_ptr<float>() =
            from_float ? static_cast<float>(value) : static_cast<float>(words[0]);
        break;
      case at::kLong:
        *scalar.tensor.mutable_data_ptr<int64_t>() = words[0];
        break;
      default:
        if (complex) {
          scalar.tensor.fill_(c10::complex<double>(std::bit_cast<double>(words[0]), std::bit_cast<double>(words[1])));
        } else if (from_float) {
          scalar.tensor.fill_(value);
        } else {
          scalar.tensor.fill_(words[0]);
        }
    }
    scalar.set = true;
  }
}

void AtenProgram::update(const int64_t* symbols) {
  bool resized = !std::exchange(updated_, false);
  for (uint32_t i = 0; i < views_.size(); ++i) resized |= update_view(i, symbols);
  update_scalars(symbols);
  for (std::optional<Operation>& operation : operations_) {
    if (operation) operation->update(symbols);
  }
  if (resized) {
    for (NodeState& node : nodes_) node.out_variant_checked = false;
    update_threads(symbols);
  }
}

void AtenProgram::update_threads(const int64_t* symbols) {
  ir::estimate_work(graph_, symbols, &work_);
  if (tuner_) {
    tuner_->resize(work_, &parallel_);
  } else {
    parallel_.resize(work_.size());
    for (size_t n = 0; n < work_.size(); ++n) parallel_[n] = work_[n] >= kMinParallelWork && !target_.is_gpu();
  }
  parallel_work_ = largest_work_ = 0;
  for (size_t n = 0; n < work_.size(); ++n) {
    if (!parallel_[n]) continue;
    parallel_work_ += work_[n];
    largest_work_ = std::max(largest_work_, work_[n]);
  }
}

void AtenProgram::bind(uint32_t index, const tr_buffer& memory) {
  BufferState& buffer = buffers_[index];
  if (buffer.data == memory.data && buffer.nbytes == memory.nbytes) return;
  buffer.data = memory.data;
  buffer.nbytes = memory.nbytes;
  c10::StorageImpl* storage = buffer.storage.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(memory.data, target_.device));
  storage->set_nbytes(static_cast<size_t>(memory.nbytes));
}

void AtenProgram::run(tr_run& run, uint32_t* node) {
  *node = run.first;
  TORCH_CHECK(run.first <= run.last && run.last <= graph_.nodes.size() && run.buffer_count == buffers_.size(),
              "remote: a run does not fit its program");
  const c10::InferenceMode inference;
  run.result_word_count = 0;
  if (run.symbols_changed || !updated_) update(run.symbols);
  updated_ = false;  // until the run succeeds: an op that fails may leave its tensors with other sizes
  const bool few = run.last - run.first < kFewNodes;
  bool missing = few;
  if (few) {
    for (uint32_t n = run.first; n < run.last; ++n) {
      for (uint32_t b : nodes_[n].buffers) bind(b, run.buffers[b]);
    }
  } else {
    for (uint32_t b = 0; b < run.buffer_count; ++b) {
      bind(b, run.buffers[b]);
      missing |= run.buffers[b].data == nullptr && !buffers_[b].created;
    }
  }
  deterministic_ = (run.math_modes & ir::kDeterministic) != 0;
  if (deterministic_) {
    if (parallel_work_ >= kMinWakeWork) threads_.begin_wake();
    use_threads_ =
        true;  // deterministic runs always use the same number of threads, whether or not the threads are asleep
  } else if (parallel_work_ > 0) {
    const bool worth_waking = parallel_work_ >= kMinWakeWork;
    if (should_leave_core(largest_work_) && threads_.leaves_one_thread()) {
      threads_.sleep();
    } else if (worth_waking) {
      threads_.begin_wake();
    }
    use_threads_ = worth_waking || !threads_.sleeping();
  }
  const bool tuning = tuner_ && tuner_->needs_samples() && !deterministic_;
  if (run.times) {
    tuning ? run_nodes<true, true>(run, node, missing) : run_nodes<true, false>(run, node, missing);
  } else {
    tuning ? run_nodes<false, true>(run, node, missing) : run_nodes<false, false>(run, node, missing);
  }
  updated_ = true;
}

template <bool timed, bool tuning>
void AtenProgram::run_nodes(tr_run& run, uint32_t* node, bool missing) {
  const auto now = [] { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()); };
  for (uint32_t n = run.first; n < run.last; ++n) {
    *node = n;
    if constexpr (timed) run.times[n - run.first] = now();
    if (missing) allocate_missing(run, n);
    if (tuning && tuner_->needs_samples(n)) {
      const uint64_t begin = now();
      threads_.set(tuner_->next(n));
      run_node(run, n);
      tuner_->add(n, now() - begin, &parallel_);
    } else {
      if (parallel_[n] && !deterministic_ && should_leave_core(work_[n])) {
        threads_.leave_one_core();
      } else {
        threads_.set(parallel_[n] && use_threads_);
      }
      run_node(run, n);
    }
  }
  if constexpr (timed) run.times[run.last - run.first] = now();
}

// Allocates the fresh buffers that the node uses and that no op creates: its results, and buffers that no node writes.
void AtenProgram::allocate_missing(tr_run& run, uint32_t index) {
  for (uint32_t b : nodes_[index].buffers) {
    if (run.buffers[b].data || buffers_[b].created || graph_.buffers[b].kind != ir::BufferKind::kFresh) continue;
    run.buffers[b] = allocate(host_, static_cast<uint64_t>(run.symbols[graph_.buffers[b].nbytes]));
    bind(b, run.buffers[b]);
  }
}

// For one call of a convolution, replaces its weights by the cached copy in a faster layout. If the copy has a layout
// of oneDNN's own, computes the convolution here instead.
class AtenProgram::PackedWeights {
 public:
  PackedWeights(AtenProgram& program, const tr_run& run, uint32_t index) {
    // A deterministic run must not depend on the cache: weights are packed only when they are seen a second time.
    if (!program.nodes_[index].packs_weights || !run.cached_data || program.deterministic_) return;
    const ir::Node& node = program.graph_.nodes[index];
    const uint32_t weight = node.args[kWeight].a;
    Operation& operation = *program.operations_[index];
    at::Tensor packed = packed_weights(run.cached_data[program.graph_.views[weight].buffer], operation.arguments());
    if (!packed.defined()) return;
    if (packed.is_mkldnn()) {
      result = convolve(operation.arguments(), packed);
      return;
    }
    operation_ = &operation;
    weight_ = program.views_[weight];
    operation_->set_tensor(kWeight, std::move(packed));
  }
  ~PackedWeights() {
    if (operation_) operation_->set_tensor(kWeight, std::move(weight_));
  }
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  at::Tensor result;  // undefined if the convolution has not been computed yet

 private:
  static constexpr size_t kWeight = 1;  // argument

  Operation* operation_ = nullptr;
  at::Tensor weight_;
};

// For one call of a convolution of a contiguous (NCHW) image whose result is channels last, replaces the image by a
// channels-last copy. Otherwise torch would compute a contiguous result, and we would copy it.
class AtenProgram::ChannelsLastImage {
 public:
  ChannelsLastImage(AtenProgram& program, uint32_t index) {
    if (!program.nodes_[index].packs_weights) return;
    const ir::Node& node = program.graph_.nodes[index];
    const at::Tensor &image = program.views_[node.args[kImage].a], &result = program.views_[node.results[0].a];
    ImageLayout made, given;
    if (image.dim() < 4 || !find_image_layout(result, &made) || !made.is_channels_last() ||
        !find_image_layout(image, &given) || given.is_channels_last())
      return;
    at::Tensor channels_last =
        at::empty_like(image, image.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast);
    if (!copy_converting_layout(image, channels_last)) return;
    operation_ = &*program.operations_[index];
    image_ = image;
    operation_->set_tensor(kImage, std::move(channels_last));
  }
  ~ChannelsLastImage() {
    if (operation_) operation_->set_tensor(kImage, std::move(image_));
  }
  ChannelsLastImage(const ChannelsLastImage&) = delete;
  ChannelsLastImage& operator=(const ChannelsLastImage&) = delete;

 private:
  static constexpr size_t kImage = 0;  // argument

  Operation* operation_ = nullptr;
  at::Tensor image_;
};

void AtenProgram::run_node(tr_run& run, uint32_t index) {
  Operation& operation = *operations_[index];
  const ChannelsLastImage channels_last(*this, index);
  PackedWeights packed(*this, run, index);
  bool done = packed.result.defined();
  if (done) {
    stack_.clear();
    stack_.emplace_back(std::move(packed.result));
  } else if ((nodes_[index].depthwise && run_depthwise(index)) || (nodes_[index].image_kernels && run_images(index))) {
    done = true;
  } else if (operation.mode() == Operation::Mode::kOut && !nodes_[index].out_variant_checked) {
    call_out(run, index);
  } else {
    operation.call(stack_);
  }
  if (nodes_[index].may_resize) restore_sizes(run, graph_.nodes[index]);
  if (ir::op_desc(graph_.nodes[index].opcode).flags & ir::kOpOut) resolve_written(graph_.nodes[index]);
  if (operation.makes_results() || done) store_results(run, graph_.nodes[index]);
  for (uint32_t b : nodes_[index].dead_after) {
    tr_buffer& buffer = run.buffers[b];
    if (buffer.release) buffer.release(buffer.owner);
    buffer = {};
    bind(b, buffer);
  }
}

// Returns false if the depthwise loops do not support the node. Leaves the results on the stack.
bool AtenProgram::run_depthwise(uint32_t index) {
  static const DepthwiseLoops* const loops = depthwise_loops();
  if (loops == nullptr) return false;
  std::vector<at::Tensor> results = depthwise(*loops, graph_.nodes[index], operations_[index]->arguments());
  stack_.assign(std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
  return !results.empty();
}

// Returns false if the image kernels do not support the node. Leaves the results on the stack.
bool AtenProgram::run_images(uint32_t index) {
  const ir::Node& node = graph_.nodes[index];
  const Operation& operation = *operations_[index];
  const auto arguments = operation.arguments().first(operation.schema().arguments().size());
  std::vector<at::Tensor> results = run_image_kernel(node, arguments, views_[node.results[0].a]);
  stack_.assign(std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
  return !results.empty();
}

// Whether all operands and results of the node are contiguous.
bool AtenProgram::is_packed(const ir::Node& node) const {
  bool packed = true;
  ir::for_each_view(node, [&](uint32_t view, bool) { packed = packed && views_[view].is_contiguous(); });
  return packed;
}

namespace {

// Whether two tensors of the same sizes have the same strides; dims of size 1 are ignored.
bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

}  // namespace

// Whether the functional overload's results, which are on the stack, have the layout that the program expects.
bool AtenProgram::has_expected_layout(const ir::Node& node) const {
  bool same = stack_.size() == node.results.size();
  for (size_t i = 0; same && i < node.results.size(); ++i) {
    if (node.results[i].tag != ArgTag::kView || !stack_[i].isTensor()) return false;
    const at::Tensor& tensor = stack_[i].toTensor();
    const at::Tensor& expected = views_[node.results[i].a];
    same = tensor.defined() && tensor.sizes() == expected.sizes() && same_strides(tensor, expected);
  }
  return same;
}

// The first call of an out variant with these sizes. If the variant refuses the results' memory or resizes it, we call
// the functional overload, which either raises the error or computes the results.
void AtenProgram::call_out(tr_run& run, uint32_t index) {
  Operation& operation = *operations_[index];
  const ir::Node& node = graph_.nodes[index];
  NodeState& state = nodes_[index];
  // Some out variants write wrong values when the result's layout is not the one that the op would choose itself.
  if (!state.layout_matches && !is_packed(node)) {
    operation.call_functional(stack_);
    state.layout_matches = has_expected_layout(node);
    if (state.layout_matches) {
      store_results(run, node);
    } else {
      operation.stop_using_out();
    }
    return;
  }
  try {
    // We handle a resized result ourselves, so torch need not warn of it.
    const NoWarnings silent;
    operation.call(stack_);
    state.out_variant_checked = results_untouched(node, run.symbols);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    state.out_variant_checked = false;
  }
  if (state.out_variant_checked) return;
  stack_.clear();
  ir::for_each_result_view(node, [&](uint32_t view) {
    views_[view]._set_conj(false);
    views_[view]._set_neg(false);
    update_view(view, run.symbols);
    const uint32_t b = graph_.views[view].buffer;
    buffers_[b].data = nullptr;
    buffers_[b].nbytes = ~uint64_t{0};
    bind(b, run.buffers[b]);
  });
  operation.stop_using_out();
  operation.call(stack_);
}

// Torch resizes a tensor that an op writes, if the sizes do not fit. This restores the program's sizes, because in a
// later run the tensor may have less memory.
void AtenProgram::restore_sizes(const tr_run& run, const ir::Node& node) {
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const bool resized = update_view(view, run.symbols);
    TORCH_CHECK(!resized || access != ir::Access::kCreates, "remote: '", ir::op_desc(node.opcode).name,
                "' made a result of other sizes than ", views_[view].sizes(), ", which the program expects");
  });
}

// Some ops return a lazy conjugate, or set the conjugate bit of `out`. Buffers hold resolved values, so we resolve
// here.
void AtenProgram::resolve_written(const ir::Node& node) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (!desc.args[i].writes || node.args[i].tag != ArgTag::kView) continue;
    const at::Tensor& tensor = views_[node.args[i].a];
    if (tensor.is_conj()) {
      tensor._set_conj(false);
      tensor.conj_physical_();
    }
    if (tensor.is_neg()) {
      tensor._set_neg(false);
      tensor.neg_();
    }
  }
}

bool AtenProgram::results_untouched(const ir::Node& node, const int64_t* symbols) const {
  bool same = true;
  ir::for_each_result_view(node, [&](uint32_t v) {
    const ir::View& view = graph_.views[v];
    const at::Tensor& tensor = views_[v];
    same = same && static_cast<size_t>(tensor.dim()) == view.sizes.size() && !tensor.is_conj() && !tensor.is_neg() &&
           tensor.storage_offset() == symbols[view.offset] && tensor.storage().data() == buffers_[view.buffer].data;
    for (int64_t i = 0; same && i < tensor.dim(); ++i) {
      same = tensor.size(i) == symbols[view.sizes[i]] && tensor.stride(i) == symbols[view.strides[i]];
    }
  });
  return same;
}

void AtenProgram::store_results(tr_run& run, const ir::Node& node) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  TORCH_CHECK(stack_.size() == node.results.size(), "remote: the op returned ", stack_.size(), " results instead of ",
              node.results.size());
  for (size_t i = 0; i < node.results.size(); ++i) {
    const Arg& result = node.results[i];
    c10::IValue value = std::move(stack_[i]);
    if (result.tag == ArgTag::kView) {
      store_tensor(run, result, std::move(value).toTensor());
    } else if (result.tag == ArgTag::kList) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      value = c10::IValue();
      TORCH_CHECK(tensors.size() == result.items.size(), "remote: the op returned a list of ", tensors.size(),
                  " tensors, the program expects ", result.items.size());
      for (size_t j = 0; j < tensors.size(); ++j) {
        if (result.items[j].tag == ArgTag::kView) store_tensor(run, result.items[j], std::move(tensors[j]));
      }
    } else if (!value.isTensor() && !value.isTensorList() && (desc.flags & ir::kOpHostResult)) {
      add_host_result(run, value, desc.results[i].kind);
    }
  }
  stack_.clear();
}

namespace {

void add_word(tr_run& run, int64_t word) {
  TORCH_CHECK(run.result_word_count < run.result_word_capacity, "remote: the op's result has too many dimensions");
  run.result_words[run.result_word_count++] = word;
}

// Whether no element is reached twice: each dim's stride steps over all dims with smaller strides.
bool has_own_elements(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) != 1) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent = stride * size;
  }
  return true;
}

}  // namespace

bool AtenProgram::is_sole_owner(const at::Tensor& tensor) const {
  return tensor.use_count() == 1 && tensor.has_storage() && tensor.storage().use_count() == 1 &&
         tensor.device() == target_.device;
}

void AtenProgram::store_tensor(tr_run& run, const Arg& result, at::Tensor tensor) {
  const ir::View& view = graph_.views[result.a];
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.defined() || (tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor.is_quantized()),
      "remote: the op makes a tensor of layout ", tensor.layout(), " and dtype ", tensor.scalar_type(),
      tensor.is_nested() ? ", nested," : "", " but the device does not support such tensors; create it on the CPU");
  if (view.dynamic) return store_dynamic(run, view, std::move(tensor));
  const at::Tensor& expected = views_[result.a];
  TORCH_CHECK(tensor.defined(), "remote: the op returned no tensor where the program expects one");
  // The statistics of norms have another precision on other devices; the program's dtype counts.
  const bool both_float = tensor.is_floating_point() && expected.is_floating_point();
  TORCH_CHECK(tensor.sizes() == expected.sizes() && (tensor.scalar_type() == expected.scalar_type() || both_float),
              "remote: the op returned a tensor of sizes ", tensor.sizes(), " and type ", tensor.scalar_type(),
              ", the program expects ", expected.sizes(), " and ", expected.scalar_type());
  tr_buffer& buffer = run.buffers[view.buffer];
  const auto nbytes = static_cast<uint64_t>(run.symbols[graph_.buffers[view.buffer].nbytes]);
  if (!buffer.data) {
    const bool same_layout = tensor.scalar_type() == expected.scalar_type() &&
                             tensor.storage_offset() == expected.storage_offset() &&
                             tensor.is_non_overlapping_and_dense() && same_strides(tensor, expected);
    if (same_layout && is_sole_owner(tensor) && tensor.storage().nbytes() >= nbytes && nbytes > 0 &&
        !tensor.is_conj() && !tensor.is_neg()) {
      buffer = take_storage(tensor.storage());
      buffer.nbytes = nbytes;
      bind(view.buffer, buffer);
      return;
    }
    buffer = allocate(host_, nbytes);
    bind(view.buffer, buffer);
  }
  if (!copy_converting_layout(tensor, expected)) expected.copy_(tensor);
}

void AtenProgram::store_dynamic(tr_run& run, const ir::View& view, at::Tensor tensor) {
  if (!tensor.defined()) return add_word(run, -1);
  add_word(run, static_cast<int64_t>(tensor.scalar_type()));
  add_word(run, tensor.dim());
  tensor = tensor.resolve_conj().resolve_neg();
  // A tensor with gaps may stay as it is if no other tensor uses its storage.
  const bool whole = is_sole_owner(tensor) && tensor.storage_offset() == 0;
  if (!tensor.is_non_overlapping_and_dense() && (!whole || !has_own_elements(tensor))) {
    tensor = tensor.contiguous();
  }
  if (!is_sole_owner(tensor) || tensor.storage_offset() != 0) tensor = tensor.clone();
  for (int64_t size : tensor.sizes()) add_word(run, size);
  for (int64_t stride : tensor.strides()) add_word(run, stride);
  const uint64_t nbytes =
      tensor.numel() == 0 ? 0 : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  tr_buffer& buffer = run.buffers[view.buffer];
  if (buffer.release) buffer.release(buffer.owner);
  if (nbytes == 0) {
    buffer = allocate(host_, 0);
  } else {
    buffer = take_storage(tensor.storage());
    buffer.nbytes = nbytes;
  }
  bind(view.buffer, buffer);
}

void AtenProgram::add_host_result(tr_run& run, const c10::IValue& value, ir::ResultKind kind) {
  const auto add_number = [&](const c10::Scalar& scalar) {
    if (scalar.isComplex()) {
      add_word(run, std::bit_cast<int64_t>(scalar.toComplexDouble().real()));
      add_word(run, std::bit_cast<int64_t>(scalar.toComplexDouble().imag()));
    } else if (scalar.isFloatingPoint()) {
      add_word(run, std::bit_cast<int64_t>(scalar.toDouble()));
    } else {
      add_word(run, scalar.toLong());
    }
  };
  const c10::Scalar scalar = value.toScalar();
  if (kind == ir::ResultKind::kScalar) {
    using enum ir::ScalarTag;
    const ir::ScalarTag tag = scalar.isComplex()         ? kComplex
                              : scalar.isFloatingPoint() ? kFloat
                              : scalar.isBoolean()       ? kBool
                                                         : kInt;
    add_word(run, static_cast<int64_t>(tag));
  }
  add_number(scalar);
}

}  // namespace torch_remote::worker::aten
