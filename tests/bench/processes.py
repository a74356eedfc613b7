"""Measurements that need a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass


def python(source: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )


def import_torch() -> float:
    """Seconds of a process that imports torch."""
    begin = time.perf_counter()
    python("import torch")
    return time.perf_counter() - begin


def import_both() -> float:
    begin = time.perf_counter()
    python("import torch, torch_remote")
    return time.perf_counter() - begin


def first_result(device: str) -> float:
    """Seconds from the start of a process to the first number it prints."""
    begin = time.perf_counter()
    package = "import torch_remote" if device == "remote" else ""
    python(
        f"""
import torch
{package}
a, b = torch.ones(100, 100, device={device!r}), torch.ones(100, 1, device={device!r})
print((a @ b).sum().item())
"""
    )
    return time.perf_counter() - begin


def first_step(device: str) -> float:
    """Seconds of a process's first training step of a CNN with Adam, from when it is on the device to its loss."""
    package = "import torch_remote" if device == "remote" else ""
    done = python(
        f"""
import time, torch
{package}
from torch import nn
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 10)).to({device!r})
x, y = torch.randn(32, 1, 28, 28).to({device!r}), torch.zeros(32, dtype=torch.long).to({device!r})
if {device!r} == "remote":
    torch.remote.synchronize()
begin = time.perf_counter()
optimizer = torch.optim.Adam(net.parameters())
loss = nn.functional.cross_entropy(net(x), y)
loss.backward()
optimizer.step()
loss.item()
print(time.perf_counter() - begin)
"""
    )
    return float(done.stdout)


@dataclass(frozen=True)
class CachedStep:
    """For one step: the time of its flushes on the client, and the size of their messages."""

    microseconds: float
    bytes: float


def cached_step(ops: int) -> CachedStep:
    """A step of `ops` ops whose programs are known: the flush times from the log."""
    steps, warm = 20, 5
    source = f"""
import sys, torch, torch_remote
x = torch.randn(16, 16, device="remote")
w = [torch.randn(16, 16, device="remote") for _ in range(20)]
def step(i):
    y = x
    for k in range({ops} // 6):
        y = torch.relu(y @ w[k % 20] + i) * 0.5 - w[(k + 7) % 20]
        y = y + 1 / (i + 1)
    return y
for i in range({steps}):
    print("step", file=sys.stderr, flush=True)
    step(i).sum().item()
"""
    log = python(source, TORCH_REMOTE_LOG="flush").stderr
    pattern = re.compile(r"remote flush: (\d+) ops, .*?, (\d+) bytes, ([\d.]+) us")
    totals = []
    for part in log.split("step\n")[1 + warm :]:
        flushes = [(int(b), float(us)) for _, b, us in pattern.findall(part)]
        if "miss" in part or not flushes:
            continue
        totals.append((sum(us for _, us in flushes), sum(b for b, _ in flushes)))
    if not totals:
        raise RuntimeError(f"no step without a miss in the log:\n{log[-2000:]}")
    totals.sort()
    microseconds, size = totals[len(totals) // 2]
    return CachedStep(microseconds, size)
