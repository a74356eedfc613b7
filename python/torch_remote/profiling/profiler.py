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
    """Context manager: records what the device does, on this side and on the worker.

    >>> with torch.remote.profile("trace.json") as profile:
    ...     train()
    >>> print(profile.summary())

    The file opens in ui.perfetto.dev and chrome://tracing. What is recorded but not sent yet goes out when the block
    begins and when it ends, and the end waits for the worker. Recording takes some 50 ns an op on the worker, and on
    this side nothing an op and some microseconds a flush.

    Args:
        path: where the trace goes at the end of the block, even if an exception ends it; None: nowhere.
        max_events: what is kept, here and on the worker; events beyond it are counted and dropped. A worker keeps 4
            million at most.

    Raises:
        OSError: at entry, if the file cannot be written.
        RuntimeError: at entry, if a profile is being recorded already.
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
            with open(self._path, "a"):  # raises now if that is impossible
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
        """What was recorded, as it came."""
        if self._recording is None:
            raise RuntimeError("torch.remote.profile: nothing is recorded before the block ends")
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
        """Where the time went, as text: client, waits by line, builds, worker, ops; at most `rows` lines and ops."""
        return summary(self.recording, rows)
