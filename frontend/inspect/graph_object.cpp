#include "frontend/inspect/graph_object.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "frontend/device/build_program.h"
#include "frontend/device/device_state.h"
#include "frontend/device/tensor.h"
#include "frontend/record/storages.h"
#include "frontend/source/source.h"
#include "ir/analysis.h"
#include "passes/pass.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using ir::BufferKind;
using ir::Sym;

// The first view of a buffer, or null if it has none.
const ir::View* first_view(const ir::Graph& graph, uint32_t buffer) {
  for (const ir::View& view : graph.views) {
    if (view.buffer == buffer) return &view;
  }
  return nullptr;
}

// The view as which a node creates the buffer; the buffer's first view if no node creates it.
const ir::View* made_view(const ir::Graph& graph, uint32_t buffer) {
  for (const ir::Node& node : graph.nodes) {
    const ir::View* made = nullptr;
    ir::for_each_result_view(node, [&](uint32_t view) {
      if (graph.views[view].buffer == buffer) made = &graph.views[view];
    });
    if (made != nullptr) return made;
  }
  return first_view(graph, buffer);
}

}  // namespace

GraphObject::GraphObject(ir::Graph graph, std::vector<ir::SourceRef> sources, std::vector<int64_t> params)
    : graph_(std::move(graph)), sources_(std::move(sources)), params_(std::move(params)) {
  if (graph_.source_lines.empty()) graph_.source_lines = describe_sources(sources_);
}

std::unique_ptr<GraphObject> GraphObject::from_text(const std::string& text) {
  ir::Graph graph;
  Status status = ir::parse_graph(text, &graph);
  if (status.ok()) status = ir::verify(graph);
  TORCH_CHECK_VALUE(status.ok(), status.message());
  return std::make_unique<GraphObject>(std::move(graph), std::vector<ir::SourceRef>(), std::vector<int64_t>());
}

void GraphObject::set_params(std::vector<int64_t> params) {
  TORCH_CHECK_VALUE(params.size() == graph_.params, "remote: the graph has ", graph_.params, " parameters, got ",
                    params.size(), " values");
  params_ = std::move(params);
}

std::string GraphObject::to_text() const { return ir::print(graph_); }

