"""Debuggers: pdb and those that derive from it, and pydevd (debugpy, VS Code, JupyterLab, PyCharm).

A debugger calls repr() of variables by itself: in a view of variables, on hovering, at `p x`. Torch's _tensor_str.py,
_str, reads the tensor, and so waits for the worker for as long as that takes, and the debugger hangs. With this bridge
such a repr() waits for at most 200 ms. If the worker has not finished its work by then, the text says so in place of
the numbers. The user's own `print(x)` or `str(x)` waits, also in a debugger's console.

We recognize a debugger's repr() by the functions that call it.
"""

from __future__ import annotations

import functools
import sys
import time
from types import FrameType, ModuleType

import torch

from torch_remote import _C
from torch_remote.device.idle import becomes_idle
from torch_remote.integrations.upstream import existing

__all__ = ["bridge"]

_SECONDS = 0.2  # that a debugger waits for the worker
_SECONDS_AGAIN = 0.02  # if the worker was busy a moment ago: a view shows many variables
_MOMENT = 1.0  # seconds

# The functions that call repr() for a debugger, by module; None: all of the module.
_CALLERS: dict[str, tuple[str, ...] | None] = {
    "IPython.core.debugger": ("format_stack_entry",),
    "_pydevd_bundle.pydevd_safe_repr": None,
    "_pydevd_bundle.pydevd_xml": None,
    "bdb": ("format_stack_entry",),
    "pdb": ("_msg_val_func", "_safe_repr", "displayhook"),
}
_VS_CODE = "_VSCODE_"  # functions that VS Code runs in a notebook's kernel, for its view of variables

_busy_at: dict[int, float] = {}  # by device: when its worker was busy for the whole wait (time.monotonic)


def bridge(module: ModuleType) -> None:
    """Changes torch._tensor_str."""
    (original,) = existing(module, "_str")

    @functools.wraps(original)
    def _str(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        plain = type(self) in (torch.Tensor, torch.nn.Parameter)
        waits = plain and self.device.type == "remote" and self.numel() > 0
        if tensor_contents is not None or not waits or not _is_for_debugger():
            return original(self, tensor_contents=tensor_contents)
        reason = _why_not(self.device.index)
        if reason is None:
            try:
                return original(self)
            except Exception as error:  # debuggers hide errors, and some are raised only once
                reason = f"{type(error).__name__}: {error}"
        size = f", size={tuple(self.shape)}" if self.layout == torch.strided else ""
        return original(self, tensor_contents=f"<{reason}>{size}")

    module._str = _str  # type: ignore[attr-defined]


def _is_for_debugger() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_name
        functions = _CALLERS.get(frame.f_globals.get("__name__", ""), ())
        if functions is None or name in functions or name.startswith(_VS_CODE):
            return True
        frame = frame.f_back
    return False


def _why_not(device: int) -> str | None:
    """Why a tensor of this device cannot be read in time; None: it can."""
    if _C.in_bad_fork():
        return None
    worker = _C.worker_info(device)
    if worker is None:
        return "not read: the worker has not started; print() starts it"
    if worker["lost"]:
        return "not read: the worker is lost"
    was_busy = time.monotonic() - _busy_at.get(device, -_MOMENT) < _MOMENT
    if becomes_idle(device, _SECONDS_AGAIN if was_busy else _SECONDS):
        return None
    _busy_at[device] = time.monotonic()
    return "not read: the worker is busy or away; print() waits for it"
