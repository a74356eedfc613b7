// An extension module that reads frames, for source_test.py. It needs no torch, so it runs with every CPython.
#include "frontend/source/frames.h"
#include "frontend/source/source.h"

namespace torch_remote::frontend {
namespace {

// The frames that tracebacks show, innermost first: [(code, offset of the instruction, line), ...].
PyObject* chain() {
  PyObject* list = PyList_New(0);
  for (auto* frame = frames::current(PyThreadState_Get()); frame != nullptr && list != nullptr;
       frame = frames::caller(frame)) {
    PyCodeObject* code = frames::code(frame);
    if (code == nullptr || frames::is_internal(code)) continue;
    const int32_t offset = frames::offset(frame, code);
    PyObject* item = Py_BuildValue("(Oii)", code, offset, PyCode_Addr2Line(code, offset));
    if (item == nullptr || PyList_Append(list, item) != 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

// (frames, describe_source(), describe_stack()) of the caller, which user_line() finds without the GIL.
PyObject* read(PyObject*, PyObject*) {
  PyThreadState* state = PyEval_SaveThread();
  const ir::SourceRef source = user_line();
  PyEval_RestoreThread(state);
  return Py_BuildValue("(Nss)", chain(), describe_source(source).c_str(), describe_stack(source).c_str());
}

PyObject* add_library(PyObject*, PyObject* folder) {
  const char* text = PyUnicode_AsUTF8(folder);
  if (text == nullptr) return nullptr;
  add_library_folder(text);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"read", read, METH_NOARGS, nullptr},
    {"add_library", add_library, METH_O, nullptr},
    {},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace torch_remote::frontend

PyMODINIT_FUNC PyInit_probe() { return PyModule_Create(&torch_remote::frontend::module); }
