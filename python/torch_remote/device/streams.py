"""Streams and events. All streams of a device run in program order, as if ops ran one by one."""

from __future__ import annotations

from typing import Any

import torch

from torch_remote import _C, enabled
from torch_remote.device._device import _Device, _index

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


def __dir__() -> list[str]:
    return __all__


class Stream(torch.Stream):
    """A stream of a device.

    A device executes all calls in program order, whatever their streams. Every program with correct events allows this
    order. So `wait_stream`, `wait_event` and `record_stream` do nothing, and waiting for one stream waits for all.
    """

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("remote", _index(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the lowest and the highest priority; all streams have the same one."""
        return (0, 0)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, enabled.HostEvent):
            return True
        return isinstance(instance, torch.Event) and instance.device.type == "remote"


class Event(metaclass=_EventType):
    """A point in program order: a torch.Event of this device.

    With `enable_timing`, `record()` sends the recorded work, and the worker notes the time when it reaches the event.
    `elapsed_time` is the time between two such points on the worker. Without `enable_timing`, an event is free until it
    is queried or waited for; that may also wait for later calls.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        if not enabled.is_enabled():
            return enabled.HostEvent()  # type: ignore[return-value]
        return torch.Event(
            torch.device("remote", 0), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def _numbered(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: _Device = None) -> Stream:
    """Returns the calling thread's stream of a device."""
    return _numbered(torch.accelerator.current_stream(torch.device("remote", _index(device))))


def default_stream(device: _Device = None) -> Stream:
    """Returns the stream that a device uses by default."""
    here = current_stream(device)
    return Stream(stream_id=0, device_index=here.device_index, device_type=here.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Sets the calling thread's stream, and makes its device the current one. None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream and its device the current ones. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, Stream | None]] = []

    def __enter__(self) -> None:
        there = None if self.stream is None else current_stream(self.stream.device)
        self._previous.append((_C.current_device(), there))
        set_stream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        device, there = self._previous.pop()
        set_stream(there)
        _C.set_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes a stream the current one; see StreamContext."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Returns False: nothing is captured. A step that was seen before is one message anyway."""
    return False


# -- which line waits -------------------------------------------------------------------------------------------------

_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets what happens at operations that wait for the worker.

    With "warn" or 1, an op that waits (`.item()`, `.cpu()`, printing, `nonzero`, an `if` on a tensor) warns. With
    "error" or 2, it raises RuntimeError instead of waiting. Both name the user's line. "default" or 0 does neither.
    Functions whose purpose is to wait, such as `synchronize()`, never warn or raise.

    Raises:
        RuntimeError: the mode is unknown.
    """
    mode = _MODES.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if mode is None or mode not in _MODES.values():
        raise RuntimeError(
            f"torch.remote.set_sync_debug_mode: invalid value of debug_mode {debug_mode!r}, expected one of `default`, "
            "`warn`, `error`, or 0, 1, 2"
        )
    _C.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """Returns the mode: 0, 1 or 2; see set_sync_debug_mode."""
    return _C.sync_debug_mode()