py::bytes GraphObject::to_program() const {
  const std::vector<uint8_t> bytes = ir::encode_program(graph_);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::unique_ptr<GraphObject> GraphObject::optimized() const {
  ir::Graph graph = graph_;
  passes::PipelineOptions options;
  options.verify = true;
  // A graph belongs to no worker, so assume one that can compile kernels of all kinds.
  options.context.worker.group_kind_mask = (1u << ir::kGroupKinds) - 1;
  options.context.worker.dtype_mask = ~uint64_t{0};
  options.context.sample = params_;
  check(read_switches(&options.context));
  check(passes::run_pipeline(graph, options));
  return std::make_unique<GraphObject>(std::move(graph), sources_, params_);
}

std::vector<std::pair<std::string, size_t>> GraphObject::ops() const {
  std::vector<std::pair<std::string, size_t>> counts;
  for (const ir::Node& node : graph_.nodes) {
    const std::string name(ir::op_desc(node.opcode).name);
    const auto known = std::ranges::find(counts, name, &std::pair<std::string, size_t>::first);
    if (known == counts.end()) {
      counts.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  return counts;
}

std::vector<int64_t> GraphObject::bind(const std::vector<at::Tensor>& inputs,
                                       const std::map<uint32_t, int64_t>& given) const {
  std::vector<std::optional<int64_t>> known(graph_.params);
  for (const auto& [param, value] : given) {
    TORCH_CHECK_VALUE(param < graph_.params, "remote: the graph has no parameter s", param, "; it has ", graph_.params);
    known[param] = value;
  }
  const auto tell = [&](Sym symbol, int64_t value, const char* what, size_t input) {
    int64_t constant = 0;
    if (symbol < graph_.params) {
      if (!known[symbol]) known[symbol] = value;
      TORCH_CHECK_VALUE(*known[symbol] == value, "remote: input ", input, " says that parameter s", symbol, " is ",
                        value, " (", what, "), but it is ", *known[symbol]);
    } else if (graph_.is_constant(symbol, &constant)) {
      TORCH_CHECK_VALUE(constant == value, "remote: input ", input, " has a ", what, " of ", value,
                        ", but the graph is for ", constant);
    }
  };
  size_t input = 0;
  for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
    if (graph_.buffers[b].kind != BufferKind::kInput) continue;
    TORCH_CHECK_VALUE(input < inputs.size(), "remote: the graph has more input buffers than the ", inputs.size(),
                      " tensors given");
    const at::Tensor& tensor = inputs[input];
    if (const ir::View* view = first_view(graph_, b)) {
      const auto dtype = static_cast<c10::ScalarType>(view->dtype);
      TORCH_CHECK_VALUE(tensor.scalar_type() == dtype && tensor.dim() == static_cast<int64_t>(view->sizes.size()),
                        "remote: input ", input, " must be a tensor of ", dtype, " with ", view->sizes.size(),
                        " dims, got one of ", tensor.scalar_type(), " with ", tensor.dim());
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        tell(view->sizes[d], tensor.size(d), "size", input);
        tell(view->strides[d], tensor.stride(d), "stride", input);
      }
      tell(view->offset, tensor.storage_offset(), "storage offset", input);
    }
    ++input;
  }
  TORCH_CHECK_VALUE(input == inputs.size(), "remote: the graph has ", input, " input buffers, but ", inputs.size(),
                    " tensors were given");
  std::vector<int64_t> values(graph_.params);
  for (uint32_t i = 0; i < graph_.params; ++i) {
    TORCH_CHECK_VALUE(known[i] || i < params_.size(), "remote: parameter s", i,
                      " of the graph has no value; give it with params={", i,
                      ": ...} (the bits of a double for a float)");
    values[i] = known[i].value_or(i < params_.size() ? params_[i] : 0);
  }
  return values;
}

std::vector<at::Tensor> GraphObject::run(const std::vector<at::Tensor>& inputs,
                                         const std::map<uint32_t, int64_t>& given) {
  check_not_forked();
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(is_remote(inputs[i]), "remote: input ", i, " of the graph is on ", inputs[i].device(),
                      "; move it with .to(\"remote\")");
    TORCH_CHECK_VALUE(!inputs[i].is_conj() && !inputs[i].is_neg(), "remote: input ", i,
                      " of the graph is a lazy conjugate or negative; call .resolve_conj() or .resolve_neg() first");
    TORCH_CHECK(inputs[i].device() == inputs[0].device(), "Expected all tensors to be on the same device, but input ",
                i, " of the graph is on ", inputs[i].device(), ", and input 0 is on ", inputs[0].device(),
                "; move one with .to(...)");
  }
  const c10::DeviceIndex device = inputs.empty() ? c10::DeviceIndex{0} : inputs[0].device().index();
  for (const ir::View& view : graph_.views) {
    TORCH_CHECK_NOT_IMPLEMENTED(!view.dynamic,
                                "remote: this graph has a result whose sizes only a run can determine, so it cannot be "
                                "run by itself; run the code that it was recorded from");
  }
  const std::vector<int64_t> params = bind(inputs, given);
  std::vector<int64_t> values;
  check(ir::evaluate(graph_, params.data(), &values));

  Recorder& recorder = Recorder::get(device);
  std::vector<RemoteStorage*> bound, made;
  for (const at::Tensor& tensor : inputs) bound.push_back(storage_of(tensor));
  std::vector<at::Tensor> results;
  for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
    const ir::Buffer& buffer = graph_.buffers[b];
    if (buffer.kind != BufferKind::kFresh || !buffer.survives) continue;
    const c10::Storage storage = new_storage(values[buffer.nbytes], device);
    made.push_back(storage_of(storage));
    c10::DimVector sizes, strides;
    const ir::View* view = made_view(graph_, b);
    for (size_t d = 0; view != nullptr && d < view->sizes.size(); ++d) {
      sizes.push_back(values[view->sizes[d]]);
      strides.push_back(values[view->strides[d]]);
    }
    const auto dtype = view == nullptr ? c10::kByte : static_cast<c10::ScalarType>(view->dtype);
    results.push_back(tensor_over_storage(storage, dtype, sizes, strides, view == nullptr ? 0 : values[view->offset]));
  }
  if (!runnable_.graph) {
    runnable_.graph = std::make_shared<const ir::Graph>(graph_);
    uint32_t records = 0;
    for (const ir::Node& node : graph_.nodes) records = std::max(records, node.record + 1);
    runnable_.sources = sources_;
    runnable_.sources.resize(std::max<size_t>(records, sources_.size()));
  }
  {
    py::gil_scoped_release release;  // recording may wait for the build of a program, which may need the GIL
    for (const at::Tensor& tensor : inputs) fill_if_unwritten(tensor);
    if (!recorder.run(runnable_, params, bound, made)) raise_lost();
  }
  const std::vector<bool> written = ir::written_buffers(graph_);
  size_t input = 0;
  for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
    if (graph_.buffers[b].kind != BufferKind::kInput) continue;
    if (written[b]) inputs[input].unsafeGetTensorImpl()->bump_version();
    ++input;
  }
  return results;
}

namespace {

// The runs sent since tracing began: one graph for each trace, and one for each run of a compiled graph.
std::vector<std::unique_ptr<GraphObject>> take_traced(int device) {
  std::vector<TracedRun> runs;
  {
    py::gil_scoped_release release;
    Recorder& recorder = Recorder::get(checked_device(device));
    try {
      recorder.flush("trace");
    } catch (...) {
      (void)recorder.capture().stop();
      throw;
    }
    runs = recorder.capture().stop();
  }
  std::vector<std::unique_ptr<GraphObject>> graphs;
  for (TracedRun& run : runs) {
    ir::Graph graph;
    if (run.graph) {
      graph = *run.graph;
    } else {
      check(ir::import_trace(run.trace, run.survivors, &graph));
    }
    graphs.push_back(
        std::make_unique<GraphObject>(std::move(graph), std::move(run.trace.sources), std::move(run.trace.params)));
  }
  return graphs;
}

}  // namespace

void bind_graphs(py::module& module) {
  using torch::wrap_pybind_function;
  py::class_<GraphObject>(module, "Graph")
      .def_static("from_text", wrap_pybind_function(&GraphObject::from_text))
      .def("to_text", &GraphObject::to_text)
      .def("to_program", &GraphObject::to_program)
      .def("optimized", wrap_pybind_function(&GraphObject::optimized))
      .def("ops", &GraphObject::ops)
      .def("run", wrap_pybind_function(&GraphObject::run), py::arg("inputs"), py::arg("params"))
      .def_property("params", &GraphObject::params, wrap_pybind_function(&GraphObject::set_params))
      .def_property_readonly("nodes", [](const GraphObject& g) { return g.graph().nodes.size(); });
  module.def("start_tracing", wrap_pybind_function([](int device) {
               check_not_forked();
               py::gil_scoped_release release;
               Recorder& recorder = Recorder::get(checked_device(device));
               recorder.flush("trace");
               recorder.capture().start();
             }));
  module.def("take_traced", wrap_pybind_function(take_traced));
}

}  // namespace torch_remote::frontend
