"""Chains of ops that one kernel does: the device beside CPU eager and Inductor, in turn in one process; a markdown
table for docs/benchmarks.md.

bazel run //tests/bench:kernels
bazel run //tests/bench:kernels -- --only swiglu softmax --rounds 21 --no-inductor

Every side computes a batch of calls whose results are all kept, so that nothing is left out and no memory is used
again; then the device is synchronized. Kernels are compiled before. The share of a copy's rate counts each operand and
result once, against a clone of a tensor.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

# Threads of the side that rests must not compute: read when OpenMP loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TORCH_REMOTE_WAIT_COMPILE", "1")

import torch
import torch.nn.functional as F
from torch import Tensor
from zoo_speed import geomean

import torch_remote  # noqa: F401

BATCH = 8  # calls at a time
N, M = 2048, 1024
F32 = torch.float32


class Kernel:
    """A function of tensors, these, and what the table demands against eager."""

    def __init__(self, target: float, function: Callable[..., Tensor], *shapes: tuple, dtype: torch.dtype = F32):
        self.target, self.function, self.shapes, self.dtype = target, function, shapes, dtype

    def operands(self) -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(shape).to(self.dtype) for shape in self.shapes]


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def cross_entropy(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1]).backward()
    return x.grad


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


KERNELS = {
    "sigmoid * tanh, gelu": Kernel(4, lambda x, y: F.gelu(torch.sigmoid(x) * torch.tanh(y)), (N, M), (N, M)),
    "swiglu": Kernel(1.5, lambda x, y: F.silu(x) * y, (N, M), (N, M)),
    "softmax": Kernel(1.5, lambda x: torch.softmax(x * 0.5, -1), (N, M)),
    "layer norm, residual": Kernel(2, lambda x, y, w: F.layer_norm(x + y, (M,), w, w), (N, M), (N, M), (M,)),
    "rms norm": Kernel(3, rms_norm, (N, M), (M,)),
    "cross entropy": Kernel(1.5, cross_entropy, (N, M)),
    "column sums": Kernel(1.2, lambda x: (x * 2).sum(0), (N, M)),
    "transpose, add": Kernel(1.5, lambda x, y: x.t() + y, (M, N), (N, M)),
    "rope": Kernel(1.5, rope, (16, 128, 1024), (128, 1024), (128, 1024)),
    "bf16 chain": Kernel(3, lambda x, y: (x * y + x).tanh() * y, (N, M), (N, M), dtype=torch.bfloat16),
}


def batch(function: Callable[..., Tensor], operands: list[Tensor]) -> Callable[[], float]:
    """Seconds of a call, among BATCH of them."""
    waits = operands[0].device.type == "remote"

    def run() -> float:
        began = time.perf_counter()
        kept = [function(*operands) for _ in range(BATCH)]
        if waits:
            torch.remote.synchronize()
        took = time.perf_counter() - began
        del kept
        return took / BATCH

    return run


def measure(kernel: Kernel, rounds: int, inductor: bool) -> dict[str, float]:
    cpu = kernel.operands()
    remote = [x.to("remote") for x in cpu]
    sides = {"cpu": batch(kernel.function, cpu), "remote": batch(kernel.function, remote)}
    if inductor:
        torch._dynamo.reset()
        sides["inductor"] = batch(torch.compile(kernel.function), cpu)
    torch.testing.assert_close(kernel.function(*remote).cpu(), kernel.function(*cpu), rtol=0.05, atol=0.05)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds + 3):
        for side, run in sides.items():
            took = run()
            if i >= 3:
                times[side].append(took)
    middle = {side: sorted(taken)[len(taken) // 2] for side, taken in times.items()}
    middle["bytes"] = sum(x.nbytes for x in cpu) + kernel.function(*cpu).nbytes
    return middle


def copy_rate(rounds: int) -> float:
    """Bytes a second, read and written, of a copy on the worker."""
    x = torch.zeros(N, M).to("remote")
    run = batch(lambda x: x.clone(), [x])
    return 2 * x.nbytes / sorted(run() for _ in range(rounds + 3))[rounds // 2]


def table(names: list[str], rounds: int, inductor: bool) -> None:
    rate = copy_rate(rounds)
    print("| kernel | CPU eager | Inductor | remote | over eager | target | over Inductor | share of a copy's rate |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    over_eager, over_inductor = [], []
    for name in names:
        took = measure(KERNELS[name], rounds, inductor)
        over_eager.append(took["cpu"] / took["remote"])
        if inductor:
            over_inductor.append(took["inductor"] / took["remote"])
        shown = [f"{1e3 * took[side]:.2f} ms" if side in took else "" for side in ("cpu", "inductor", "remote")]
        target = KERNELS[name].target
        eager = f"{over_eager[-1]:.2f}" + ("" if over_eager[-1] >= target else " **missed**")
        against = f"{over_inductor[-1]:.2f}" if inductor else ""
        share = f"{took['bytes'] / took['remote'] / rate:.0%}"
        print("| " + " | ".join([name, *shown, eager, str(target), against, share]) + " |", flush=True)
    mean = f"{geomean(over_inductor):.2f}" if inductor else ""
    print(f"| geometric mean | | | | {geomean(over_eager):.2f} | | {mean} | |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(KERNELS), choices=list(KERNELS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    table(args.only, args.rounds, not args.no_inductor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
