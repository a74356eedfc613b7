"""`torch.remote.profile`: what client, wire and worker do, and when."""

from __future__ import annotations

import json
import os
from typing import Any

from torch_remote import _C
from torch_remote.profiling import ranges as profile_ranges
from torch_remote.profiling.events import chrome_events
from torch_remote.profiling.recording import Recording, read
from torch_remote.profiling.summary import summary


class profile:  # noqa: N801 (called like a function)
    """Context manager that records what the device does, in this process and on the worker.

    >>> with torch.remote.profile("trace.json") as profile:
    ...     train()
    >>> print(profile.summary())

    The file opens in ui.perfetto.dev and chrome://tracing. Recorded ops that are not sent yet are sent when the block
    begins and when it ends; the end waits for the worker. Profiling costs some 50 ns per op on the worker and, in this
    process, some microseconds per flush and nothing per op.

    Args:
        path: the trace's file, written at the end of the block even if an exception ends it; None: no file.
        max_events: the most events that are kept, here and on the worker; more are counted and dropped. A worker keeps
            at most 4 million.

    Raises:
        OSError: at entry, if the file cannot be written.
        RuntimeError: at entry, if a profile is already being recorded.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_events: int = 1_000_000) -> None:
        if max_events < 1:
            raise ValueError(f"torch.remote.profile: max_events must be at least 1, got {max_events}")
        self._path = path
        self._max_events = max_events
        self._recording: Recording | None = None
        self._events: list[dict[str, Any]] | None = None

    def __enter__(self) -> profile:
        if self._path is not None:
            with open(self._path, "a"):  # raises now if the file cannot be written
                pass
        _C.profile_start(self._max_events)
        profile_ranges.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        ranges = profile_ranges.stop()
        raw = _C.profile_stop()
        self._recording = read(raw, ranges)
        self._events = None
        if self._path is not None:
            self.save(self._path)
        if raw["interrupted"]:
            raise KeyboardInterrupt

    @property
    def recording(self) -> Recording:
        """The recorded data."""
        if self._recording is None:
            raise RuntimeError("torch.remote.profile: the recording is available after the block")
        return self._recording

    @property
    def events(self) -> list[dict[str, Any]]:
        """The trace, as Chrome trace events."""
        if self._events is None:
            self._events = chrome_events(self.recording)
        return self._events

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as JSON."""
        dropped = self.recording.dropped + sum(worker.dropped for worker in self.recording.workers)
        trace = {"traceEvents": self.events, "displayTimeUnit": "ns", "otherData": {"events_dropped": dropped}}
        with open(path, "w") as file:
            json.dump(trace, file)

    def summary(self, rows: int = 15) -> str:
        """Returns a text about where the time went: client, waits by line, builds, worker, ops; at most `rows` lines
        and ops."""
        return summary(self.recording, rows)
