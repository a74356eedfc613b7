"""Peak memory of a training step with AdamW on the device compared with CPU eager: live memory, not what allocators
cache.

bazel run //tests/bench:memory
bazel run //tests/bench:memory -- --only gpt2 vit

On CPU, it is the sum of parameters and other tensors before the step, and the maximum allocation during the step that
the profiler saw. On the device, it is torch.remote.max_memory_allocated(). Neither depends on the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TORCH_REMOTE_WAIT_COMPILE", "1")

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from zoo_speed import CPU, NAMES, REMOTE, Model, geomean, models

import torch_remote  # noqa: F401


@dataclass(frozen=True)
class Use:
    before: int  # bytes
    on_top: int  # maximum during a step, in addition

    @property
    def peak(self) -> int:
        return self.before + self.on_top


def allocated_at_once(step: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    now = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


def measure(model: Model, device: torch.device) -> Use:
    torch.manual_seed(0)
    net = model.make().to(device).train()
    x = model.inputs().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step() -> None:
        loss = model.loss(net(x), x)
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    if device == CPU:
        state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
        before = sum(t.nbytes for t in [x, *net.parameters(), *net.buffers(), *state])
        return Use(before, allocated_at_once(step))
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    torch.remote.reset_peak_memory_stats()
    step()
    torch.remote.synchronize()
    return Use(before, torch.remote.max_memory_allocated() - before)


def table(names: list[str]) -> None:
    print("| model | CPU, MB | device, MB | ratio | ratio of the rest |\n|---|---:|---:|---:|---:|")
    ratios = []
    for name in names:
        cpu, remote = (measure(models()[name], device) for device in (CPU, REMOTE))
        ratios.append(remote.peak / cpu.peak)
        cells = [f"{use.before / 1e6:.1f} + {use.on_top / 1e6:.1f}" for use in (cpu, remote)]
        print(f"| {name} | {' | '.join(cells)} | {ratios[-1]:.3f} | {remote.on_top / cpu.on_top:.3f} |", flush=True)
    print(f"| geometric mean | | | {geomean(ratios):.3f} | |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    table(parser.parse_args().only)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
