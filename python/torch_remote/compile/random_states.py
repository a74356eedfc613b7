"""What torch.utils.checkpoint does in compiled graphs: random ops that say, or are told, where their numbers come from.

torch's own functions for it (torch._prims.rng_prims) do not know this device. Programs hold such ops as they are
(frontend/compile/lowering.cpp); this is for those that run outside of programs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from torch_remote.device import random

__all__ = ["add_examples", "run_and_save", "run_with"]


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Which of ours an op draws on, if it does."""
    for value in (kwargs.get("device"), *(a.device for a in args if isinstance(a, torch.Tensor))):
        if value is not None and torch.device(value).type == "remote":
            return torch.device(value)
    return None


def run_and_save(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Calls a random op. Returns the generator's state before, and what the op returns."""
    device = _device(args, kwargs)
    if device is None:
        return run_and_save_rng_state(op, *args, **kwargs)
    return random.get_rng_state(device), op(*args, **kwargs)


def run_with(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a random op with the generator in this state; leaves the generator as it was."""
    device = _device(args, kwargs)
    if device is None:
        return run_with_rng_state(state, op, *args, **kwargs)
    before = random.get_rng_state(device)
    random.set_rng_state(state, device)
    try:
        return op(*args, **kwargs)
    finally:
        random.set_rng_state(before, device)


def add_examples(module: fx.GraphModule) -> None:
    """Gives such ops, which AOTAutograd's partitioner makes, the meta["val"] that other nodes have."""

    def example(value: Any) -> Any:
        return fx.map_arg(value, lambda node: node.meta["val"])

    for target, first in ((run_and_save_rng_state, 0), (run_with_rng_state, 1)):
        for node in module.graph.find_nodes(op="call_function", target=target):
            op, *args = node.args[first:]
            args, kwargs = example(args), example(node.kwargs)
            mode = detect_fake_mode([*args, *kwargs.values()])
            if mode is None:  # nothing but numbers
                continue
            with mode:
                value = op(*args, **kwargs)
            node.meta["val"] = (torch.empty(16, dtype=torch.uint8), value) if first == 0 else value
