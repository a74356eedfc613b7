"""`torch.remote`: the device module, with what users of `torch.cuda` expect."""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

from torch_remote import _C
from torch_remote.benchmark import benchmark
from torch_remote.errors import UnexpectedCompile, WorkerLost
from torch_remote.explanation import explain
from torch_remote.graphs import Graph, from_text, trace
from torch_remote.profiler import profile

__all__ = [
    "Event",
    "Graph",
    "Stream",
    "UnexpectedCompile",
    "WorkerLost",
    "benchmark",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "expect_no_compile",
    "explain",
    "from_text",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "load_exported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "profile",
    "reset_peak_memory_stats",
    "reset_stats",
    "restart",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stats",
    "stream",
    "synchronize",
    "trace",
]

_Device = torch.device | str | int | None


def _index(device: _Device) -> int:
    """The index of a device given as torch.device, "remote:0", a number or None (the current one)."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "remote":
        raise ValueError(f"Expected a remote device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def load_exported(program: Any, device: torch.device | str = "remote") -> torch.nn.Module:
    """Puts an ExportedProgram, or a file of one, on the device: a module that is called as the exported one was.

    See torch_remote.exported.load_exported.
    """
    from torch_remote.exported import load_exported  # torch.export takes a while to import

    return load_exported(program, device)


_initialized = True  # torch.utils.checkpoint asks: this device needs no set-up

# -- the device -------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    """True: a worker on this machine is always to be had."""
    return True


def is_initialized() -> bool:
    """True if the device can be used: it needs no set-up (a worker starts on first use)."""
    return not _is_in_bad_fork()


def init() -> None:
    """Does nothing but check that this process may use the device."""
    _lazy_init()


def _lazy_init() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize remote in forked subprocess. To use remote with multiprocessing, you must use the "
            "'spawn' start method"
        )


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def device_count() -> int:
    """How many devices there are."""
    return _C.device_count()


def current_device() -> int:
    """Index of the current device of this thread."""
    return _C.current_device()


def set_device(device: _Device) -> None:
    """Makes a device the current one of this thread."""
    _C.set_device(_index(device))


class device:  # noqa: N801 (torch.cuda's name)
    """Context manager: another current device. A negative index or None changes nothing."""

    def __init__(self, device: _Device) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> "device":
        self.prev_idx = _C.current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: the device of a tensor or storage as the current one."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "remote" else None)


def get_device_properties(device: _Device = None) -> types.SimpleNamespace:
    """Name of the device and of its worker."""
    info = _C.worker_info(_index(device))
    description = info["description"] if info else "not started"
    return types.SimpleNamespace(name="remote", worker=description, type="cpu", multi_processor_count=1)


def get_device_name(device: _Device = None) -> str:
    """The device's name."""
    return get_device_properties(device).name


def synchronize(device: _Device = None) -> None:
    """Waits until everything recorded so far has been done; raises what went wrong."""
    _C.synchronize(_index(device))


def restart(device: _Device = None) -> None:
    """Ends the device's worker, if it still lives; the next use starts another one.

    Tensors of the old worker have lost their contents: using one raises.
    """
    _C.restart(_index(device))


# -- streams: there is one, program order -----------------------------------------------------------------------------


class Stream(torch.Stream):
    """A stream. All of a device's streams are the same one: program order."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("remote", _index(device)), priority=priority)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "remote"


class Event(metaclass=_EventType):
    """A point in program order: a torch.Event of this device. Waiting for it waits for the device."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event(
            torch.device("remote", 0), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def current_stream(device: _Device = None) -> Stream:
    """The device's stream."""
    return Stream(device)


def default_stream(device: _Device = None) -> Stream:
    """The device's stream."""
    return Stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream current: they are all the same one."""


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Context manager: a stream as the current one."""
    yield


# -- random numbers ---------------------------------------------------------------------------------------------------


def _generator(device: _Device) -> torch.Generator:
    return _C.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds all devices' generators."""
    for i in range(device_count()):
        _generator(i).manual_seed(seed)


def seed() -> int:
    """Seeds the current device's generator with a random number, and returns it."""
    return _generator(None).seed()


def seed_all() -> None:
    """Seeds all devices' generators with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The current device's seed."""
    return _generator(None).initial_seed()


def get_rng_state(device: _Device = "remote") -> torch.Tensor:
    """The generator's state: a byte tensor (seed and position)."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: _Device = "remote") -> None:
    """Sets the generator's state."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the states of all devices."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_C.default_generator(i) for i in range(device_count()))
    raise AttributeError(f"module 'torch.remote' has no attribute '{name}'")


# -- mixed precision --------------------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("remote") takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True."""
    return True


# -- memory, on the worker --------------------------------------------------------------------------------------------


def memory_stats(device: _Device = None) -> dict[str, Any]:
    """Statistics of the worker's memory; torch.accelerator.memory_stats with this device."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device: _Device = None) -> int:
    """Bytes in tensors on the worker, as of its last message."""
    return stats()["worker_bytes"]


def max_memory_allocated(device: _Device = None) -> int:
    """The most bytes that were in tensors on the worker."""
    return stats()["worker_peak_bytes"]


def memory_reserved(device: _Device = None) -> int:
    """Bytes that the worker holds for tensors, as of its last message."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: _Device = None) -> int:
    """The most bytes that the worker held for tensors."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Starts the peak anew."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def empty_cache() -> None:
    """Waits for the worker, so that what was freed is free there too."""
    if _C.is_connected(_index(None)):
        synchronize()


# -- what the recorder does -------------------------------------------------------------------------------------------


def stats() -> dict[str, int]:
    """Counters since start or `reset_stats()`, over all devices.

    ops_recorded; flushes (traces sent), programs_built (misses), program_hits; kernels_compiled; client_fallbacks (ops
    that ran in this process instead); round_trips (waits for the worker); bytes_sent, bytes_received (control),
    bytes_uploaded, bytes_downloaded (tensors); worker_bytes, worker_peak_bytes (as of the worker's last message).
    """
    return _C.stats()


def reset_stats() -> None:
    """Sets the counters to 0."""
    _C.reset_stats()


@contextlib.contextmanager
def expect_no_compile(device: _Device = None) -> Iterator[None]:
    """Raises UnexpectedCompile at its end if a program had to be built meanwhile.

    The message names the first op that differs from the known programs, and its line. What is recorded but not yet
    sent when the block ends is not judged (end it with an `.item()` or `synchronize()`).
    """
    index = _index(device)
    _C.expect_no_compile(index, True)
    try:
        yield
    finally:
        _C.expect_no_compile(index, False)
    message = _C.take_unexpected_compile(index)
    if message:
        raise UnexpectedCompile(f"torch.remote.expect_no_compile: {message}")
