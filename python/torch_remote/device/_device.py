"""Which devices exist, what they are, and which one is current."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_remote import _C, enabled

_Device = torch.device | str | int | None


def _index(device: _Device) -> int:
    """The index of a device given as torch.device, "remote:0", a number or None (the current one). The device may not
    exist."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type == "cpu" and not enabled.is_enabled():  # the device of a tensor that would be on the remote device
        return _C.current_device()
    if device.type != "remote":
        raise ValueError(f"Expected a remote device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def is_available() -> bool:
    """Returns True: a worker can always be started on this machine."""
    return True


def is_initialized() -> bool:
    """Returns True if the device can be used. It needs no set-up: a worker starts on first use."""
    return not _is_in_bad_fork()


def init() -> None:
    """Checks that this process may use the device. Otherwise does nothing."""
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
    """Returns the number of devices."""
    return _C.device_count()


def current_device() -> int:
    """Returns the index of this thread's current device."""
    return _C.current_device()


def set_device(device: _Device) -> None:
    """Sets this thread's current device."""
    _C.set_device(_index(device))


class device:  # noqa: N801 (torch.cuda's name)
    """Context manager that changes the current device. A negative index or None changes nothing."""

    def __init__(self, device: _Device) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = _C.current_device()
        if self.idx >= 0:
            _C.set_device(self.idx)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _C.set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager that makes the device of a tensor or storage the current one."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device.index if obj.device.type == "remote" else None)


def synchronize(device: _Device = None) -> None:
    """Waits until everything recorded so far is done. Raises an error that was not raised yet."""
    _C.synchronize(_index(device))


def cancel(device: _Device = None) -> None:
    """Makes the worker drop recorded work that is not done. After a Ctrl-C, the next read then need not wait.

    Reading a result of dropped work raises. Tensors that dropped work would have modified in place keep their old
    contents. A tensor can be used again after it is overwritten, as after any failure.
    """
    _C.cancel(_index(device))


def restart(device: _Device = None) -> None:
    """Ends the device's worker if it still runs; the next use starts another one.

    Tensors of the old worker have lost their contents: reading one raises until it is overwritten (copy_, zero_,
    load_state_dict).
    """
    _C.restart(_index(device))


def set_restore(
    mode: str | None = "replay",
    folder: str | os.PathLike[str] | None = None,
    limit: int | str = "1G",
    every: float = 300,
    device: _Device = None,
) -> None:
    """Sets what happens when the device's worker is lost, for all later connections.

    Args:
        mode: "replay": another worker is started and repeats all work since the last checkpoint, so that all tensors
            have the same contents, bit for bit. None: the next wait raises WorkerLost.
        folder: where messages are stored, in files without a name that vanish with this process. Default: the system's
            folder for temporary files.
        limit: the most bytes of stored messages, such as 1048576, "500M" or "4G", in addition to a checkpoint (a copy
            of all tensors). When half of it is used, a checkpoint is made in the background.
        every: seconds after which a checkpoint is made in any case. The work after it takes about as long to repeat.
        device: default: the current one.

    Raises:
        ValueError: the mode, `limit` or `every` is invalid.
    """
    if mode not in ("replay", None):
        raise ValueError(f"remote: set_restore accepts 'replay' and None, got {mode!r}")
    if every <= 0:
        raise ValueError(f"remote: every={every!r} is not a time between checkpoints; give seconds")
    _C.set_restore(_index(device), mode == "replay", os.fspath(folder or ""), _bytes(limit), max(1, int(every)))


def _bytes(size: int | str) -> int:
    """The number of bytes of 1048576 or "500M"."""
    text = str(size).strip().upper()
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or not 0 < int(digits) << unit < 1 << 63:
        raise ValueError(f"remote: {size!r} is not a number of bytes; write it like 500000000, '500M' or '4G'")
    return int(digits) << unit


def checkpoint(device: _Device = None) -> None:
    """Copies the contents of all of the device's tensors for `set_restore("replay")`: a lost worker is rebuilt from
    them.

    Waits until everything recorded so far is done, and raises errors as `synchronize` does.
    """
    _C.checkpoint(_index(device))


def restored(device: _Device = None) -> int:
    """Returns how many lost workers of the device were replaced (`set_restore("replay")`) since it was connected."""
    return _C.times_restored(_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """The hardware that a device's worker computes on."""

    name: str  # the name of the processor or GPU
    type: str  # "cpu" or "cuda"
    # bytes that the worker may use: the limit of its machine, of its control group, or --memory-limit
    total_memory: int
    multi_processor_count: int  # number of cores that the worker may use
    worker: str  # runner, process and connection, for people
    # The compute capability of a GPU; 0 for a CPU.
    major: int = 0
    minor: int = 0


def get_device_properties(device: _Device = None) -> DeviceProperties:
    """Returns the properties of a device. Starts its worker if there is none."""
    if not enabled.is_enabled():
        return DeviceProperties(
            "CPU", "cpu", _host_memory()[1], torch.get_num_threads(), "none: the device is disabled"
        )
    machine = _C.machine(_index(device))
    sm = next((int(target[3:]) for target in machine["targets"] if target.startswith("sm_")), 0)
    return DeviceProperties(
        machine["processor"],
        "cuda" if sm else "cpu",
        machine["memory"],
        machine["cores"],
        machine["description"],
        *divmod(sm, 10),
    )


def _host_memory() -> tuple[int, int]:
    """This machine's free and total memory, in bytes."""
    free, total = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    return free, total


def get_device_name(device: _Device = None) -> str:
    """Returns the name of the processor or GPU that the device's worker computes on."""
    return get_device_properties(device).name


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """Returns the CUDA compute capability; (0, 0) for a worker that computes on a CPU.

    `torch.accelerator.get_device_capability()` lists the supported dtypes.
    """
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: _Device, peer_device: _Device) -> bool:
    """Returns False: workers cannot access each other's memory. Copies between devices are messages
    (`copy_paths()`)."""
    for index in (_index(device), _index(peer_device)):
        _C.is_connected(index)  # raises if there is no such device
    return False


def _process(device: _Device) -> int | None:
    """The pid of the device's worker if it is a process of this machine, otherwise None."""
    info = _C.worker_info(_index(device))
    return info["process"] if info and info["process"] > 0 else None


def utilization(device: _Device = None) -> int:
    """Returns how busy the device's worker is, in percent of its cores, measured for 0.1 seconds.

    Raises:
        RuntimeError: the worker is not a process of its own on this machine.
    """
    properties = get_device_properties(device)
    pid = _process(device)
    if pid is None:
        raise RuntimeError(
            f"torch.remote.utilization: the worker ({properties.worker}) is not a separate process on this machine; "
            "measure it on its machine (top)"
        )
    began, used = time.monotonic(), _processor_time(pid)
    time.sleep(0.1)
    share = (_processor_time(pid) - used) / (time.monotonic() - began) / properties.multi_processor_count
    return min(100, round(100 * share))


def _processor_time(pid: int) -> float:
    """The CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


def list_gpu_processes(device: _Device = None) -> str:
    """Returns, as text, the process with tensors on the device's worker: this one, because a worker serves one
    process."""
    index = _index(device)
    properties = get_device_properties(index)
    mega_bytes = torch.accelerator.memory_reserved(index) / (1 << 20)
    return (
        f"remote:{index} ({properties.worker})\n"
        f"process {os.getpid():>10d} uses {mega_bytes:>12.3f} MB of the worker's memory"
    )
