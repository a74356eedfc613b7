"""The checks of `torch-remote doctor` that are about the machine: its operating system, WSL, and shared memory."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from torch_remote_cli.check import Check, failed, note, ok

_GIB = 2**30
# torch's DataLoader passes batches of its worker processes through /dev/shm. Docker's default is 64 MiB.
_DATA_LOADER = _GIB // 2
_WSL_MEMORY = (
    "write memory=16GB (or what you need) below [wsl2] in %UserProfile%\\.wslconfig on Windows, then run wsl --shutdown"
)
_CONTAINER_MEMORY = "start the container with --shm-size=2g (or --ipc=host)"
# By number of the limit: the option of the shell's ulimit, and what it limits.
_LIMITS = {
    resource.RLIMIT_FSIZE: ("-f", "the size of files, and so of shared memory"),
    resource.RLIMIT_AS: ("-v", "the address space of a process"),
}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def wsl(proc: Path = Path("/proc")) -> int:
    """The version of the Windows Subsystem for Linux that this is, 1 or 2; 0 elsewhere.

    WSL2 is a virtual machine with Microsoft's build of Linux, "6.6.87.2-microsoft-standard-WSL2". WSL1 translates
    system calls, and reports the release "4.4.0-19041-Microsoft".
    """
    release = _read(proc / "sys/kernel/osrelease").strip()
    if not release:
        found = re.match(r"Linux version (\S+)", _read(proc / "version"))
        release = found[1] if found else ""
    if "microsoft-standard" in release or release.endswith("WSL2"):
        return 2
    return 1 if release.endswith("-Microsoft") else 0


def system(proc: Path = Path("/proc")) -> Check:
    """Whether torch_remote is made for this system."""
    libc, glibc = platform.libc_ver()
    found = f"{platform.system()} on {platform.machine()}, {libc} {glibc}, Python {platform.python_version()}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64") or libc != "glibc":
        return failed("system", found, "torch_remote runs on Linux on x86-64 or aarch64, with glibc")
    version = wsl(proc)
    if version == 1:
        return failed(
            "system",
            f"{found}; this is WSL1, which has no Linux kernel",
            "run wsl --set-version DISTRIBUTION 2 on Windows; wsl -l -v lists the distributions",
        )
    return ok("system", f"{found}, WSL2" if version == 2 else found)


def memory(root: Path = Path("/")) -> Iterator[Check]:
    """Whether this process and a worker can share tensors as large as the machine's memory."""
    is_wsl = wsl(root / "proc") == 2
    found = re.search(r"^MemTotal: +(\d+) kB", _read(root / "proc/meminfo"), re.M)
    total = int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    reason, fix = _shared_memory_fails(total)
    limits = _limits_below(total)
    if reason:
        yield failed("shared memory", reason, fix)
    elif limits:
        yield note(
            "shared memory",
            "; ".join(f"ulimit {option} is {value / _GIB:.2f} GiB: it limits {what}" for option, value, what in limits),
            f"ulimit {limits[0][0]} unlimited, before you start Python, for tensors above this size",
        )
    else:
        yield ok("shared memory", f"memfd works, and no ulimit is below the machine's memory, {total / _GIB:.1f} GiB")
    if is_wsl:
        yield note(
            "memory", f"WSL2 has {total / _GIB:.1f} GiB; Windows gives it half of the machine's by default", _WSL_MEMORY
        )
    yield from _dev_shm(root, is_wsl)


def _limits_below(size: int) -> list[tuple[str, int, str]]:
    """The limits of this process (option of ulimit, bytes, what it limits) that tensors of this size exceed."""
    found = []
    for limit, (option, what) in _LIMITS.items():
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and soft < size:
            found.append((option, soft, what))
    return found


def _shared_memory_fails(total: int) -> tuple[str, str]:
    """Why a small segment, made as the worker makes it, cannot be used, and what to do; empty if it can.

    Creates no pages: the segment is only sealed and mapped.
    """
    size = min(_GIB // 1024, total)
    try:
        descriptor = os.memfd_create("torch-remote-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        fix = (
            "ulimit -n 4096, before you start Python"
            if error.errno in (errno.EMFILE, errno.ENFILE)
            else "allow the system call memfd_create: the container's seccomp profile or sandbox forbids it"
        )
        return f"memfd_create: {error.strerror}", fix
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        below = _limits_below(size)
        fix = f"ulimit {below[0][0]} unlimited, before you start Python" if below else "use Linux 4.14 or newer"
        return f"a memfd of 1 MiB cannot be sized, mapped and sealed: {what}", fix
    finally:
        os.close(descriptor)
    return "", ""


def _dev_shm(root: Path, is_wsl: bool) -> Iterator[Check]:
    """The size of /dev/shm, which torch_remote does not use, but torch's DataLoader does."""
    folder = root / "dev/shm"
    try:
        found = os.statvfs(folder)
    except OSError:
        yield note("/dev/shm", "is missing: DataLoader(num_workers=...) needs it", "mount -t tmpfs tmpfs /dev/shm")
        return
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if free < _DATA_LOADER:
        full = _WSL_MEMORY if is_wsl else "delete files in /dev/shm that no process uses"
        sizes = f"{free / 2**20:.0f} of {size / 2**20:.0f} MiB"
        yield note(
            "/dev/shm",
            f"{sizes} are free: batches of DataLoader(num_workers=...) may not fit",
            full if size >= _DATA_LOADER else _CONTAINER_MEMORY,
        )
    else:
        yield ok("/dev/shm", f"{free / _GIB:.1f} of {size / _GIB:.1f} GiB are free")
