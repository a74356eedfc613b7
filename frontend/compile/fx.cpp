#include "frontend/compile/fx.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torch_remote::frontend {

namespace py = pybind11;

const FxNames& names() {
  static const auto* instance = new FxNames;
  return *instance;
}

bool is_fx_node(py::handle object) { return PyObject_IsInstance(object.ptr(), names().fx_node.ptr()) == 1; }

PyObject* lookup(py::handle dict, py::handle key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return found;
}

py::object meta_entry(py::handle node, const py::str& key) {
  PyObject* value = lookup(node.attr(names().meta), key);
  return value == nullptr ? py::object() : py::reinterpret_borrow<py::object>(value);
}

c10::Device device_of(py::handle tensor) {
  const py::object device = py::getattr(tensor, names().fake_device, py::none());
  return device.is_none() ? THPVariable_Unpack(tensor.ptr()).device()
                          : reinterpret_cast<THPDevice*>(device.ptr())->device;
}

}  // namespace torch_remote::frontend
