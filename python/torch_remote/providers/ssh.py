"""Provider `ssh`: workers on a machine with an ssh login, with nothing installed there and no open port.

The user's own OpenSSH logs in, once per device. A short shell script there (bootstrap.sh) reports what the machine has,
receives the missing archives of bundle.py, and becomes the worker. The worker communicates over the ssh channel, so it
ends with the channel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch_remote.providers import bundle, gpus
from torch_remote.providers.local import ALLOWANCES, worker_arguments
from torch_remote.providers.processes import ChildProcess, Log
from torch_remote.providers.provider import Endpoint, MachineError, MachineSpec, Provider, ProviderStatus

_log = logging.getLogger("torch_remote.machines")
_BOOTSTRAP = Path(__file__).with_name("bootstrap.sh")
_HELLO = b"torch-remote-bootstrap 1 "
_TO_LOG_IN = 120.0  # seconds: the user may have to type a password
_TO_ANSWER = 60.0
# heartbeats, so that a dead connection is closed
_KEEP_ALIVE = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
_MOST_LOGIN_OUTPUT = 64 << 10  # bytes that a machine's shell may print before the script starts


class Ssh(Provider):
    """One worker per device, each over its own ssh channel."""

    address = "host"
    options = {
        "host": "user@host:port, or a Host of ~/.ssh/config",
        "ssh": "the command, with options: 'ssh -i key -J jump'; default: TORCH_REMOTE_SSH, ssh",
        "torch_lib": "folder of libtorch_cpu.so on that machine; default: found, or brought there",
        **ALLOWANCES,
    }

    def __init__(self) -> None:
        self._channels: dict[int, ChildProcess] = {}
        self._logs = Log()
        self._torch_lib = ""

    @classmethod
    def check(cls, spec: MachineSpec) -> None:
        host = spec.options.get("host")
        if not host:
            raise MachineError("remote: provider 'ssh' needs the host: RemoteMachine('ssh', host='user@host')")
        _split(str(host))
        worker_arguments(spec, None)

    def start(self, spec: MachineSpec) -> Endpoint:
        self.check(spec)
        host = spec.options["host"]
        self._spec = spec
        self._destination, self._port = _split(str(host))
        self.name = f"ssh://{host}"
        self._command = shlex.split(spec.options.get("ssh") or os.environ.get("TORCH_REMOTE_SSH") or "ssh")
        self._torch_lib = spec.options.get("torch_lib") or ""
        self._gpus: list[int] | None = None
        return self.connect(0)

    def connect(self, index: int) -> Endpoint:
        if index in self._channels:
            self._channels.pop(index).stop()
        script = _BOOTSTRAP.read_text()
        assert "'" not in script  # it is quoted for any shell
        arguments = [*self._command, "-T", *_KEEP_ALIVE, *(["-p", self._port] if self._port else [])]
        try:
            channel = ChildProcess(
                [*arguments, "--", self._destination, f"exec sh -c '{script}'"],
                self._logs,
                environment=os.environ,
                stdio=True,
                what=f"{self._command[0]} to {self.name}",
            )
        except OSError as error:
            raise MachineError(
                f"remote: cannot run {self._command[0]!r}: {error.strerror}; install OpenSSH's client (openssh-client)"
            ) from error
        self._channels[index] = channel
        try:
            self._prepare(_Conversation(channel, self._logs, self.name), index)
        except BaseException:
            self._channels.pop(index).stop()
            raise
        return Endpoint(f"channel:{self.name}", socket=channel.take_socket())

    def _prepare(self, talk: _Conversation, index: int) -> None:
        system, processor, glibc = talk.hello()
        if (system, processor) != ("Linux", os.uname().machine):
            raise MachineError(
                f"remote: {self.name} is {system} on {processor}; workers run on Linux on {os.uname().machine}"
            )
        archive = bundle.worker()
        needed = archive.needs_glibc()
        has = tuple(int(part) for part in re.findall(r"\d+", glibc)[:2])
        if has < needed:
            raise MachineError(
                f"remote: {self.name} has glibc {glibc or '(none)'}, and this build of torch_remote needs "
                f"{needed[0]}.{needed[1]} or newer; use a newer system there, or build torch_remote on an older one"
            )
        if not self._spec.gpu and not self._torch_lib:
            self._torch_lib = talk.ask(f"torch {bundle.torch_version()}")
            if not self._torch_lib:
                self._torch_lib = self._bring(talk, bundle.libtorch(), f"torch {bundle.torch_version()}")
        root = self._bring(talk, archive, "the worker")
        if self._spec.gpu and self._gpus is None:
            there, why = gpus.read_list(talk.ask(f"gpus\n{root}"))
            self._gpus = gpus.choose(self._spec.gpu, self._spec.gpu_count, there, self.name, why)
        gpu = self._gpus[index] if self._gpus else None
        level = os.environ.get("TORCH_REMOTE_WORKER_LOG") or "warn"
        talk.run(root, level, self._torch_lib, worker_arguments(self._spec, gpu))

    def _bring(self, talk: _Conversation, archive: bundle.Archive, what: str) -> str:
        """Returns the archive's folder on that machine; sends the archive if it is missing."""
        folder = talk.ask(f"have {archive.digest}")
        if folder:
            return folder
        with _Progress(f"{what} to {self.name}", archive.size) as progress:
            return talk.put(archive, progress.step)

    def stop(self) -> None:
        for channel in self._channels.values():
            channel.stop()
        self._channels.clear()
        self._logs.close()

    def status(self) -> ProviderStatus:
        channels = list(self._channels.values())
        ends = [end for channel in channels if (end := channel.end())]
        if ends:
            last = self._logs.text().strip().splitlines()[-3:]
            return ProviderStatus("lost", ": ".join([ends[0], "; ".join(last)] if last else ends[:1]))
        if not channels:
            return ProviderStatus("stopped")
        return ProviderStatus("running", f"{self.name}, ssh is pid {', '.join(str(c.pid) for c in channels)}")

    def logs(self) -> str:
        return self._logs.text()


