"""Python processes for tests that start after `import torch`, because the import takes longer than most of their work.

The first one starts a process that imports torch, but not torch_remote. This parent forks a process for each request.
Forked processes are children of the calling process, as with subprocess, and run as `python` would. If the environment
differs in a way that affects Python or torch, or the program is not Python, subprocess starts the process as usual.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

# Variables that torch and Python do not read at startup. (The forked process sets its own sys.path.)
_LATER = ("TORCH_REMOTE_", "XDG_", "HOME", "PATH", "PYTHONPATH", "TMPDIR", "PYTEST_")
_PR_SET_CHILD_SUBREAPER = 36

_lock = threading.Lock()
_parent: socket.socket | None = None  # connection to the parent of all forked processes, which ends when this is closed
_environment: dict[str, str] = {}  # the parent's environment


def _import_environment(environment: dict[str, str], ignores: tuple[str, ...]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name == "TORCH_REMOTE_AUTOLOAD" or not name.startswith(_LATER + ignores)
    }


def _start_parent() -> socket.socket:
    global _environment
    ours, its = socket.socketpair()
    with its:
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forked_python.py")), str(its.fileno())],
            pass_fds=[its.fileno()],
        )
    _environment = dict(os.environ)
    return ours


def _forked(
    arguments: list[str], cwd: str, environment: dict[str, str], files: list[int], ignores: tuple[str, ...]
) -> int | None:
    """The pid of a forked process; None if it cannot be forked."""
    global _parent
    with _lock:
        if _parent is None:
            _parent = _start_parent()
        if _import_environment(environment, ignores) != _import_environment(_environment, ignores):
            return None
        request = pickle.dumps((arguments, cwd, environment))
        prctl = ctypes.CDLL(None).prctl
        # The process's parent exits at once, so this process adopts it.
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(_parent, [len(request).to_bytes(8, "little")], files)
            _parent.sendall(request)
            answer = b""
            while len(answer) < 8 and (part := _parent.recv(8 - len(answer))):
                answer += part
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    if len(answer) < 8:
        raise RuntimeError("the process that forks others has ended; what it wrote to stderr says why")
    return int.from_bytes(answer, "little")


class Python(subprocess.Popen):
    """subprocess.Popen for `[sys.executable, ...]`. `ignores`: prefixes of environment variables that may differ from
    this process, although torch reads them when it is imported."""

    def __init__(self, args: list[Any], ignores: tuple[str, ...] = (), **options: Any) -> None:
        self._ignores = ignores
        plain = options.keys() <= {"env", "cwd", "stdin", "stdout", "stderr", "text"}
        self._forks = plain and args[0] == sys.executable and (args[1] in ("-c", "-m") or not args[1].startswith("-"))
        super().__init__([str(arg) for arg in args], **options)

    def _execute_child(self, args: list[str], *options: Any) -> None:  # works with CPython 3.8 to 3.13
        cwd, env, pipes = options[4], options[5], options[9:15]
        environment = {name: os.fspath(value) for name, value in (os.environ if env is None else env).items()}
        stdin, _, _, stdout, _, stderr = pipes
        files = [mine if file == -1 else file for mine, file in enumerate((stdin, stdout, stderr))]
        pid = (
            _forked(args[1:], os.fspath(cwd or os.getcwd()), environment, files, self._ignores) if self._forks else None
        )
        if pid is None:
            return super()._execute_child(args, *options)
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run_python(
    *args: object, timeout: float | None = None, check: bool = False, fresh: bool = False, **options: Any
) -> subprocess.CompletedProcess:
    """subprocess.run([sys.executable, ...], text=True, capture_output=True). `fresh`: the process imports torch
    itself."""
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, args)]
    kind = subprocess.Popen if fresh else Python
    with kind(command, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check and done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{out}\n{err}")
    return done
