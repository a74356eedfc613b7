"""Memory of the device, which is its worker's memory.

The statistics are those of the worker's last message: they are exact after any wait, and reading them is free. Only
`mem_get_info`, `device_memory_used`, `empty_cache` and functions that reset or limit something ask the worker and wait
for it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import torch

from torch_remote import _C, enabled
from torch_remote.device._device import _Device, _host_memory, _index, device_count, get_device_properties

__all__ = [
    "OutOfMemoryError",
    "device_memory_used",
    "empty_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def __dir__() -> list[str]:
    return __all__


OutOfMemoryError = torch.OutOfMemoryError


def _existing(device: _Device) -> int:
    """The index of a device; raises if the device does not exist."""
    index = _index(device)
    _C.is_connected(index)  # raises if there is no such device
    return index


def memory_stats(device: _Device = None) -> OrderedDict[str, int]:
    """Returns statistics of the worker's memory, as torch.accelerator.memory_stats does, which documents the keys.

    The result is empty if the device has not been used yet. There is a single pool: values of `small_pool` and
    `large_pool` are 0.
    """
    index = _existing(device)
    with torch.accelerator.device_index(index):
        return torch.accelerator.memory_stats(index)


def memory_stats_as_nested_dict(device: _Device = None) -> dict[str, Any]:
    """Returns `memory_stats` as nested dicts, one level per part of a key."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def memory_allocated(device: _Device = None) -> int:
    """Returns the bytes of tensors on the worker."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: _Device = None) -> int:
    """Returns the most bytes of tensors on the worker since its start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: _Device = None) -> int:
    """Returns the bytes that the worker holds for tensors."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: _Device = None) -> int:
    """Returns the most bytes that the worker held for tensors."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


memory_cached = memory_reserved  # the name in old versions of torch.cuda
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Resets the peak values to the current ones."""
    torch.accelerator.reset_peak_memory_stats(_existing(device))


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Resets the counters of allocations, frees, retries and failures to 0."""
    torch.accelerator.reset_accumulated_memory_stats(_existing(device))


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Returns the bytes that are free for tensors, and the total bytes that the worker may use.

    Free memory is what the worker's machine has and the limit allows. Memory that the worker holds for tensors
    (`memory_reserved`) is not free.
    """
    if not enabled.is_enabled():
        return _host_memory()
    return torch.accelerator.get_memory_info(_existing(device))


def device_memory_used(device: _Device = None) -> int:
    """Returns the bytes of the worker's machine that are in use, by any process."""
    free, total = mem_get_info(device)
    return total - free


def empty_cache() -> None:
    """Makes the workers return memory that no tensor uses to their machines. Also frees the memory that this process
    caches for results of `.cpu()`."""
    _C.release_host_memory()
    for index in range(device_count()):
        if _C.is_connected(index):
            _C.memory_limits(index, empty_cache=True)


def set_per_process_memory_fraction(fraction: float, device: _Device = None) -> None:
    """Limits the memory that the worker may hold to a share of `get_device_properties().total_memory`.

    Allocations beyond the limit raise OutOfMemoryError. Memory that is already held stays. The limit also applies to
    workers that `restart()` starts.

    Raises:
        TypeError, ValueError: `fraction` is not a float from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(_existing(device), fraction)


def get_per_process_memory_fraction(device: _Device = None) -> float:
    """Returns the share that `set_per_process_memory_fraction` set; 1.0 by default."""
    return _C.memory_fraction(_existing(device))


# -- pinned memory of this process ------------------------------------------------------------------------------------


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns statistics of this process's pinned memory (`tensor.pin_memory()`): blocks and bytes. None of it is
    cached."""
    return _C.host_memory_stats()


def host_memory_stats() -> OrderedDict[str, int]:
    """Returns the same statistics with keys such as "allocated_bytes.current"."""
    return OrderedDict(
        (f"{kind}.{name}", value)
        for kind, values in sorted(host_memory_stats_as_nested_dict().items())
        for name, value in sorted(values.items())
    )


def reset_accumulated_host_memory_stats() -> None:
    """Resets the counters of allocations and frees to 0."""
    _C.reset_host_memory_stats(False)


def reset_peak_host_memory_stats() -> None:
    """Resets the peak values to the current ones."""
    _C.reset_host_memory_stats(True)


# -- as text ----------------------------------------------------------------------------------------------------------


def _bytes(count: int) -> str:
    for unit in ("B  ", "KiB", "MiB", "GiB"):
        if count < 768 << 10 or unit == "GiB":
            break
        count >>= 10
    return f"{count:6d} {unit}"


def _count(count: int) -> str:
    for unit in (" ", "K", "M"):
        if count < 750_000 or unit == "M":
            break
        count //= 1000
    return f"{count:7d} {unit} "


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:
    """Returns the statistics as a table: current, peak and accumulated values.

    Args:
        device: default: the current one.
        abbreviated: omits the statistics of the worker's allocator.
    """
    index = _existing(device)
    properties = get_device_properties(index)
    free, total = mem_get_info(index)
    stats = defaultdict(int, memory_stats(index))  # empty for a device that is disabled
    rows = [("Allocated memory", "allocated_bytes", _bytes), ("Allocations", "allocation", _count)]
    if not abbreviated:
        rows[1:1] = [("Reserved memory", "reserved_bytes", _bytes)]
        rows += [("Reserved segments", "segment", _count)]
    line, double = "-" * 75, "=" * 75
    lines = [
        double,
        f"{f'memory of remote:{index}, {properties.name}':^75.75}",
        f"{properties.worker:^75.75}",
        line,
        f"{f'limit {_bytes(total).strip()}, free {_bytes(free).strip()}':^75}",
        f"  OOMs: {stats['num_ooms']:<29d}|  retries: {stats['num_alloc_retries']:<26d}",
        double,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for title, key, text in rows:
        values = (text(stats[f"{key}.all.{part}"]) for part in ("current", "peak", "allocated", "freed"))
        lines += [line, f" {title:<21} | {' | '.join(values)} "]
    lines.append(double)
    return "".join(f"|{text:<75}|\n" for text in lines)