def _split(host: str) -> tuple[str, str]:
    """Splits "user@host:22" into ("user@host", "22")."""
    match = re.fullmatch(r"((?:[^@\s]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@:\s\[\]/]+))(?::(\d+))?/?", host)
    if match is None or match[1].startswith("-"):
        raise MachineError(
            f"remote: {host!r} is not a host for ssh; write user@host, host:port, or a Host of ~/.ssh/config"
        )
    return match[1].replace("[", "").replace("]", ""), match[2] or ""


class _Conversation:
    """A conversation with bootstrap.sh, one line each way. Bytes after the last line belong to the worker, so none of
    them is read."""

    def __init__(self, channel: ChildProcess, log: Log, name: str) -> None:
        assert channel.socket is not None
        self._channel, self._log, self._name = channel, log, name
        self._socket: socket.socket = channel.socket

    def _line(self, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise MachineError(f"remote: {self._name} does not answer for {seconds:.0f} s: {self._said()}")
            self._socket.settimeout(left)
            try:
                byte = self._socket.recv(1)
            except TimeoutError:
                continue
            except ConnectionResetError:
                byte = b""
            if not byte:
                self._gone()
            line += byte
        return bytes(line)

    def _said(self) -> str:
        lines = [line for line in self._log.text().strip().splitlines() if not line.startswith("** ")]
        return "; ".join(lines[-4:]) or "it printed nothing"

    def _gone(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.process.wait(5)
        said = self._said()
        hint = ""
        for pattern, help_ in (
            ("Permission denied", f"is your key there? ssh-copy-id {self._name.removeprefix('ssh://')}"),
            ("Host key verification failed", "log in once by hand (ssh) and check the host's key"),
            ("Could not resolve hostname", "check the host's name"),
            ("Connection refused", "does an ssh server run there, at that port?"),
            ("not found", "a POSIX shell, tar and gzip must be there"),
            ("No space left", "free disk space there, or set XDG_CACHE_HOME"),
        ):
            if pattern in said:
                hint = f"; {help_}"
                break
        raise MachineError(f"remote: cannot start a worker at {self._name}: {said}{hint}")

    def hello(self) -> list[str]:
        """Reads the script's hello: the system, the processor, and the version of the C library."""
        read = 0
        while read < _MOST_LOGIN_OUTPUT:
            line = self._line(_TO_LOG_IN)
            if line.startswith(_HELLO):  # a shell may print something first
                self._socket.settimeout(_TO_ANSWER)
                return (line[len(_HELLO) :].decode().strip("\n").split(" ") + ["", ""])[:3]
            read += len(line)
        raise MachineError(f"remote: the shell of {self._name} prints too much at login; silence it for scripts")

    def ask(self, question: str) -> str:
        """Returns the answer; raises the other side's error."""
        self._send(question.encode() + b"\n")
        return self._answer()

    def _answer(self) -> str:
        word, _, rest = self._line(_TO_ANSWER).decode(errors="replace").strip("\n").partition(" ")
        if word == "ok":
            return rest
        raise MachineError(f"remote: {self._name}: {rest or word}; {self._said()}")

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(_TO_ANSWER)
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self._gone()
        except TimeoutError as error:
            raise MachineError(f"remote: {self._name} takes no data for {_TO_ANSWER:.0f} s: {self._said()}") from error

    def put(self, archive: bundle.Archive, step: Callable[[int], None]) -> str:
        """Sends an archive; returns its folder."""
        # In pieces with a length before each, because the total size is known only after packing.
        self._send(f"put {archive.digest}\n".encode())
        pieces = bytearray()
        for piece in archive.packed():
            pieces += piece
            step(0)
            if len(pieces) >= 1 << 18:
                self._piece(pieces)
                step(len(pieces))
                pieces.clear()
        if pieces:
            self._piece(pieces)
        self._send(b"0\n")
        return self._answer()

    def _piece(self, piece: bytearray) -> None:
        self._send(b"%d\n" % len(piece))
        self._send(bytes(piece))

    def run(self, root: str, level: str, torch_lib: str, arguments: list[str]) -> None:
        """Turns the script into the worker."""
        if "\n" in root + torch_lib:
            raise MachineError(f"remote: a folder of {self._name} has a line break in its name")
        self._send(f"run {level} {' '.join(arguments)}\n{root}\n{torch_lib}\n".encode())
        self._answer()
        self._socket.settimeout(None)


class _Progress:
    """Shows on standard error that something large is being sent."""

    def __init__(self, what: str, size: int) -> None:
        self._what, self._size = what, size

    def __enter__(self) -> _Progress:
        self._begin = time.monotonic()
        self._sent = 0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        _log.info("sending %s, %.0f MB before compression", self._what, self._size / 1e6)
        return self

    def step(self, count: int) -> None:
        self._sent += count
        if self._terminal and count:
            print(f"\rremote: sending {self._what}: {self._sent / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if self._terminal and self._sent:
            print(file=sys.stderr)
        seconds = time.monotonic() - self._begin
        _log.info("%s %s: %.0f MB in %.1f s", "left" if error[0] else "sent", self._what, self._sent / 1e6, seconds)
