"""`torch.remote.set_enabled(False)`: the same script on the CPU.

Where a script asks torch for the device `remote`, it gets the CPU: a torch function mode changes the device in calls.
Functions below change what no mode intercepts (autocast, GradScaler, the default device, torch.load). No worker is
started then.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device

from torch_remote import _C

_VARIABLE = "TORCH_REMOTE_ENABLED"
_CPU = torch.device("cpu")
_enabled = True
_lock = threading.Lock()


def is_enabled() -> bool:
    """Returns False after set_enabled(False)."""
    return _enabled


def _is_remote(device: object) -> bool:
    if type(device) is torch.device:
        return device.type == "remote"
    return isinstance(device, str) and (device == "remote" or device.startswith("remote:"))


_generators: weakref.WeakKeyDictionary[torch.Generator, torch.Generator] = weakref.WeakKeyDictionary()


_REPLACED = 1 << 62  # offset of a device's generator that a CPU generator replaces; manual_seed() changes it


def _generator(generator: torch.Generator) -> torch.Generator:
    """The CPU generator that replaces a generator of the device. It is seeded again if that one was."""
    if generator not in _generators or generator.get_offset() != _REPLACED:
        generator.set_offset(_REPLACED)
        _generators.setdefault(generator, torch.Generator()).manual_seed(generator.initial_seed())
    return _generators[generator]


_NOT_MAPPED = (torch.device, torch.Stream, torch.Event)  # a device object keeps its name; its uses are changed


class HostEvent:
    """Replaces torch.remote.Event while the device is disabled: ops are done when they return."""

    def __init__(self) -> None:
        self._time: float | None = None

    def record(self, stream: object = None) -> None:
        self._time = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: object = None) -> None:
        pass

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Returns the milliseconds until another event."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end_event._time - self._time)


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _enabled and func not in _NOT_MAPPED:
            if func is torch.Tensor.remote:  # type: ignore[attr-defined]  # a method in Python, whose own calls no mode sees
                return args[0].to(_CPU)
            if _is_remote(kwargs.get("device")):
                kwargs = {**kwargs, "device": _CPU}
            generator = kwargs.get("generator")
            if generator is not None and generator.device.type == "remote":
                kwargs = {**kwargs, "generator": _generator(generator)}
            # Text is a device only in these places: "remote" could be an einsum equation.
            if any(type(arg) is torch.device or (func is torch.Tensor.to and isinstance(arg, str)) for arg in args):
                args = tuple(_CPU if _is_remote(arg) else arg for arg in args)
        return func(*args, **kwargs)


def _remove_mode() -> None:
    above = []
    while any(isinstance(mode, _OnCpu) for mode in _get_current_function_mode_stack()):
        mode = _pop_mode()
        if isinstance(mode, _OnCpu):
            break
        above.append(mode)
    for mode in reversed(above):
        _push_mode(mode)


# -- what no mode intercepts

_originals: list[tuple[Any, str, Any]] = []


def _change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, make(original))


def _device_becomes_cpu(position: int, keyword: str) -> Callable[[Any], Any]:
    """Wraps a function or method: "remote" becomes "cpu" in the argument that names a device or its type."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            if _is_remote(kwargs.get(keyword)):
                kwargs[keyword] = "cpu"
            elif len(args) > position and _is_remote(args[position]):
                args = (*args[:position], "cpu", *args[position + 1 :])
            return original(*args, **kwargs)

        return changed

    return make


def _with_mode(start: Any) -> Any:
    @functools.wraps(start)
    def changed(thread: threading.Thread) -> None:
        run = thread.run  # modes belong to a thread

        def run_on_cpu() -> None:
            with _OnCpu():
                run()

        thread.run = run_on_cpu  # type: ignore[method-assign]
        start(thread)

    return changed


def _location(storage: Any, location: str) -> Any:
    """A location function of torch.load, for storages that were saved on the device or should be loaded to it."""
    return storage if not _enabled and _is_remote(location) else None


_registered = False


def _disable() -> None:
    global _registered
    if any(_C.is_connected(index) for index in range(_C.device_count())):
        raise RuntimeError(
            "remote: torch.remote.set_enabled(False) comes too late: the device was used already; call it before, or "
            f"set {_VARIABLE}=0"
        )
    if not _registered:
        _registered = True
        torch.serialization.register_package(0, lambda storage: None, _location)
    if _is_remote(torch.get_default_device()):
        torch.set_default_device("cpu")
    _change(_device.DeviceContext, "__init__", _device_becomes_cpu(1, "device"))
    _change(torch.amp.autocast_mode.autocast, "__init__", _device_becomes_cpu(1, "device_type"))
    _change(torch.amp.grad_scaler.GradScaler, "__init__", _device_becomes_cpu(1, "device"))
    _change(threading.Thread, "start", _with_mode)
    _push_mode(_OnCpu())


def set_enabled(enabled: bool) -> None:
    """Sets whether the device is used. After set_enabled(False) the same script runs on the CPU, and starts no worker.

    Code that asks torch for the device `remote` gets the CPU: `.to("remote")`, factories, `with
    torch.device("remote")`, autocast, `torch.load(map_location="remote")`, `torch.compile(backend="remote")` (which
    runs eagerly). Call this function before the device is used, or set TORCH_REMOTE_ENABLED=0; processes that are
    started later inherit it.

    Raises:
        RuntimeError: the device has been used already.
    """
    global _enabled
    with _lock:
        if enabled == _enabled:
            return
        if not enabled:
            _disable()
        else:
            for owner, name, original in reversed(_originals):
                setattr(owner, name, original)
            _originals.clear()
            _remove_mode()
            for generator in _generators:
                if generator.get_offset() == _REPLACED:
                    generator.set_offset(0)
            _generators.clear()
        os.environ[_VARIABLE] = "1" if enabled else "0"
        _enabled = enabled


def read_environment() -> None:
    """Called when the package is imported. An invalid value raises when the device is first used."""
    if os.environ.get(_VARIABLE) == "0":
        set_enabled(False)
