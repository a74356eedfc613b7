#include "frontend/distributed/distributed.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace torch_remote::frontend {
namespace {

using c10::intrusive_ptr;
using Tensors = std::vector<at::Tensor>;

// Holds a Python object for torch, which may release it on any thread, also after the interpreter has ended.
class PythonObject {
 public:
  explicit PythonObject(py::object object) : object_(std::move(object)) {}
  ~PythonObject() {
    try {
      reset();
    } catch (...) {  // The interpreter is ending: leak the object.
      (void)object_.release();
    }
  }
  PythonObject(const PythonObject&) = delete;
  PythonObject& operator=(const PythonObject&) = delete;

  void reset() {
    if (!object_) return;
    if (!Py_IsInitialized()) {
      (void)object_.release();
      return;
    }
    py::gil_scoped_acquire acquire;
    object_ = py::object();
  }
  // Require the GIL.
  const py::object& get() const { return object_; }
  void set(py::object object) { object_ = std::move(object); }

 private:
  py::object object_;
};

// The work of a recorded op. The device executes ops in order, so later ops see its results without a wait. wait() only
// calls `on_wait`, once. `on_wait` returns the rank that a message came from, or -1. If it raises, each later wait()
// raises the same exception.
class RemoteWork final : public c10d::Work {
 public:
  RemoteWork(Tensors results, py::object on_wait)
      : Work(-1, c10d::OpType::UNKNOWN), results_(std::move(results)), on_wait_(std::move(on_wait)) {}

  bool isCompleted() override {
    finish();
    return true;
  }
  bool isSuccess() const override { return !failed_; }
  bool wait(std::chrono::milliseconds) override {
    finish();
    return true;
  }
  void synchronize() override { finish(); }
  void blockCurrentStream() override { finish(); }
  int sourceRank() const override {
    const_cast<RemoteWork*>(this)->finish();
    return source_;
  }
  std::vector<at::Tensor> result() override {
    finish();
    return results_;
  }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    finish();
    std::lock_guard lock(mutex_);
    if (!future_) {
      std::vector<c10::Device> devices;
      for (const at::Tensor& tensor : results_) {
        if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
          devices.push_back(tensor.device());
        }
      }
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
      future_->markCompleted(c10::IValue(results_));
    }
    return future_;
  }

 private:
  void finish() {
    if (!pending_.exchange(false)) {
      if (failed_) raise_again();
      return;
    }
    py::gil_scoped_acquire acquire;
    try {
      if (!on_wait_.get().is_none()) source_ = py::cast<int>(on_wait_.get()());
    } catch (const py::error_already_set& error) {
      error_.set(error.value());
      failed_ = true;
      on_wait_.reset();
      throw;
    }
    on_wait_.reset();
  }
  [[noreturn]] void raise_again() {
    py::gil_scoped_acquire acquire;
    const py::object& error = error_.get();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    throw py::error_already_set();
  }

  const Tensors results_;
  PythonObject on_wait_;
  PythonObject error_{py::object()};  // The exception of `on_wait`, if `failed_`.
  std::atomic<bool> pending_{true};
  std::atomic<bool> failed_{false};
  int source_ = -1;
  std::mutex mutex_;
  intrusive_ptr<c10::ivalue::Future> future_;
};

class RemoteBackend final : public c10d::Backend {
 public:
  RemoteBackend(py::object group, int rank, int size) : Backend(rank, size), group_(std::move(group)) {}

