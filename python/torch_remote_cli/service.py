"""`torch-remote worker serve`: a listener with its log, its metrics, and its entry among the running workers."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, Any
from urllib.parse import urlsplit

from torch_remote_cli import metrics, state, status_file
from torch_remote_cli.exit_status import describe

LEVELS = ("trace", "debug", "info", "warn", "error", "critical")
_LINE = re.compile(r"torch-remote-worker\[(\d+)\] (\w+): (.*)")
_SPDLOG = {"warning": "warn"}
_MOST_LOG = 10 << 20  # bytes; then a new log begins, and one old log is kept
_MOST_LINES = 20  # of an error
_TO_END = 10.0


class ServeError(RuntimeError):
    """The worker cannot serve; the message says what helps."""


@dataclass
class Options:
    """The options of a service."""

    name: str
    url: str
    arguments: list[str] = field(default_factory=list)  # of torch-remote-worker
    metrics: tuple[str, int] | None = None
    level: str = "info"
    json: bool = False  # log lines are JSON
    idle_timeout: float | None = None
    quiet: bool = False  # the log goes only to the file


def package() -> Path:
    """The folder of torch_remote, found without importing it."""
    found = importlib.util.find_spec("torch_remote")
    if found is None or found.origin is None:
        raise ServeError("torch_remote is not installed here; pip install torch-remote")
    return Path(found.origin).parent


def version_module() -> ModuleType:
    """torch_remote.version, loaded without the package, whose import needs torch."""
    spec = importlib.util.spec_from_file_location("torch_remote_version", package() / "version.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version() -> str:
    return importlib.metadata.version("torch_remote")


def log_file(name: str) -> Path:
    return state.folder("workers") / f"{name}.log"


def _with_parent() -> None:
    """Runs in the child: it ends with this process, however this process ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class _Log:
    """A structured log: each record has a time, a level, its process, and a message."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._least = LEVELS.index(options.level)
        self._path = log_file(options.name)
        self._path.unlink(missing_ok=True)
        self._file: IO[str] = self._open()
        self._lock = threading.Lock()

    def _open(self) -> IO[str]:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a", buffering=1)

    def write(self, level: str, message: str, process: int | None = None) -> None:
        if LEVELS.index(level) < self._least:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        process = process or os.getpid()
        if self._options.json:
            line = json.dumps({"time": now, "level": level, "process": process, "message": message})
        else:
            line = f"{now} {level} [{process}] {message}"
        # The disk may be full, and nobody may read standard error any more. The thread that reads the worker's log must
        # go on even then, because the worker waits for it.
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                if self._file.tell() > _MOST_LOG:
                    self._path.replace(self._path.with_suffix(".log.1"))
                    before, self._file = self._file, self._open()
                    before.close()
                self._file.write(line + "\n")
            if not self._options.quiet:
                with contextlib.suppress(OSError, ValueError):
                    print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._file.close()


class Service:
    """A listener that runs in this process until it is stopped."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.url = ""
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._last: list[str] = []  # the lines of the last record before the worker listened
        self.session_info: dict[str, str] = {}  # what it reports about its sessions

    def run(self, on_ready: Any = None) -> int:
        """Serves; returns the exit status."""
        options = self.options
        known = state.read("workers", options.name)
        if known is not None and state.is_alive(known):
            raise ServeError(
                f"a worker called {options.name!r} runs already, at {known['url']} (process {known['process']}); stop "
                f"it (torch-remote worker stop {options.name}), or give this one another --name"
            )
        folder = package()
        self._status = state.folder("workers") / f"{options.name}.status"
        self._log = _Log(options)
        endpoint = None
        worker = self._start(folder)
        reader = threading.Thread(target=self._read, args=(worker,), name="log", daemon=True)
        reader.start()
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._ready.wait(0.02):
                if worker.poll() is not None:
                    reader.join(5)
                    raise ServeError(self._why_not(worker.returncode))
                if self._stopping.is_set():
                    return 0
            if options.metrics is not None:
                endpoint = self._serve_metrics(worker)
            self._write_entry(worker, endpoint)
            if on_ready is not None:
                on_ready(self)
            return self._wait(worker)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if endpoint is not None:
                endpoint.close()
            self._end(worker)
            reader.join(5)
            state.remove("workers", options.name)
            self._status.unlink(missing_ok=True)
            self._log.close()

    def _why_not(self, status: int) -> str:
        """Why the worker ended before it listened."""
        last = "\n".join(self._last[:_MOST_LINES])
        if status > 0 and last:  # it printed the reason
            return last
        return f"the worker {describe(status)} before it listened" + (f"; it printed last: {last}" if last else "")

    def _start(self, folder: Path) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        torch = importlib.util.find_spec("torch")
        if torch is not None and torch.origin is not None:
            environment.setdefault("TORCH_REMOTE_TORCH_LIB", str(Path(torch.origin).parent / "lib"))
        # The worker logs that it listens at level info, so this process filters the records.
        level = self.options.level
        environment["TORCH_REMOTE_WORKER_LOG"] = level if level in ("trace", "debug") else "info"
        binary = environment.get("TORCH_REMOTE_WORKER_BINARY") or str(folder / "bin/torch-remote-worker")
        command = [binary, "--listen", self.options.url, "--status-file", str(self._status), *self.options.arguments]
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                errors="replace", env=environment, process_group=0, preexec_fn=_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise ServeError(f"cannot run {binary}: {error.strerror}; install torch_remote again") from error

    def _read(self, worker: subprocess.Popen[str]) -> None:
        """Each line of the worker is a record; a line in another format belongs to the record before it."""
        level, process = "info", worker.pid
        assert worker.stderr is not None
        for line in worker.stderr:
            line = line.rstrip("\n")
            match = _LINE.fullmatch(line)
            if match is not None:
                process, level, line = int(match[1]), _SPDLOG.get(match[2], match[2]), match[3]
                if level not in LEVELS:
                    level = "error"
            elif line.startswith("remote: "):  # about an argument, before the worker has a log
                level = "error"
            if not self._ready.is_set():
                if match is not None or line.startswith("remote: "):
                    self._last.clear()
                self._last.append(line)
                for what in ("confined", "limited"):
                    if line.startswith(f"sessions are {what}: "):
                        self.session_info[what] = line.partition(": ")[2]
            self._log.write(level, line, process)
            if line.startswith("listening on ") and not self._ready.is_set():
                self.url = line.removeprefix("listening on ")
                self._ready.set()
        worker.stderr.close()

    def _counts(self) -> status_file.Counts | None:
        return status_file.read(self._status)

    def _serve_metrics(self, worker: subprocess.Popen[str]) -> metrics.Endpoint:
        assert self.options.metrics is not None
        host, port = self.options.metrics

        def text() -> str:
            return metrics.text(self._counts() if worker.poll() is None else None, version())

        try:
            return metrics.Endpoint(host, port, text, lambda: self._wrong(worker))
        except OSError as error:
            raise ServeError(
                f"cannot serve metrics at {host}:{port}: {error.strerror}; give another --metrics"
            ) from error

    def _wrong(self, worker: subprocess.Popen[str]) -> str | None:
        """Why the service is not healthy."""
        if worker.poll() is not None:
            return f"the listener {describe(worker.returncode)}"
        parts = urlsplit(self.url)
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=5).close()
            except OSError as error:
                return f"the listener does not accept connections: {error}"
        return None

    def _write_entry(self, worker: subprocess.Popen[str], endpoint: metrics.Endpoint | None) -> None:
        state.write(
            "workers",
            self.options.name,
            {
                "name": self.options.name,
                "url": self.url,
                "process": os.getpid(),
                "process_began": state.process_began(os.getpid()),
                "listener": worker.pid,
                "started": time.time(),
                "metrics": endpoint.url if endpoint is not None else None,
                "log": str(log_file(self.options.name)),
                "status_file": str(self._status),
                "version": version(),
                "confined": self.session_info.get("confined", ""),
                "limits": self.session_info.get("limited", ""),
            },
        )

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()

    def _wait(self, worker: subprocess.Popen[str]) -> int:
        used = time.monotonic()
        while not self._stopping.wait(0.1):
            if worker.poll() is not None:
                self._log.write("critical", f"the listener {describe(worker.returncode)}")
                return 1
            if self.options.idle_timeout is None:
                continue
            counts = self._counts()
            if counts is not None and counts.sessions:
                used = time.monotonic()
            elif time.monotonic() - used > self.options.idle_timeout:
                self._log.write("info", f"no client connected for {self.options.idle_timeout:g} s (--idle-timeout)")
                return 0
        self._log.write("info", "stopping")
        return 0

    def _end(self, worker: subprocess.Popen[str]) -> None:
        worker.terminate()
        try:
            worker.wait(_TO_END)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
