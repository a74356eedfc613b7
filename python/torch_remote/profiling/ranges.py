"""Ranges and marks that the user names (torch.remote.nvtx), for `torch.remote.profile`."""

from __future__ import annotations

import threading
import time
from typing import Literal, NamedTuple

Kind = Literal["range", "free range", "mark"]


class Range(NamedTuple):
    """Times are CLOCK_MONOTONIC, in ns. Only a free range may overlap others of its thread."""

    kind: Kind
    name: str
    thread: int
    begin: int
    end: int


_recorded: list[Range] | None = None  # None: no profile is recorded


def start() -> None:
    """A profile begins: collects ranges that end from now on."""
    global _recorded
    _recorded = []


def stop() -> list[Range]:
    """The profile ends: returns the collected ranges."""
    global _recorded
    kept, _recorded = _recorded or [], None
    return kept


def add(kind: Kind, name: str, begin: int) -> None:
    """Adds a range or mark that ends now."""
    recorded = _recorded
    if recorded is not None:
        recorded.append(Range(kind, name, threading.get_native_id(), begin, time.monotonic_ns()))
