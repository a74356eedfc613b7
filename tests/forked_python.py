"""The process that tests/python_processes.py starts. It imports torch, and forks a process for each request."""

from __future__ import annotations

import gc
import os
import pickle
import runpy
import signal
import socket
import sys
import types
from pathlib import Path

import torch  # noqa: F401


def next_command(requests: socket.socket) -> list[str] | None:
    """Returns in each forked process, with the command to run. Returns None in this process when the client is gone."""
    gc.freeze()
    while True:
        header, files, *_ = socket.recv_fds(requests, 8, 3)
        if not header:
            return None
        data = b""
        while len(data) < int.from_bytes(header, "little"):
            data += requests.recv(1 << 16)
        # The orphaned grandchild is adopted by the requesting process, which is a subreaper.
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            pid = results[0].recv(8)
            requests.sendall(pid)
            for file in files:
                os.close(file)
            continue
        if pid := os.fork():
            results[1].sendall(pid.to_bytes(8, "little"))
            os._exit(0)
        for end in (requests, *results):
            end.close()
        become(*pickle.loads(data)[1:], files)
        return pickle.loads(data)[0]


def become(cwd: str, environment: dict[str, str], files: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    os.chdir(cwd)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1 : 1 + len(own_path)] = [os.path.abspath(entry) for entry in path if entry]
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def run(command: list[str]) -> None:
    """Runs as `python *command` would."""
    if command[0] == "-m":
        sys.argv, sys.path[0] = command[1:], os.getcwd()
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if command[0] == "-c":
        name, source = "<string>", command[1].encode()
        sys.argv, sys.path[0] = ["-c", *command[2:]], ""
    else:
        name, source = command[0], Path(command[0]).read_bytes()
        sys.argv, sys.path[0] = command, os.path.dirname(os.path.abspath(name))
        main.__file__ = name
    sys.modules["__main__"] = main
    try:
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    except Exception as error:
        # Drops this function's own frame.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own_path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = sys.modules["__main__"]  # keeps the module alive while another module has its name
    results = socket.socketpair()
    command = next_command(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        run(command)
