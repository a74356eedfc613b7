#pragma once

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000
#error "torch_remote needs CPython 3.11 or later: earlier versions store frames in another way"
#elif PY_VERSION_HEX >= 0x030F0000
#error "frontend/source/frames.h does not know the frames of this CPython yet"
#elif defined(Py_GIL_DISABLED)
#error "torch_remote needs a CPython with the GIL: free-threaded builds copy a code object's instructions per thread"
#endif

// Python's headers come first. The layout of frames is internal to CPython and differs between its versions.
#define Py_BUILD_CORE
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
#endif
#undef Py_BUILD_CORE

#include <cstdint>

// The frames of a thread's Python code. This is the only file that depends on CPython's layout of frames: another
// version of CPython is added here.
//
// No function here takes the GIL, makes an object or changes a reference count. A thread may read its own frames
// without the GIL, because no other thread changes them. CPython's functions would need the GIL:
// PyThreadState_GetFrame() and PyFrame_GetBack() make frame objects, and PyUnstable_InterpreterFrame_GetCode() returns
// a new reference. No function of CPython returns the caller of an interpreter frame.
namespace torch_remote::frontend::frames {

using Frame = _PyInterpreterFrame;

// The innermost frame of the thread; null if it runs no Python code.
inline Frame* current(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe != nullptr ? state->cframe->current_frame : nullptr;
#endif
}

// The frame that called this one, or null.
inline Frame* caller(const Frame* frame) { return frame->previous; }

// The code that the frame runs, a borrowed reference. It is null for the frame that CPython 3.12 and later have
// wherever C calls Python.
inline PyCodeObject* code(const Frame* frame) {
#if PY_VERSION_HEX >= 0x030E0000
  if (frame->owner >= FRAME_OWNED_BY_INTERPRETER) return nullptr;
  constexpr uintptr_t kTag = 3;  // bits of a _PyStackRef that are not part of the address
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<PyCodeObject*>(frame->f_executable.bits & ~kTag);
#elif PY_VERSION_HEX >= 0x030D0000
  return frame->owner == FRAME_OWNED_BY_CSTACK ? nullptr : reinterpret_cast<PyCodeObject*>(frame->f_executable);
#elif PY_VERSION_HEX >= 0x030C0000
  return frame->owner == FRAME_OWNED_BY_CSTACK ? nullptr : frame->f_code;
#else
  return frame->f_code;
#endif
}

// The address of the instruction that the frame runs. It lies in the frame's code object. For frames without code it
// lies in an array that lives as long as the interpreter.
inline const void* instruction(const Frame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return frame->instr_ptr;
#else
  return frame->prev_instr;
#endif
}

// The instruction's offset in the code, in bytes, for PyCode_Addr2Line().
inline int32_t offset(const Frame* frame, const PyCodeObject* code) {
  return static_cast<int32_t>(static_cast<const char*>(instruction(frame)) - code->co_code_adaptive);
}

// Whether the code has no line that tracebacks show. CPython 3.13 and later run such code between a call of a class and
// its __init__().
inline bool is_internal(const PyCodeObject* code) { return code->_co_firsttraceable >= Py_SIZE(code); }

}  // namespace torch_remote::frontend::frames
