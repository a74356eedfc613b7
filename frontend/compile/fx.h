#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

// Helpers for nodes of torch.fx graphs. They require the GIL.
namespace torch_remote::frontend {

// Cached Python strings and objects.
struct FxNames {
  pybind11::str meta{"meta"}, val{"val"}, target{"target"}, args{"args"}, kwargs{"kwargs"}, node{"node"},
      fake_device{"fake_device"}, stack_trace{"stack_trace"};
  pybind11::object fx_node = pybind11::module_::import("torch.fx").attr("Node");
  pybind11::object getitem = pybind11::module_::import("operator").attr("getitem");
  pybind11::object rng_prims = pybind11::module_::import("torch._prims.rng_prims");
  pybind11::object run_and_save_rng_state = rng_prims.attr("run_and_save_rng_state");
  pybind11::object run_with_rng_state = rng_prims.attr("run_with_rng_state");
};
const FxNames& names();

bool is_fx_node(pybind11::handle object);
// The entry of a dict, or null. Returns a borrowed reference.
PyObject* lookup(pybind11::handle dict, pybind11::handle key);
// An entry of a node's `meta`, or null if there is none.
pybind11::object meta_entry(pybind11::handle node, const pybind11::str& key);
// The device that a fake tensor represents.
c10::Device device_of(pybind11::handle tensor);

}  // namespace torch_remote::frontend
