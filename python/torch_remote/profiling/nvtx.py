"""Ranges and marks in `torch.remote.profile`'s trace, with the names of `torch.cuda.nvtx`.

They are on a track next to that of their thread. They cost next to nothing while no profile is recorded.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch_remote.profiling import ranges as profile_ranges

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def __dir__() -> list[str]:
    return __all__


_stacks = threading.local()
_ids = itertools.count(1)
_started: dict[int, tuple[str, int]] = {}


def _stack() -> list[tuple[str, int]]:
    if not hasattr(_stacks, "open"):
        _stacks.open = []
    return _stacks.open


def range_push(msg: str) -> int:
    """Begins a range in this thread. Returns the number of enclosing ranges."""
    stack = _stack()
    stack.append((str(msg), time.monotonic_ns()))
    return len(stack) - 1


def range_pop() -> int:
    """Ends the range that this thread began last. Returns the number of enclosing ranges, or -1 if there was no
    range."""
    stack = _stack()
    if not stack:
        return -1
    profile_ranges.add("range", *stack.pop())
    return len(stack)


def range_start(msg: str) -> int:
    """Begins a range that may overlap others and end in another thread. Returns its id for `range_end`."""
    number = next(_ids)
    _started[number] = (str(msg), time.monotonic_ns())
    return number


def range_end(range_id: int) -> None:
    """Ends a range that `range_start` began. An unknown id changes nothing."""
    started = _started.pop(range_id, None)
    if started is not None:
        profile_ranges.add("free range", *started)


def mark(msg: str) -> None:
    """Marks a point in time."""
    profile_ranges.add("mark", str(msg), time.monotonic_ns())


@contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Context manager and decorator for a range. The arguments are passed to `msg.format`."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
