"""Which devices there are, what they are, and which one is the current one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_remote import _C, enabled

_Device = torch.device | str | int | None


def _index(device: _Device) -> int:
    """The index of a device given as torch.device, "remote:0", a number or None (the current one); it may not exist."""
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type == "cpu" and not enabled.is_enabled():  # of a tensor that would be on the device
        return _C.current_device()
    if device.type != "remote":
        raise ValueError(f"Expected a remote device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


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

    def __enter__(self) -> device:
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


def synchronize(device: _Device = None) -> None:
    """Waits until everything recorded so far has been done; raises what went wrong and was not raised yet."""
    _C.synchronize(_index(device))


def cancel(device: _Device = None) -> None:
    """Has the worker drop what was recorded and is not done: after a Ctrl-C, so that the next read need not wait.

    Reading a tensor that dropped work would have made raises; what it would have written in place keeps its old
    contents. Overwriting repairs, as after any failure.
    """
    _C.cancel(_index(device))


def restart(device: _Device = None) -> None:
    """Ends the device's worker, if it still lives; the next use starts another one.

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
    """What becomes of a device whose worker is lost, for workers that it is connected to from now on.

    Args:
        mode: "replay": another worker is started, and what was sent since the last checkpoint is done again there, so
            that all tensors are what they were, bit for bit. None: the next wait raises WorkerLost.
        folder: where what is sent is kept (files without a name, nothing is left of them); default: the system's folder
            for temporary files.
        limit: bytes of messages that are kept at most, 1048576 or "500M" or "4G", beside a checkpoint (a copy of all
            tensors). When half of it is used, a checkpoint is made beside the script's work.
        every: seconds after which one is made in any case: what follows it takes about as long to do again.
        device: default: the current one.
    """
    if mode not in ("replay", None):
        raise ValueError(f"remote: set_restore knows 'replay' and None, not {mode!r}")
    if every <= 0:
        raise ValueError(f"remote: every={every!r} is no time between checkpoints; give seconds")
    _C.set_restore(_index(device), mode == "replay", os.fspath(folder or ""), _bytes(limit), max(1, int(every)))


def _bytes(size: int | str) -> int:
    """A number of bytes as it is written: 500M."""
    text = str(size).strip().upper()
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or not 0 < int(digits) << unit < 1 << 63:
        raise ValueError(f"remote: {size!r} is no number of bytes; write it like 500000000, '500M' or '4G'")
    return int(digits) << unit


def checkpoint(device: _Device = None) -> None:
    """Keeps what all of the device's tensors hold, for `set_restore("replay")`: a lost worker is rebuilt from here.

    Waits until everything recorded so far is done, and raises what went wrong, as `synchronize` does.
    """
    _C.checkpoint(_index(device))


def restored(device: _Device = None) -> int:
    """How many workers the device lost and had replaced (`set_restore("replay")`) since it was connected."""
    return _C.times_restored(_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """What a device's worker computes on."""

    name: str  # of the processor, or the GPU
    type: str  # "cpu" or "cuda"
    total_memory: int  # bytes that the worker may use: its machine's, its control group's, or its --memory-limit
    multi_processor_count: int  # cores that the worker may use
    worker: str  # runner, process and connection, for people
    # The compute capability of a GPU; a CPU has none.
    major: int = 0
    minor: int = 0


def get_device_properties(device: _Device = None) -> DeviceProperties:
    """What the device is. Starts its worker if there is none."""
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
    """Bytes of this machine that are free, and all."""
    free, total = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    return free, total


def get_device_name(device: _Device = None) -> str:
    """The name of the processor or GPU that the device's worker computes on."""
    return get_device_properties(device).name


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """The CUDA compute capability; (0, 0) of a worker that computes on a CPU.

    `torch.accelerator.get_device_capability()` says which dtypes it has.
    """
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: _Device, peer_device: _Device) -> bool:
    """False: workers do not reach each other's memory. Copies between devices are messages (`copy_paths()`)."""
    for index in (_index(device), _index(peer_device)):
        _C.is_connected(index)  # raises if there is no such device
    return False


def _process(device: _Device) -> int | None:
    """The pid of the device's worker if that is a process of this machine's, or None."""
    info = _C.worker_info(_index(device))
    return info["process"] if info and info["process"] > 0 else None


def utilization(device: _Device = None) -> int:
    """How busy the device's worker is, in percent of its cores; measured for a tenth of a second.

    Raises:
        RuntimeError: the worker is no process of this machine's.
    """
    properties = get_device_properties(device)
    pid = _process(device)
    if pid is None:
        raise RuntimeError(
            f"torch.remote.utilization: the worker ({properties.worker}) is no process of its own on this machine; ask "
            "its machine (top)"
        )
    began, used = time.monotonic(), _processor_time(pid)
    time.sleep(0.1)
    share = (_processor_time(pid) - used) / (time.monotonic() - began) / properties.multi_processor_count
    return min(100, round(100 * share))


def _processor_time(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


def list_gpu_processes(device: _Device = None) -> str:
    """Whose tensors are on the device's worker, as text: this process's, which has the worker for itself."""
    index = _index(device)
    properties = get_device_properties(index)
    mega_bytes = torch.accelerator.memory_reserved(index) / (1 << 20)
    return (
        f"remote:{index} ({properties.worker})\n"
        f"process {os.getpid():>10d} uses {mega_bytes:>12.3f} MB of the worker's memory"
    )
