"""torch.distributed on the device `remote`: the backend `remote`, whose collectives run between the workers.

Importing the package registers the backend; docs/distributed.md is the user's page.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch

__all__ = ["in_use", "register"]


def register() -> None:
    """Registers the backend, and makes it the default one of the device."""
    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend("remote", _make, devices=["remote"])


def in_use() -> bool:
    """Whether this process has created a process group."""
    return "torch_remote.distributed.group" in sys.modules


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from torch_remote.distributed.group import make_backend

    return make_backend(store, rank, size, timeout)
