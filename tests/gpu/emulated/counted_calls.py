"""Counts the worker's calls of the emulated driver and NVIDIA libraries. Must be imported before the worker is
started."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from torch_remote._C import worker_info

# The name does not contain this process's pid, because several Bazel sandboxes have the same pid and share /tmp.
CALLS = Path(os.environ.setdefault("TORCH_REMOTE_TEST_CALLS", tempfile.mkdtemp() + "/calls"))


torch.remote.shadow(0)  # its copies would count


def counted() -> Counter[str]:
    """The number of calls by function since the worker started."""
    torch.zeros(1, device="remote")  # starts the worker
    torch.remote.synchronize()
    CALLS.unlink(missing_ok=True)
    os.kill(worker_info(0)["process"], signal.SIGUSR1)
    deadline = time.monotonic() + 30
    while not CALLS.exists():
        assert time.monotonic() < deadline, "the worker tells nothing"
        time.sleep(0.01)
    return Counter({name: int(count) for name, count in (line.split() for line in CALLS.read_text().splitlines())})
