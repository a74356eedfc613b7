"""Watches a machine: stops it when it was unused for long, and resumes it when it is paused and used."""

from __future__ import annotations

import threading
import time

from torch_remote import _C
from torch_remote.providers.handle import Machine

_STEP = 0.02  # seconds that a use of a paused machine waits at most
_MOST = 1.0  # seconds between two checks of the idle time, at most


class Watch:
    """A thread, while there is something to watch."""

    def __init__(self, machine: Machine, idle_timeout: float | None) -> None:
        self._machine = machine
        self._timeout = idle_timeout
        self._stop = threading.Event()
        self._used = time.monotonic()
        self._sent = self._count()
        self._thread: threading.Thread | None = None
        if idle_timeout is not None:
            self._begin(self._watch_idle)

    def _begin(self, what: object) -> None:
        assert callable(what)
        self._thread = threading.Thread(target=what, name=f"torch-remote {self._machine.id}", daemon=True)
        self._thread.start()

    def _count(self) -> list[tuple[int, int]]:
        """A value that changes with every use of a device."""
        all_of = []
        for index in self._machine.device_indices():
            info = _C.worker_info(index)
            all_of.append((info["session"], info["last_sent"]) if info is not None else (-1, -1))
        return all_of

    def idle_seconds(self) -> float:
        """Seconds since the last use. A device is in use while it computes and while a thread waits for its reply."""
        now = time.monotonic()
        sent = self._count()
        if sent != self._sent or any(_C.is_busy(index) for index in self._machine.device_indices()):
            self._sent, self._used = sent, now
        return max(0.0, now - self._used)  # another thread may have set a later time

    def _watch_idle(self) -> None:
        assert self._timeout is not None
        step = min(self._timeout / 4, _MOST)
        while not self._stop.wait(step):
            if self.idle_seconds() >= self._timeout:
                self._machine.idle_for_too_long()

    def paused(self) -> None:
        """The machine has been paused, and was idle at that time."""
        sent = self._count()

        def watch() -> None:
            while not self._stop.wait(_STEP):
                if self._machine.resume_if_used(self._count() != sent):
                    return

        threading.Thread(target=watch, name=f"torch-remote {self._machine.id} paused", daemon=True).start()

    def stop(self) -> None:
        """Stops watching. The thread itself may call this."""
        self._stop.set()
