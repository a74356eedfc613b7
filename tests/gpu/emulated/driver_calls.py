"""Counts the calls of the driver and NVIDIA libraries in a cached step. The steps are a training step of an MLP, a
generation step of GPT-2, and one kernel with an `.item()`. The GPU is emulated.

bazel run //tests/gpu/emulated:driver_calls
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import zoo
from counted_calls import CALLS, counted
from torch import nn

WARM, STEPS = 40, 10


def mlp_step(device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=1000)
    x, y = torch.randn(16, 32).to(device), torch.randint(0, 8, (16,)).to(device)

    def step() -> None:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loss.item()

    return step


def decode_step(device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    net = zoo.MODELS["gpt2"].make().eval().to(device)
    tokens = torch.randint(0, zoo.VOCABULARY, (1, 4)).to(device)
    state = {"token": tokens[:, -1:], "cache": None}
    with torch.no_grad():
        state["cache"] = net(tokens, use_cache=True).past_key_values

    def step() -> None:
        with torch.no_grad():
            made = net(state["token"], past_key_values=state["cache"], use_cache=True)
        state["cache"] = made.past_key_values
        state["token"] = made.logits[:, -1:].argmax(-1)
        state["token"].item()

    return step


def item_step(device: torch.device) -> Callable[[], None]:
    x = torch.ones(1).to(device)
    return lambda: (x + 1).item()


STEP = {"MLP, AdamW": mlp_step, "GPT-2 decode": decode_step, "one kernel, item()": item_step}


def calls_of(name: str, device: torch.device) -> dict[str, float]:
    """The number of calls per step, by function."""
    step = STEP[name](device)
    for _ in range(WARM):
        step()
    before = counted()
    for _ in range(STEPS):
        step()
    after = counted()
    return {call: (after[call] - before[call]) / STEPS for call in sorted(after) if after[call] != before[call]}


def main() -> int:
    import torch_remote  # noqa: F401

    for name in STEP:
        calls = calls_of(name, torch.device("remote"))
        print(f"{name}: {sum(calls.values()):.1f} calls a step")
        for call, count in sorted(calls.items(), key=lambda item: -item[1]):
            print(f"  {call:44} {count:6.1f}")
    CALLS.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
