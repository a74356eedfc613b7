"""stable-baselines3 (2.9): device="auto", its default.

It hard-codes in common/utils.py, get_device: "auto" is CUDA, or else the CPU.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_remote.integrations.upstream import current, existing, replace

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes stable_baselines3.common.utils."""
    (original,) = existing(module, "get_device")

    @functools.wraps(original)
    def get_device(device: Any = "auto") -> torch.device:
        return current() if isinstance(device, str) and device == "auto" else original(device)

    replace(module, "get_device", get_device)
