"""Processes that carry a worker: over a socket pair, with a log, and reliably ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from torch_remote_cli.exit_status import describe

_LOG_KEPT = 64 << 10
_AFTER_CLOSE_SESSION = 5.0  # seconds; a session that ends frees memory
_AFTER_TERMINATE = 2.0


class Log:
    """The output of processes, in a file without a name."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (close() does)
        self._kept = ""

    def text(self) -> str:
        """The end of the output."""
        if self.file.closed:
            return self._kept
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), _LOG_KEPT, max(0, size - _LOG_KEPT)).decode(errors="replace")

    def close(self) -> None:
        """Closes the file; keeps only the end of the text."""
        self._kept = self.text()
        self.file.close()


class ChildProcess:
    """A child process with one end of a socket pair; it ends when it reads the end of file there.

    It is a process group of its own, so that Ctrl-C interrupts a wait and not the worker. The kernel wakes a paused
    worker when this process dies.
    """

    def __init__(
        self, arguments: Sequence[str], log: Log, *, environment: Mapping[str, str], stdio: bool, what: str
    ) -> None:
        """`stdio`: the socket is the process's standard input and output; otherwise "{socket}" in an argument is its
        descriptor."""
        self.what = what
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fd = theirs.fileno()
            os.lseek(log.file.fileno(), 0, os.SEEK_END)
            self.process = subprocess.Popen(
                [argument.replace("{socket}", str(fd)) for argument in arguments],
                stdin=fd if stdio else subprocess.DEVNULL,
                stdout=fd if stdio else log.file,
                stderr=log.file,
                pass_fds=() if stdio else (fd,),
                env=dict(environment),
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.socket: socket.socket | None = ours

    @property
    def pid(self) -> int:
        return self.process.pid

    def take_socket(self) -> socket.socket:
        assert self.socket is not None
        taken, self.socket = self.socket, None
        return taken

    def end(self) -> str | None:
        """How the process ended, or None if it runs."""
        status = self.process.poll()
        return None if status is None else f"{self.what} {describe(status)}"

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self) -> None:
        """Waits until the process has ended; sends signals if it takes long."""
        if self.socket is not None:
            self.take_socket().close()
        self.signal(signal.SIGCONT)
        for number, seconds in ((0, _AFTER_CLOSE_SESSION), (signal.SIGTERM, _AFTER_TERMINATE), (signal.SIGKILL, None)):
            if number:
                self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                return
