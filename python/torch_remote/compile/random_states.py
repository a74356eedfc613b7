"""torch.utils.checkpoint in compiled graphs: random ops that return, or take, the generator's state.

torch's own functions for this (torch._prims.rng_prims) do not support this device. Programs hold such ops themselves
(frontend/compile/lowering.cpp); this module is for those that run outside of programs.
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
    """The remote device whose generator an op uses, or None."""
    for value in (kwargs.get("device"), *(a.device for a in args if isinstance(a, torch.Tensor))):
        if value is not None and torch.device(value).type == "remote":
            return torch.device(value)
    return None


def run_and_save(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Calls a random op. Returns the generator's state before the call, and the op's result."""
    device = _device(args, kwargs)
    if device is None:
        return run_and_save_rng_state(op, *args, **kwargs)
    return random.get_rng_state(device), op(*args, **kwargs)


def run_with(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a random op with the generator in the given state, and restores the generator."""
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
    """Adds the missing meta["val"] to such ops, which AOTAutograd's partitioner inserts."""

    def example(value: Any) -> Any:
        return fx.map_arg(value, lambda node: node.meta["val"])

    for target, first in ((run_and_save_rng_state, 0), (run_with_rng_state, 1)):
        for node in module.graph.find_nodes(op="call_function", target=target):
            op, *args = node.args[first:]
            args, kwargs = example(args), example(node.kwargs)
            mode = detect_fake_mode([*args, *kwargs.values()])
            if mode is None:  # all arguments are numbers
                continue
            with mode:
                value = op(*args, **kwargs)
            node.meta["val"] = (torch.empty(16, dtype=torch.uint8, device="cpu"), value) if first == 0 else value
