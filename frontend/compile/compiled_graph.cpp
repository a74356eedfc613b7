#include "frontend/compile/compiled_graph.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>

#include "frontend/device/device_state.h"
#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "frontend/record/storages.h"
#include "frontend/source/source.h"

namespace torch_remote::frontend {

namespace py = pybind11;
using ir::Sym;

struct CompiledGraph::Call {
  std::vector<at::Tensor> tensors;    // by input; undefined for numbers
  std::vector<at::Tensor> originals;  // written inputs that were copied to other strides, by input
  std::vector<int64_t> params;
  std::vector<int64_t> values;  // values of the host graph's symbols
  std::vector<RemoteStorage*> inputs;
  std::vector<c10::Storage> made;
  struct Replaced {
    c10::Storage memory;
    RemoteStorage* lost;  // storage that takes over `memory`; null if none
  };
  std::vector<Replaced> replaced;
};

namespace {

// Calls `record`, which records ops. A recorder may wait for the build of a program, and the build may need the GIL.
template <typename Record>
void record_without_gil(const Record& record) {
  const py::gil_scoped_release release;
  record();
}

}  // namespace

at::Tensor restored(at::Tensor tensor, const at::Tensor& copy) {
  if (is_lost(storage_of(tensor))) tensor.set_data(copy.to(tensor.device()));
  return tensor;
}

CompiledGraph::CompiledGraph(std::unique_ptr<CompiledGraphSpec> spec, std::vector<InputSource> input_sources,
                             const remote::ProgramOptions& options)
    : spec_(std::move(spec)), input_sources_(std::move(input_sources)) {
  runnable_.graph = spec_->graph;
  runnable_.sources = spec_->sources;
  runnable_.options = options;
}

py::handle CompiledGraph::argument(const py::list& arguments, size_t input) const {
  const InputSource& source = input_sources_[input];
  if (source.constant) return source.constant;
  TORCH_CHECK(source.position < arguments.size(), "remote: a compiled graph was called with ", arguments.size(),
              " arguments, but it needs at least ", source.position + 1);
  return PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(source.position));
}

void CompiledGraph::take_tensor(Call& call, size_t index, py::handle argument) {
  const GraphInput& in = spec_->inputs[index];
  const std::string& name = input_sources_[index].name;
  TORCH_CHECK_TYPE(THPVariable_Check(argument.ptr()), "remote: argument '", name,
                   "' of a compiled graph must be a tensor, got ", Py_TYPE(argument.ptr())->tp_name);
  const at::Tensor& tensor = THPVariable_Unpack(argument.ptr());
  // A Python float that Dynamo passes as a tensor may have another precision than the example value.
  const bool number = in.kind == GraphInput::Kind::kNumber && c10::isFloatingType(in.dtype) &&
                      c10::isFloatingType(tensor.scalar_type());
  TORCH_CHECK(number || tensor.scalar_type() == in.dtype, "remote: argument '", name,
              "' of a compiled graph must be of dtype ", in.dtype, ", got ", tensor.scalar_type());
  if (in.kind == GraphInput::Kind::kNumber) {
    TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 0, "remote: argument '", name,
                "' of a compiled graph must be a 0-dim tensor on the CPU, got one of ", tensor.dim(), " dims on ",
                tensor.device());
    const c10::Scalar value = at::native::_local_scalar_dense_cpu(tensor);
    if (value.isComplex()) {
      call.params[in.param] = std::bit_cast<int64_t>(value.toComplexDouble().real());
      call.params[in.param + 1] = std::bit_cast<int64_t>(value.toComplexDouble().imag());
    } else {
      call.params[in.param] = value.isFloatingPoint() ? std::bit_cast<int64_t>(value.toDouble()) : value.to<int64_t>();
    }
    return;
  }
  TORCH_CHECK(is_remote(tensor) && tensor.device().index() == spec_->device, "remote: argument '", name,
              "' of a compiled graph must be on remote:", static_cast<int>(spec_->device), ", got one on ",
              tensor.device());
  TORCH_CHECK(tensor.dim() == static_cast<int64_t>(in.sizes.size()), "remote: argument '", name,
              "' of a compiled graph must have ", in.sizes.size(), " dims, got ", tensor.dim());
  if (input_sources_[index].copy.defined()) restored(tensor, input_sources_[index].copy);
  call.params[in.param] = tensor.storage_offset();
  for (const auto& [dim, param] : in.size_params) call.params[param] = tensor.size(dim);
  call.tensors[index] = tensor;
}

