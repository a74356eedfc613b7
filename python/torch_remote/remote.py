"""`torch.remote`: the device module, with what users of `torch.cuda` expect (docs/python-api.md)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torch_remote import _C
from torch_remote.device import amp, memory, random, streams
from torch_remote.device._absent import MISSING_NAMES
from torch_remote.device._device import (
    DeviceProperties,
    _Device,
    _index,
    _is_in_bad_fork,  # noqa: F401 (torch asks for it)
    _lazy_init,  # noqa: F401 (torch asks for it)
    can_device_access_peer,
    cancel,
    checkpoint,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    list_gpu_processes,
    restart,
    restored,
    set_device,
    set_restore,
    synchronize,
    utilization,
)
from torch_remote.device.amp import get_amp_supported_dtype, is_bf16_supported, is_tf32_supported
from torch_remote.device.memory import *  # noqa: F403
from torch_remote.device.random import *  # noqa: F403
from torch_remote.device.streams import *  # noqa: F403
from torch_remote.enabled import is_enabled, set_enabled
from torch_remote.errors import UnexpectedCompile, WorkerLost
from torch_remote.graphs import Graph, from_text, trace
from torch_remote.profiling import nvtx
from torch_remote.profiling.benchmark import benchmark
from torch_remote.profiling.explanation import explain
from torch_remote.profiling.profiler import profile
from torch_remote.shadow import ShadowReport, ShadowWarning, shadow, shadow_report

__all__ = [
    "CopyPath",
    "DeviceProperties",
    "Graph",
    "ShadowReport",
    "ShadowWarning",
    "UnexpectedCompile",
    "WorkerLost",
    "add_machine",
    "amp",
    "benchmark",
    "can_device_access_peer",
    "cancel",
    "checkpoint",
    "copy_paths",
    "current_device",
    "default_generators",  # noqa: F405 (by __getattr__)
    "device",
    "device_count",
    "device_of",
    "expect_no_compile",
    "explain",
    "from_text",
    "function",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_enabled",
    "is_initialized",
    "is_tf32_supported",
    "list_gpu_processes",
    "load_exported",
    "load_file",
    "memory",
    "nvtx",
    "profile",
    "random",
    "reset_stats",
    "restart",
    "restored",
    "set_device",
    "set_enabled",
    "set_restore",
    "shadow",
    "shadow_report",
    "stats",
    "streams",
    "synchronize",
    "trace",
    "utilization",
]
__all__ += memory.__all__
__all__ += random.__all__
__all__ += streams.__all__


_initialized = True  # torch.utils.checkpoint reads it: this device needs no set-up


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_C.default_generator(i) for i in range(device_count()))
    why = f": {MISSING_NAMES[name]}" if name in MISSING_NAMES else ""
    raise AttributeError(f"module 'torch.remote' has no attribute '{name}'{why}")


def __dir__() -> list[str]:
    return __all__  # completion offers no imported names


def add_machine(machine: Any, **arguments: Any) -> torch.device:
    """Starts a machine and returns its first device. `machine` is a URL ("ssh://user@host", "tcp://host:4500"), a
    provider's name ("local") or a torch_remote.RemoteMachine; the arguments are those of RemoteMachine."""
    from torch_remote.providers import add_machine

    return add_machine(machine, **arguments)


def load_exported(program: Any, device: torch.device | str = "remote") -> torch.nn.Module:
    """Puts an ExportedProgram, or a file of one, on the device. Returns a module that is called like the exported one.

    See torch_remote.compile.exported.load_exported.
    """
    from torch_remote.compile.exported import load_exported  # torch.export takes a while to import

    return load_exported(program, device)


def function(function: Any = None, /, **options: Any) -> Any:
    """torch_remote.function: makes a Python function run where the worker is, with tensors that stay there."""
    from torch_remote.function import function as make

    return make(function, **options)


def load_file(
    filename: str | os.PathLike[str],
    device: _Device = None,
    dtype: torch.dtype | None = None,
    *,
    progress: bool | None = None,
    on_worker: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Puts the tensors of a safetensors file, or of the shards that an index names, on a device. This process holds no
    second copy of them. A worker that may read files reads them itself. Floating-point tensors become `dtype` on
    the way. See torch_remote.weights.load_file."""
    from torch_remote.weights import load_file

    return load_file(filename, device, dtype, progress=progress, on_worker=on_worker)


# -- what the recorder does -------------------------------------------------------------------------------------------


def stats() -> dict[str, int]:
    """Returns counters since start or `reset_stats()`, over all devices and all of their workers.

    ops_recorded: recorded ops. flushes: traces sent. programs_built: misses of the program cache. program_hits: hits.
    programs_dropped: programs dropped because there were too many. programs_kept: programs that exist now.

    kernels_compiled: compiled kernels. groups_without_kernel: groups of ops that no kernel supports. They run op by op;
    TORCH_REMOTE_WORKER_LOG=debug logs the reasons. client_fallbacks: ops that ran in this process instead.

    direct_copies, relayed_copies: copies between devices from worker to worker, and through this process;
    `copy_paths()` has the reasons. compiled_graphs, compiled_graph_splits: graphs of torch.compile, and their programs
    and ops outside of programs, beyond one per graph.

    connections: handshakes that were waited for. round_trips: answers that were waited for. back_pressure_waits: waits
    because too much was in flight. bytes_sent, bytes_received: control messages. bytes_uploaded, bytes_downloaded:
    tensors. worker_bytes, worker_peak_bytes: memory of the current workers, as of their last messages.
    """
    return _C.stats()


class CopyPath(NamedTuple):
    """How copies from one device to another went."""

    source: torch.device
    destination: torch.device
    direct: int  # number of copies from worker to worker
    relayed: int  # number of copies through this process
    why: str  # the reason for the last relayed copy; empty: there was none
    way: str  # of the last direct copy: "from GPU to GPU", "over the network", and the reason; empty: there was none


def copy_paths() -> list[CopyPath]:
    """Returns how copies between devices went since start or `reset_stats()`, for each pair with copies."""
    return [
        CopyPath(torch.device("remote", source), torch.device("remote", destination), direct, relayed, why, way)
        for source, destination, direct, relayed, why, way in _C.copy_paths()
    ]


def reset_stats() -> None:
    """Sets the counters to 0."""
    _C.reset_stats()


@contextmanager
def expect_no_compile(device: _Device = None) -> Iterator[None]:
    """Raises UnexpectedCompile at the end of the block if a program had to be built in it.

    The message names the first op that differs from the known programs, and its line. Ops that are recorded but not yet
    sent when the block ends do not count (end the block with an `.item()` or `synchronize()`).
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
