"""Tests what a session of a listening worker can access: from inside, and by reading its memory from outside."""

import contextlib
import ctypes
import errno
import json
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from python_processes import Python

import torch_remote
from torch_remote.version import plugin

PACKAGE = Path(torch_remote.__file__).parent.resolve()
BINARY = PACKAGE / "bin/torch-remote-worker"
PROBING = Path("worker/process/testing/probing_worker").resolve()
TOKEN = "c0ffee11c0ffee22c0ffee33c0ffee44"
USE = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"
CLIENT = """
import torch, torch_remote
print(torch.ones(3, device="remote").sum().item(), flush=True)
input()
"""


@pytest.fixture
def serve(remote, tmp_path):
    """Starts workers: serve(*arguments, url=...) -> (url, process); process.log is the path of its log. `before` is
    called in the new process."""
    processes = []

    def start(*arguments, url=None, command=BINARY, check=True, before=None, **variables):
        url = url or f"unix://{tmp_path}/w{len(processes)}"
        log = tmp_path / f"log{len(processes)}"
        environment = {
            **os.environ, "TORCH_REMOTE_PACKAGE": str(PACKAGE), "TORCH_REMOTE_WORKER_LOG": "debug",
            "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib"), **variables,
        }  # fmt: skip
        with log.open("w") as file:
            process = subprocess.Popen(
                [command, "--listen", url, *map(str, arguments)], env=environment, stderr=file, preexec_fn=before
            )
        process.log = log
        processes.append(process)
        deadline = time.monotonic() + 60
        while check and not (listening := re.search(r"listening on (\S+)", log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        return (listening[1] if check else url), process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@contextlib.contextmanager
def client(url, **variables):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_REMOTE_WORKER": url, **variables}
    with Python([sys.executable, "-c", CLIENT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "3.0\n"
        yield process
        process.stdin.write("\n")


def sessions(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def active(process):
    """The parts of the sandbox that the worker reports as active."""
    return re.search(r"sessions are confined: ([^;\n]*)", process.log.read_text())[1].split(", ")


def probes(process):
    return {name: int(error) for name, error in re.findall(r"probe (\w+) (\d+)", process.log.read_text())}


# For each attempt: the part of the sandbox that denies it, and the error if that part is active.
DENIED = {
    "environ": ("files", errno.EACCES), "secret": ("files", errno.EACCES), "passwd": ("files", errno.EACCES),
    "listener_memory": ("files", errno.EACCES), "write": ("files", errno.EACCES),
    "socket": ("no network", errno.EPERM), "local_socket": ("no network", errno.EPERM),
    "process": ("no processes", errno.EPERM), "ptrace": ("system calls", errno.EPERM),
    "signal": ("system calls", errno.EPERM), "core": ("no core files", errno.EPERM),
    "dumpable": ("memory closed to other processes", errno.EPERM), "privileges": ("no new privileges", errno.EPERM),
}  # fmt: skip


def probe(serve, tmp_path, *arguments):
    secret = tmp_path / "secret"
    secret.write_text("of another one")
    with Python([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as sibling:
        url, process = serve(
            *arguments,
            command=PROBING,
            TORCH_REMOTE_TEST_SECRET=str(secret),
            TORCH_REMOTE_TEST_SIBLING=str(sibling.pid),
        )
        with client(url):
            pass
        sibling.stdin.write("\n")
    return process


def test_a_session_reaches_nothing_from_inside(serve, tmp_path):
    process = probe(serve, tmp_path)
    found = probes(process)
    assert set(found) == set(DENIED)
    for name, (part, error) in DENIED.items():
        # Attempts succeed if the worker does not report the part as active.
        assert found[name] == error if part in active(process) else found[name] == 0, (name, process.log.read_text())
    kernel = json.loads(subprocess.run([BINARY, "--probe-sandbox"], capture_output=True, text=True, check=True).stdout)
    assert kernel["active"] == active(process)
    assert {"no new privileges", "memory closed to other processes", "no core files"} <= set(kernel["active"])
    for part in {"files", "system calls", "no processes", "no network"} - set(kernel["active"]):
        assert any(text.startswith(part) for text in kernel["missing"]), kernel


def test_what_options_allow_is_open_and_said(serve, tmp_path):
    process = probe(serve, tmp_path, "--peer-host", "127.0.0.1")
    assert probes(process)["socket"] == 0 and "not active: no network: --peer-host" in process.log.read_text()
    assert probes(process)["process"] == DENIED["process"][1] or "no processes" not in active(process)
    process = probe(serve, tmp_path, f"--allow-files={tmp_path}")
    assert probes(process)["secret"] == 0
    assert probes(process)["passwd"] == (errno.EACCES if "files" in active(process) else 0)
    process = probe(serve, tmp_path, f"--allow-python={sys.executable}")
    found = probes(process)
    assert found["process"] == found["secret"] == found["socket"] == 0
    assert found["dumpable"] == found["privileges"] == errno.EPERM
    assert "--allow-python lets clients run any program" in process.log.read_text()


def refuse_landlock():
    """Makes Landlock's system calls fail in this process and its children, as a container may."""
    landlock_create_ruleset, no_new_privileges, set_seccomp, filter_mode = 444, 38, 22, 2
    load, equals, give, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | errno.ENOSYS
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in ((load, 0, 0, 0), (equals, 0, 1, landlock_create_ruleset), (give, 0, 0, fail), (give, 0, 0, allow))
    )
    code = ctypes.create_string_buffer(program)
    filter_program = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(no_new_privileges, 1, 0, 0, 0) == 0 and prctl(set_seccomp, filter_mode, filter_program, 0, 0) == 0


def warnings(process):
    return [line for line in process.log.read_text().splitlines() if "] warning: " in line]


def test_a_worker_whose_sessions_cannot_be_confined_warns_once(serve):
    url, process = serve(before=refuse_landlock, TORCH_REMOTE_WORKER_LOG="info")
    with client(url), client(url):
        (warning,) = warnings(process)
    assert "confined: " in warning and "not active: files: this kernel has no Landlock" in warning
    # A part that an option switches off is no reason for a warning.
    url, process = serve("--peer-host", "127.0.0.1", TORCH_REMOTE_WORKER_LOG="info")
    with client(url):
        assert warnings(process) == [] or not {"files", "system calls"} <= set(active(process))


def test_the_help_of_peer_host_says_all_that_it_allows():
    text = " ".join(subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout.split())
    assert "other ranks (torch.distributed) and other devices" in text
    assert "connect to any address that their clients name, and tensors travel unencrypted" in text


def test_a_session_is_a_program_of_its_own(serve, tmp_path):
    url, process = serve(MY_SECRET="of the listener", TORCH_REMOTE_TOKEN="of a client that started it")
    with client(url), client(url):
        both = sessions(process)
        assert len(both) == 2
        binaries = set()
        for pid in [process.pid, *both]:
            assert Path(f"/proc/{pid}/exe").resolve() == BINARY.resolve()
            first = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if BINARY.name in line)
            binaries.add(first.partition("-")[0])
        assert len(binaries) == 3, "they lie at the same addresses"
        for pid in both:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"MY_SECRET" not in environ and b"TORCH_REMOTE_TOKEN" not in environ and b"PATH=" in environ
            targets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists()}
            assert not any("torch-remote-session" in target for target in targets), targets


def has_in_memory(pid, wanted):
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, permissions, *rest = line.split()
            if not permissions.startswith("rw") or (len(rest) == 4 and rest[3].startswith("[v")):
                continue
            begin, end = (int(address, 16) for address in place.split("-"))
            with contextlib.suppress(OSError):
                memory.seek(begin)
                while begin < end:
                    data = memory.read(min(end - begin, 1 << 24))
                    if not data:
                        break
                    if wanted in data:
                        found.append(line)
                    begin += len(data)
    return found


def test_a_session_that_serves_has_no_token(serve, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    url, process = serve("--token-file", tmp_path / "token", url="tcp://127.0.0.1:0")
    if os.geteuid() != 0:  # only root may read the worker's memory
        with pytest.raises(PermissionError):
            has_in_memory(process.pid, TOKEN.encode())
        return
    assert has_in_memory(process.pid, TOKEN.encode()), "the listener, which has it: the search finds nothing"
    with client(url, TORCH_REMOTE_TOKEN_FILE=str(tmp_path / "token")):
        (session,) = sessions(process)
        assert has_in_memory(session, TOKEN.encode()) == []


def test_a_socket_is_its_users_alone(serve, tmp_path):
    before = os.umask(0)
    try:
        url, process = serve()
    finally:
        os.umask(before)
    path = Path(url.removeprefix("unix://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if os.geteuid() != 0:
        return
    # Another user: the file's mode allows the connection, the worker refuses it.
    path.chmod(0o666)
    for folder in [*path.parents][:-1]:
        if folder.stat().st_mode & 0o001 == 0 and folder.is_relative_to(tmp_path.parents[1]):
            folder.chmod(folder.stat().st_mode | 0o011)
    ask = (
        "import os, socket, sys; os.setresuid(65534, 65534, 65534); s = socket.socket(socket.AF_UNIX);"
        "s.connect(sys.argv[1]); s.settimeout(5); print(s.recv(1))"
    )
    asked = subprocess.run([sys.executable, "-I", "-c", ask, str(path)], capture_output=True, text=True)
    assert asked.stdout == "b''\n" or "ConnectionReset" in asked.stderr, asked
    assert "of user 65534 is refused (--allow-user)" in process.log.read_text()
    assert sessions(process) == []
    url, process = serve("--allow-user", "nobody")
    path = Path(url.removeprefix("unix://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    asked = subprocess.run([sys.executable, "-I", "-c", ask, str(path)], capture_output=True, text=True)
    assert "timed out" in asked.stderr, asked  # the session waits for the client's first message
    _, process = serve("--allow-user", "no such user", check=False)
    assert process.wait(60) != 0 and "there is no user 'no such user'" in process.log.read_text()


def test_what_is_no_socket_is_not_removed(serve, tmp_path, script):
    model = tmp_path / "model.pt"
    model.write_text("weights")
    _, process = serve(url=f"unix://{model}", check=False)
    assert process.wait(60) != 0
    assert "exists and is not a socket" in process.log.read_text()
    assert model.read_text() == "weights"
    link = tmp_path / "link"
    link.symlink_to(model)
    _, process = serve(url=f"unix://{link}", check=False)
    assert process.wait(60) != 0 and model.read_text() == "weights" and link.is_symlink()
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(left))
    url, _ = serve(url=f"unix://{left}")
    script(USE, TORCH_REMOTE_WORKER=url)


def test_clients_without_room_do_not_hold_up_others(serve, script):
    """A full worker answers all clients within half a second, in parallel and not one after the other."""
    url, _ = serve("--max-sessions", "1")
    path = url.removeprefix("unix://")
    with client(url):
        began = time.monotonic()
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(24)]
        for one in waiting:
            one.connect(path)
        waiting[-1].settimeout(20)
        # Up to 16 clients are refused by a process each, which waits for their hello; connections of others are closed.
        assert waiting[-1].recv(1) == b""
        assert time.monotonic() - began < 6  # 24 clients at half a second each would take 12 seconds
        for one in waiting:
            one.close()


def test_defaults_are_a_share_of_the_machine_and_said(serve):
    _, process = serve()
    text = process.log.read_text()
    sessions_, megabytes = re.search(r"sessions are limited: (\d+) at once .*, (\d+) MiB for the", text).groups()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int(sessions_) == max(16, 2 * len(os.sched_getaffinity(0)))
    assert 0 < int(megabytes) << 20 <= 0.8 * memory
    _, process = serve("--max-sessions", "0", "--memory-limit", "0")
    assert "sessions are limited: any number at once" in process.log.read_text()
    assert "all memory for the tensors of each" in process.log.read_text()


def test_a_gpu_that_is_not_there_is_said_at_once(serve):
    _, process = serve("--device", "cuda:99", check=False)
    assert process.wait(60) != 0
    assert re.search(r"\bcuda\b", process.log.read_text()) and "listening" not in process.log.read_text()


def test_a_user_that_sessions_cannot_be_is_said_at_once(serve, tmp_path):
    _, process = serve("--session-user", "no such user", check=False)
    assert process.wait(60) != 0
    assert "--session-user: there is no user 'no such user'" in process.log.read_text()
    if os.geteuid() != 0:
        _, process = serve("--session-user", "nobody", check=False)
        assert process.wait(60) != 0 and "needs a listener that runs as root" in process.log.read_text()
        return
    readable = all(folder.stat().st_mode & 0o001 for folder in plugin(torch.__version__).resolve().parents)
    url, process = serve("--session-user", "nobody", check=readable)
    if not readable:
        assert process.wait(60) != 0
        assert "the user 'nobody' of --session-user cannot read" in process.log.read_text()
        return
    with client(url):
        (session,) = sessions(process)
        assert re.search(r"Uid:\t65534\t65534\t65534", Path(f"/proc/{session}/status").read_text())