void CompiledGraph::take(Call& call, const py::list& arguments) {
  const size_t count = spec_->inputs.size();
  call.tensors.resize(count);
  call.params.resize(spec_->graph->params);
  for (size_t i = 0; i < count; ++i) {
    const GraphInput& in = spec_->inputs[i];
    const py::handle given = argument(arguments, i);
    switch (in.kind) {
      case GraphInput::Kind::kTensor:
      case GraphInput::Kind::kNumber:
        take_tensor(call, i, given);
        break;
      case GraphInput::Kind::kFloat:
        call.params[in.param] = std::bit_cast<int64_t>(py::cast<double>(given));
        break;
      case GraphInput::Kind::kBool:
        call.params[in.param] = py::cast<bool>(given);
        break;
      case GraphInput::Kind::kInt:
        call.params[in.param] = py::cast<int64_t>(given);
        break;
      case GraphInput::Kind::kRandomState: {
        const RandomState state = random_state_of(*py::cast<at::Tensor>(given).unsafeGetTensorImpl());
        call.params[in.param] = static_cast<int64_t>(state.seed);
        call.params[in.param + 1] = static_cast<int64_t>(state.offset);
        break;
      }
    }
  }
}

void CompiledGraph::fix_strides(Call& call, size_t index) {
  const GraphInput& in = spec_->inputs[index];
  at::Tensor& tensor = call.tensors[index];
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  bool same = true;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    TORCH_CHECK(sizes[d] == call.values[in.sizes[d]], "remote: argument '", input_sources_[index].name,
                "' of a compiled graph has sizes ", sizes, ", but dim ", d, " must be ", call.values[in.sizes[d]]);
    same = same && (sizes[d] == 1 || strides[d] == call.values[in.strides[d]]);
  }
  same = same && tensor.is_conj() == in.conj && tensor.is_neg() == in.neg;
  if (same || tensor.numel() == 0) return;
  c10::DimVector wanted;
  for (const Sym stride : in.strides) wanted.push_back(call.values[stride]);
  const at::Tensor copy = make_tensor(sizes, wanted, tensor.scalar_type(), spec_->device);
  copy._set_conj(in.conj);
  copy._set_neg(in.neg);
  const bool reads = in.elements == GraphInput::Elements::kRead;
  if (reads || !is_lost(storage_of(tensor))) record_without_gil([&] { copy.copy_(tensor); });
  if (in.written) {
    call.originals.resize(call.tensors.size());
    call.originals[index] = tensor;
  }
  tensor = copy;
  call.params[in.param] = 0;
}

void CompiledGraph::draw_random(Call& call) {
  for (const GraphRandom& random : spec_->randoms) {
    int64_t elements = 1;
    for (const Sym count : random.elements) elements = std::max(elements, call.values[count]);
    const RandomState state = default_generator(spec_->device).get<RemoteGenerator>()->take(elements);
    call.params[random.seed] = static_cast<int64_t>(state.seed);
    call.params[random.seed + 1] = static_cast<int64_t>(state.offset);
  }
}

void CompiledGraph::replace_lost(Call& call) const {
  using Elements = GraphInput::Elements;
  size_t place = 0;  // index in call.inputs
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = call.tensors[i];
    if (!tensor.defined()) continue;
    RemoteStorage*& storage = call.inputs[place++];
    if (!is_lost(storage)) continue;
    const GraphInput& in = spec_->inputs[i];
    const bool overwritten = in.elements == Elements::kOverwritten;
    const bool whole = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
                       tensor.nbytes() == storage->nbytes() &&
                       std::ranges::find(call.replaced, storage, &Call::Replaced::lost) == call.replaced.end();
    if (in.elements == Elements::kRead || (overwritten && !whole)) {
      const std::string line = describe_source(in.reader);
      TORCH_CHECK(false, "remote: the contents of argument '", input_sources_[i].name,
                  "' of a compiled graph were lost with the worker that held them",
                  overwritten    ? ", and only a part of them is overwritten"
                  : line.empty() ? ""
                                 : ", and are read at " + line,
                  "; overwrite it (copy_, zero_, load_state_dict) or create it again");
    }
    const at::Tensor memory =
        make_tensor({static_cast<int64_t>(storage->nbytes())}, {1}, c10::ScalarType::Byte, spec_->device);
    record_without_gil([&] { fill_if_unwritten(memory); });
    call.replaced.push_back({memory.storage(), overwritten ? storage : nullptr});
    storage = storage_of(memory);
  }
}

