"""Reads the file that a listener writes with --status-file (worker/process/status_file.h has the layout)."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path

_MAGIC = 0x0031544154535254
_HEAD = struct.Struct("<10Q48x")
_SESSION = struct.Struct("<7Q72s")


@dataclass(frozen=True)
class Session:
    """A running session."""

    process: int
    began: int  # seconds since 1970
    messages: int
    bytes_in: int
    bytes_out: int
    busy_seconds: float
    idle_seconds: float
    client: str


@dataclass(frozen=True)
class Counts:
    """The counters of a worker. Totals include ended sessions."""

    process: int
    most: int  # limit of concurrent sessions, 0: none
    sessions_total: int
    refused_total: int
    killed_total: int
    messages_total: int
    bytes_in_total: int
    bytes_out_total: int
    busy_seconds_total: float
    sessions: list[Session]

    @property
    def sessions_limit(self) -> int | str:
        """Maximum number of concurrent sessions, or "no limit"."""
        return self.most or "no limit"


def read(file: Path) -> Counts | None:
    """Returns None if the file does not exist or has another version."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[0] != _MAGIC:
        return None
    _, process, most, sessions, refused, killed, messages, bytes_in, bytes_out, busy = _HEAD.unpack_from(data)
    running = []
    now = time.monotonic_ns()
    for offset in range(_HEAD.size, len(data) - _SESSION.size + 1, _SESSION.size):
        pid, began, count, came, went, worked, last, client = _SESSION.unpack_from(data, offset)
        if pid == 0 or began == 0:
            continue
        name = client.partition(b"\0")[0].decode(errors="replace")
        running.append(Session(pid, began, count, came, went, worked / 1e9, max(0, now - last) / 1e9, name))
    return Counts(
        process, most, sessions, refused, killed,
        messages + sum(session.messages for session in running),
        bytes_in + sum(session.bytes_in for session in running),
        bytes_out + sum(session.bytes_out for session in running),
        busy / 1e9 + sum(session.busy_seconds for session in running),
        running,
    )  # fmt: skip


def memory_of(process: int) -> int:
    """Bytes of a process's own memory (PSS if the kernel reports it, otherwise RSS); 0 if it has ended."""
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            for line in Path(f"/proc/{process}/{name}").read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) << 10
        except OSError:
            continue
    return 0