  const std::string getBackendName() const override { return "remote"; }
  intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>("remote"); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    py::gil_scoped_acquire acquire;
    return py::cast<uint64_t>(group_.get().attr("sequence"));
  }
  void startCoalescing() override { call_only("start_coalescing"); }
  intrusive_ptr<c10d::Work> endCoalescing() override { return call("end_coalescing"); }
  void shutdown() override { call_only("leave"); }
  void abort() override { call_only("leave"); }

  intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return call("broadcast", tensors, options.rootRank);
  }
  intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return call("all_reduce", tensors, reduction(options.reduceOp));
  }
  intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors& tensors,
                                                const c10d::AllreduceCoalescedOptions& options) override {
    return call("all_reduce", tensors, reduction(options.reduceOp));
  }
  intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return call("reduce", tensors, reduction(options.reduceOp), options.rootRank);
  }
  intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions&) override {
    return call("all_gather", outputs, inputs);
  }
  intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions&) override {
    return call("all_gather_coalesced", outputs, inputs);
  }
  intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions&) override {
    return call("all_gather_tensors", Tensors{output}, Tensors{input});
  }
  intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions&) override {
    return call("all_gather_tensors", outputs, inputs);
  }
  intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& options) override {
    return call("gather", outputs, inputs, options.rootRank);
  }
  intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& options) override {
    return call("scatter", outputs, inputs, options.rootRank);
  }
  intrusive_ptr<c10d::Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter", outputs, inputs, reduction(options.reduceOp));
  }
  intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter_tensors", Tensors{output}, Tensors{input}, reduction(options.reduceOp));
  }
  intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter_tensors", outputs, inputs, reduction(options.reduceOp));
  }
  intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) override {
    return call("all_to_all_single", output, input, output_splits, input_splits);
  }
  intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    return call("all_to_all", outputs, inputs);
  }
  intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int tag) override { return call("send", tensors, to, tag); }
  intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int tag) override {
    return call("recv", tensors, from, tag);
  }
  intrusive_ptr<c10d::Work> recvAnysource(Tensors& tensors, int tag) override { return call("recv", tensors, -1, tag); }
  intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    int device = -1;
    if (options.device && options.device->type() == c10::kPrivateUse1 && options.device->has_index()) {
      device = static_cast<unsigned char>(options.device->index());
    } else if (!options.device_ids.empty()) {
      device = static_cast<int>(options.device_ids[0]);
    }
    return call("barrier", device);
  }

 private:
  static std::string reduction(const c10d::ReduceOp& op) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
        return "sum";
      case c10d::ReduceOp::AVG:
        return "avg";
      case c10d::ReduceOp::PRODUCT:
        return "product";
      case c10d::ReduceOp::MIN:
        return "min";
      case c10d::ReduceOp::MAX:
        return "max";
      case c10d::ReduceOp::BAND:
        return "band";
      case c10d::ReduceOp::BOR:
        return "bor";
      case c10d::ReduceOp::BXOR:
        return "bxor";
      default:
        TORCH_CHECK_VALUE(false,
                          "remote: the supported reductions are SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR; for "
                          "PREMUL_SUM, multiply the tensor first and use SUM");
    }
  }

  template <typename... Args>
  intrusive_ptr<c10d::Work> call(const char* method, const Args&... args) {
    py::gil_scoped_acquire acquire;
    const py::object work = group_.get().attr(method)(args...);
    return py::cast<intrusive_ptr<RemoteWork>>(work);
  }
  void call_only(const char* method) {
    py::gil_scoped_acquire acquire;
    group_.get().attr(method)();
  }

  PythonObject group_;
};

// Registers both classes once torch has registered their base classes. They belong to no module, because only the
// functions below create them.
void register_classes() {
  static bool registered = false;  // under the GIL
  if (registered) return;
  py::module_::import("torch._C._distributed_c10d");
  const py::class_<RemoteWork, c10d::Work, intrusive_ptr<RemoteWork>> work(py::handle(), "RemoteWork");
  const py::class_<RemoteBackend, c10d::Backend, intrusive_ptr<RemoteBackend>> backend(py::handle(), "RemoteBackend");
  registered = true;
}

py::object make_backend(py::object group, int rank, int size) {
  register_classes();
  return py::cast(c10::make_intrusive<RemoteBackend>(std::move(group), rank, size));
}

py::object make_work(Tensors results, py::object on_wait) {
  register_classes();
  return py::cast(c10::make_intrusive<RemoteWork>(std::move(results), std::move(on_wait)));
}

}  // namespace

void bind_distributed(py::module_& module) {
  module.def("make_backend", torch::wrap_pybind_function(make_backend));
  module.def("make_work", torch::wrap_pybind_function(make_work));
}

}  // namespace torch_remote::frontend
