"""Whether a worker finishes its work within a given time: for debuggers and notebooks, which must not wait longer."""

from __future__ import annotations

import threading
import time

import torch

from torch_remote import _C

__all__ = ["becomes_idle"]

_LONGEST_SLEEP = 0.005  # seconds between two looks at the answer

_asked: dict[int, threading.Event] = {}  # by device: the last question; its event is set when the worker has answered
_lock = threading.Lock()


def becomes_idle(device: int, seconds: float) -> bool:
    """Returns whether the worker of a device finishes all that was recorded so far within `seconds`.

    False also means that the worker is away: it is stopped, or the connection to it is broken. The answer is True if
    the worker is lost, because nobody waits for it then. Raises no errors of failed ops. A thread of its own asks the
    worker, so that this function returns in time. The thread goes on until the worker answers.
    """
    deadline = time.monotonic() + seconds
    with _lock:
        before = _asked.get(device)
    if before is not None and not before.wait(seconds):
        return False
    answered = threading.Event()
    with _lock:
        _asked[device] = answered
    thread = threading.Thread(target=_ask, args=(device, answered), name="torch_remote idle", daemon=True)
    # pydevd must neither trace nor suspend this thread.
    thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    thread.start()
    return answered.wait(max(0.0, deadline - time.monotonic()))


def _ask(device: int, answered: threading.Event) -> None:
    try:
        _wait(device)
    except RuntimeError:
        return  # a thread that waits for the device gets this error
    finally:
        answered.set()


def _wait(device: int) -> None:
    _C.set_device(device)
    _C.flush(device)  # may wait until the worker has received enough
    event = torch.Event(torch.device("remote", device), enable_timing=True)
    event.record()
    sleep = 0.0002
    while not event.query():
        time.sleep(sleep)
        sleep = min(2 * sleep, _LONGEST_SLEEP)