py::list CompiledGraph::results(Call& call, const py::list& arguments) {
  const auto evaluated = [&](const std::vector<Sym>& symbols) {
    c10::DimVector all;
    for (const Sym symbol : symbols) all.push_back(call.values[symbol]);
    return all;
  };
  py::list all(spec_->outputs.size());
  for (size_t i = 0; i < spec_->outputs.size(); ++i) {
    const GraphOutput& out = spec_->outputs[i];
    py::object result;
    at::Tensor tensor;
    switch (out.kind) {
      case GraphOutput::Kind::kObject:
        result = out.object;
        break;
      case GraphOutput::Kind::kInt:
        result = py::int_(call.values[out.offset]);
        break;
      case GraphOutput::Kind::kRandomState: {
        const RandomState state{static_cast<uint64_t>(call.values[out.offset]),
                                static_cast<uint64_t>(call.values[out.offset + 1])};
        result = py::cast(at::Tensor(random_state_tensor(state)));
        break;
      }
      case GraphOutput::Kind::kSame:
        result = all[out.index];
        break;
      case GraphOutput::Kind::kInput:
        result = py::reinterpret_borrow<py::object>(argument(arguments, out.index));
        break;
      case GraphOutput::Kind::kInputView: {
        const at::Tensor& base = call.tensors[out.index];
        tensor = make_view(base, c10::Storage(base.storage()), c10::scalarTypeToTypeMeta(out.dtype),
                           evaluated(out.sizes), evaluated(out.strides), call.values[out.offset]);
        break;
      }
      case GraphOutput::Kind::kFresh:
        tensor = tensor_over_storage(call.made[out.index], out.dtype, evaluated(out.sizes), evaluated(out.strides),
                                     call.values[out.offset]);
        break;
    }
    if (tensor.defined()) {
      tensor._set_conj(out.conj);
      tensor._set_neg(out.neg);
      result = py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor)));
    }
    PyList_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), result.release().ptr());
  }
  return all;
}

py::list CompiledGraph::call(py::list& arguments) {
  check_not_forked();
  Call call;
  take(call, arguments);
  const auto evaluate = [&] { check(ir::evaluate(spec_->host, call.params.data(), &call.values)); };
  evaluate();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i].defined()) fix_strides(call, i);
  }
  draw_random(call);
  evaluate();

  Recorder& recorder = Recorder::get(spec_->device);
  for (const at::Tensor& tensor : call.tensors) {
    if (tensor.defined()) call.inputs.push_back(storage_of(tensor));
  }
  std::vector<RemoteStorage*> made;
  for (const Sym nbytes : spec_->fresh_nbytes) {
    call.made.push_back(new_storage(call.values[nbytes], spec_->device));
    made.push_back(storage_of(call.made.back()));
  }
  bool sent = false;
  const auto run = [&] { sent = recorder.run(runnable_, call.params, call.inputs, made); };
  record_without_gil([&] {
    for (const at::Tensor& tensor : call.tensors) {
      if (tensor.defined()) fill_if_unwritten(tensor);
    }
    run();
  });
  if (!sent) {
    replace_lost(call);
    record_without_gil([&] {
      run();
      if (!sent) raise_lost();
      for (const auto& [memory, lost] : call.replaced) {
        if (lost != nullptr) move_buffer(storage_of(memory), lost);
      }
    });
  }
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!spec_->inputs[i].written) continue;
    if (i < call.originals.size() && call.originals[i].defined()) {
      record_without_gil([&] { call.originals[i].copy_(call.tensors[i]); });
    } else {
      call.tensors[i].unsafeGetTensorImpl()->bump_version();
    }
  }
  py::list all = results(call, arguments);
  if (PyList_SetSlice(arguments.ptr(), 0, PY_SSIZE_T_MAX, nullptr) != 0) throw py::error_already_set();
  return all;
}

}  // namespace torch_remote::frontend
