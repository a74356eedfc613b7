"""Streams and events. A device has one stream, program order: ops run as if one by one, in the order of their calls."""

from __future__ import annotations

from typing import Any

import torch

from torch_remote import _C
from torch_remote.remote._device import _Device, _index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_sync_debug_mode",
    "is_current_stream_capturing",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
]


class Stream(torch.Stream):
    """A stream. All of a device's streams are the same one: program order."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("remote", _index(device)), priority=priority)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "remote"


class Event(metaclass=_EventType):
    """A point in program order: a torch.Event of this device. Waiting for it waits for the device."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        return torch.Event(
            torch.device("remote", 0), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def current_stream(device: _Device = None) -> Stream:
    """The device's stream."""
    return Stream(device)


def default_stream(device: _Device = None) -> Stream:
    """The device's stream."""
    return Stream(device)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream current, and with it its device; None changes nothing."""
    if stream is not None:
        _C.set_device(_index(stream.device))


class StreamContext:
    """Context manager: a stream as the current one, and its device as the current device; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[int] = []

    def __enter__(self) -> None:
        self._previous.append(_C.current_device())
        set_stream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        _C.set_device(self._previous.pop())


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: a stream as the current one; see StreamContext."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """False: nothing is captured; every step that was seen before is one message anyway."""
    return False


# -- which line waits -------------------------------------------------------------------------------------------------

_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Says where code waits for the worker.

    With "warn" or 1 an op that waits (`.item()`, `.cpu()`, printing, `nonzero`, an `if` on a tensor) warns, and with
    "error" or 2 it raises RuntimeError instead of waiting; both name the user's line. "default" or 0: neither. What is
    there to wait, as `synchronize()`, does neither.

    Raises:
        RuntimeError: no such mode.
    """
    mode = _MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if mode is None or mode not in _MODES.values():
        raise RuntimeError(
            f"torch.remote.set_sync_debug_mode: invalid value of debug_mode {debug_mode!r}, expected one of `default`, "
            "`warn`, `error`, or 0, 1, 2"
        )
    _C.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """The mode: 0, 1 or 2, see set_sync_debug_mode."""
    return _C.sync_debug_mode()
