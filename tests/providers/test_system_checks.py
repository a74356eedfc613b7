"""The checks of torch-remote doctor about the machine, with the files that other machines have in /proc."""

import errno
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from torch_remote_cli import system_checks

GIB = 2**30
DEBIAN = "6.1.0-28-amd64"
WSL2 = "6.6.87.2-microsoft-standard-WSL2"
WSL1 = "4.4.0-22621-Microsoft"
VERSIONS = {
    DEBIAN: "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP",
    WSL2: "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@439a258ad544) (gcc (GCC) 11.2.0) #1 SMP",
    WSL1: "Linux version 4.4.0-22621-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0) #1-Microsoft",
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes the root of a machine with this release of the kernel, memory, and size of /dev/shm."""

    def make(release, memory=16 * GIB, shm=8 * GIB, used=0):
        proc = tmp_path / "proc"
        (proc / "sys/kernel").mkdir(parents=True, exist_ok=True)
        (proc / "sys/kernel/osrelease").write_text(release + "\n")
        (proc / "version").write_text(VERSIONS.get(release, f"Linux version {release}") + "\n")
        (proc / "meminfo").write_text(f"MemTotal:       {memory // 1024} kB\nMemFree:        1024 kB\n")
        sizes = SimpleNamespace(f_frsize=4096, f_blocks=shm // 4096, f_bavail=(shm - used) // 4096)
        monkeypatch.setattr(os, "statvfs", lambda folder: sizes)
        return tmp_path

    return make


def by_name(checks):
    return {check["check"]: check for check in checks}


@pytest.mark.parametrize(
    ("release", "version"),
    [
        (DEBIAN, 0),
        (WSL2, 2),
        ("4.19.128-microsoft-standard", 2),
        ("6.6.114.1-microsoft-standard-WSL2+", 2),
        (WSL1, 1),
        ("6.8.0-1012-azure", 0),
        ("5.15.90.1-microsoft-custom", 0),  # built by a user, for WSL2
    ],
)
def test_wsl_is_recognized_by_the_release_of_the_kernel(machine, release, version):
    proc = machine(release) / "proc"
    assert system_checks.wsl(proc) == version
    (proc / "sys/kernel/osrelease").unlink()
    assert system_checks.wsl(proc) == version, "by /proc/version alone"


def test_wsl1_is_refused_by_name(machine):
    check = system_checks.system(machine(WSL1) / "proc")
    assert check["state"] == "failed" and "WSL1" in check["found"] and "wsl --set-version" in check["fix"]


def test_wsl2_is_linux(machine):
    check = system_checks.system(machine(WSL2) / "proc")
    assert check["state"] == "ok" and check["found"].endswith(", WSL2")
    assert "WSL" not in system_checks.system(machine(DEBIAN) / "proc")["found"]


def test_memory_of_wsl2_is_set_in_wslconfig(machine):
    check = by_name(system_checks.memory(machine(WSL2, memory=6 * GIB)))["memory"]
    assert check["state"] == "note" and "6.0 GiB" in check["found"]
    assert ".wslconfig" in check["fix"] and "wsl --shutdown" in check["fix"]
    assert "memory" not in by_name(system_checks.memory(machine(DEBIAN)))


@pytest.mark.parametrize(
    ("release", "shm", "used", "fix"),
    [
        (DEBIAN, 8 * GIB, 0, None),
        (DEBIAN, GIB // 16, 0, "--shm-size"),  # Docker's default
        (WSL2, GIB // 16, 0, "--shm-size"),  # of a container on WSL2
        (WSL2, 3 * GIB, 3 * GIB - 4096, ".wslconfig"),
        (DEBIAN, 3 * GIB, 3 * GIB - 4096, "delete files"),
    ],
)
def test_small_dev_shm(machine, release, shm, used, fix):
    check = by_name(system_checks.memory(machine(release, shm=shm, used=used)))["/dev/shm"]
    if fix is None:
        assert check["state"] == "ok" and "8.0 of 8.0 GiB" in check["found"]
    else:
        assert check["state"] == "note" and fix in check["fix"] and "DataLoader" in check["found"]


def test_missing_dev_shm(machine, monkeypatch):
    root = machine(DEBIAN)

    def missing(folder):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(folder))

    monkeypatch.setattr(os, "statvfs", missing)
    assert "is missing" in by_name(system_checks.memory(root))["/dev/shm"]["found"]


def test_shared_memory_of_this_machine_works(machine):
    assert by_name(system_checks.memory(machine(DEBIAN)))["shared memory"]["state"] == "ok"


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.EPERM, "seccomp"), (errno.ENOSYS, "seccomp"), (errno.EMFILE, "ulimit -n")]
)
def test_forbidden_memfd(machine, monkeypatch, number, fix):
    def forbidden(name, flags):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", forbidden)
    check = by_name(system_checks.memory(machine(DEBIAN)))["shared memory"]
    assert check["state"] == "failed" and os.strerror(number) in check["found"] and fix in check["fix"]


# Sets a real limit of its process, and prints the check.
LIMITED = """
import json, resource, sys
from pathlib import Path
from torch_remote_cli import system_checks

resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]), resource.RLIM_INFINITY))
(check,) = [check for check in system_checks.memory(Path("/")) if check["check"] == "shared memory"]
print(json.dumps(check))
"""


@pytest.mark.parametrize(
    ("limit", "size", "state", "option"),
    [
        ("RLIMIT_FSIZE", 2**29, "note", "-f"),
        ("RLIMIT_FSIZE", 2**19, "failed", "-f"),
        ("RLIMIT_AS", 2**30, "note", "-v"),
    ],
)
def test_limits_of_the_shell(limit, size, state, option):
    assert resource.getrlimit(getattr(resource, limit))[0] == resource.RLIM_INFINITY
    run = subprocess.run([sys.executable, "-c", LIMITED, limit, str(size)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert f'"state": "{state}"' in run.stdout and f"ulimit {option} unlimited" in run.stdout, run.stdout
