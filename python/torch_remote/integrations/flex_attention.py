"""torch.nn.attention.flex_attention on this device.

Torch hard-codes _validate_device: it accepts only CUDA, CPU, XPU, HPU and MPS. The op's own eager form after it
(scores, score_mod by vmap, softmax, matmul; and its backward) works on any device.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_remote.integrations.upstream import existing

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes torch.nn.attention.flex_attention."""
    (original,) = existing(module, "_validate_device")

    @functools.wraps(original)
    def _validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "remote":
            original(query, key, value)

    vars(module)["_validate_device"] = _validate_device
