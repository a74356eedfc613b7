"""Chains of ops that a single kernel computes: CPU eager, the device op by op, the device with fused kernels, and
Inductor. The sides alternate in one process. The output is a markdown table for docs/benchmarks.md.

bazel run //tests/bench:kernel_speed
bazel run //tests/bench:kernel_speed -- --only swiglu softmax --rounds 21 --no-inductor
bazel run //tests/bench:kernel_speed -- --products

Each side computes a batch of calls with different operands (otherwise a single kernel would compute all of them). All
results stay alive, so that nothing is skipped and no memory is reused. Then the device is synchronized. Kernels are
compiled before the measurement, and all sides have the same number of threads. The share of a copy's rate counts each
operand and result once. It is relative to clones of tensors on the same device, which alternate with the kernel. The
device op by op is a second worker, whose programs are built without fusion.
"""

# This file cannot be named kernels.py, because transformers would take it for the package of that name.

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Threads of an idle side must not spin. OpenMP reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TORCH_REMOTE_WAIT_COMPILE", "1")

import torch
import torch.nn.functional as F
from torch import Tensor
from zoo_speed import geomean

import torch_remote  # noqa: F401

BATCH = 8  # calls per measurement
N, M = 2048, 1024
IMAGES = (8, 64, 56, 56)
SIDES = {"cpu": "cpu", "nodes": "remote:1", "remote": "remote:0", "inductor": "cpu"}


class Kernel:
    """A function of tensors, its operands, and the target speedup over eager."""

    def __init__(
        self,
        target: float,
        function: Callable[..., Any],
        *shapes: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        index: int = 0,
        random: bool = False,
    ):
        self.target, self.function, self.shapes, self.dtype = target, function, shapes, dtype
        self.index = index  # number of indices into the first operand's rows, which are the last operand
        self.random = random  # results differ between sides

    def operands(self, call: int) -> list[Tensor]:
        torch.manual_seed(call)
        made = [torch.randn(shape).to(self.dtype) for shape in self.shapes]
        if self.index:
            made.append(torch.randint(made[0].shape[0], (self.index,)))
        return made

    def make(self, operands: list[list[Tensor]], compiled: bool) -> Callable[[int], Any]:
        function = torch.compile(self.function) if compiled else self.function
        return lambda call: function(*operands[call])

    def bytes(self, operands: list[Tensor]) -> int:
        return sum(x.nbytes for x in operands) + self.function(*operands).nbytes


class Optimizer(Kernel):
    """AdamW steps over a hundred tensors, with the shapes of a small transformer."""

    def __init__(self, target: float, **path: bool):
        super().__init__(target, lambda *x: x[0], *[(256, 256), (256,), (256, 64), (64,)] * 25)
        self.path = path

    def make(self, operands: list[list[Tensor]], compiled: bool) -> Callable[[int], Any]:
        parameters = [x.clone() for x in operands[0]]
        for x in parameters:
            x.grad = x * 0.1
        step = torch.optim.AdamW(parameters, lr=1e-4, **self.path).step
        step = torch.compile(step) if compiled else step

        def run(_: int) -> Tensor:
            step()
            return parameters[0]

        return run

    def bytes(self, operands: list[Tensor]) -> int:
        return sum(x.nbytes for x in operands) * 7  # four tensors are read, three are written


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def cross_entropy(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1]).backward()
    return x.grad


def embedding(w: Tensor, at: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    (F.embedding(at, w) * 0.5).sum().backward()
    return w.grad


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, w, b))


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gradient of the first operand. Gradients of the others are computed, too."""

    def run(*operands: Tensor) -> Tensor:
        leaves = [x.detach().requires_grad_() for x in operands]
        function(*leaves).backward(operands[0])
        return leaves[0].grad

    return run


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def linear(function: Callable[[Tensor], Tensor], rows: int, inputs: int, outputs: int) -> Kernel:
    """A matmul, a bias and the following op, as in BERT and ViT."""
    return Kernel(1, lambda x, w, b: function(F.linear(x, w, b)), (rows, inputs), (outputs, inputs), (outputs,))


def conv1d(rows: int, inputs: int, outputs: int) -> Kernel:
    """As in GPT-2: the weight is transposed, and gelu uses tanh."""
    return Kernel(
        1,
        lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
        (rows, inputs),
        (inputs, outputs),
        (outputs,),
    )


def residual(rows: int, inputs: int, outputs: int) -> Kernel:
    return Kernel(
        1,
        lambda x, w, b, y: F.linear(x, w, b) + y,
        (rows, inputs),
        (outputs, inputs),
        (outputs,),
        (rows, outputs),
    )


def attention(**options: bool) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


# Matmuls with the following ops, executed by a library or by loops for few rows; and attention.
MATMULS = {
    **{f"linear, gelu, {rows} x 768 x 3072": linear(F.gelu, rows, 768, 3072) for rows in (1, 4, 32, 128, 512)},
    **{f"linear, relu, {rows} x 256 x 1024": linear(F.relu, rows, 256, 1024) for rows in (8, 64, 1024)},
    "linear, silu, 512 x 512 x 512": linear(F.silu, 512, 512, 512),
    **{f"Conv1D, gelu, {rows} x 768 x 3072": conv1d(rows, 768, 3072) for rows in (1, 16, 128, 512)},
    **{f"linear, residual, {rows} x 3072 x 768": residual(rows, 3072, 768) for rows in (1, 32, 512)},
    "bf16 matrix, vector, 4096": Kernel(1.5, F.linear, (1, 4096), (4096, 4096), dtype=torch.bfloat16),
    "attention, causal, 16 x 512 x 64": Kernel(1.3, attention(is_causal=True), *[(2, 8, 512, 64)] * 3),
    "attention, causal, 16 x 1024 x 64": Kernel(1.3, attention(is_causal=True), *[(2, 8, 1024, 64)] * 3),
    "attention, one query, 16 x 1024 x 64": Kernel(1.5, attention(), (2, 8, 1, 64), *[(2, 8, 1024, 64)] * 2),
    "attention, one query, 32 x 4096 x 64": Kernel(1.5, attention(), (1, 32, 1, 64), *[(1, 32, 4096, 64)] * 2),
}

KERNELS = {
    "sigmoid * tanh, gelu": Kernel(4, lambda x, y: F.gelu(torch.sigmoid(x) * torch.tanh(y)), (N, M), (N, M)),
    "swiglu": Kernel(1.5, lambda x, y: F.silu(x) * y, (N, M), (N, M)),
    "softmax": Kernel(1.5, lambda x: torch.softmax(x * 0.5, -1), (N, M)),
    "layer norm, residual": Kernel(2, lambda x, y, w: F.layer_norm(x + y, (M,), w, w), (N, M), (N, M), (M,)),
    "rms norm": Kernel(3, rms_norm, (N, M), (M,)),
    "cross entropy": Kernel(1.5, cross_entropy, (N, M)),
    "column sums": Kernel(1.2, lambda x: (x * 2).sum(0), (N, M)),
    "argmax": Kernel(1, lambda x: (x * 2).argmax(-1), (N, M)),
    "cumsum": Kernel(1, lambda x: torch.cumsum(x * 0.5, -1), (N, M)),
    "transpose, add": Kernel(1.5, lambda x, y: x.t() + y, (M, N), (N, M)),
    "rope": Kernel(1.5, rope, (16, 128, 1024), (128, 1024), (128, 1024)),
    "dropout, add": Kernel(1, lambda x, y: F.dropout(x, 0.1) + y, (N, M), (N, M), random=True),
    "embedding, gradient": Kernel(1, embedding, (N, M), index=N),
    "group norm, silu": Kernel(1.5, group_norm, IMAGES, (64,), (64,)),
    "group norm, silu, gradients": Kernel(1.5, gradient(group_norm), IMAGES, (64,), (64,)),
    "batch norm, relu": Kernel(1.5, batch_norm, IMAGES, (64,), (64,)),
    "batch norm, relu, gradients": Kernel(1.5, gradient(batch_norm), IMAGES, (64,), (64,)),
    "batch norm in eval mode, relu": Kernel(
        1, lambda x, m, v: F.relu(F.batch_norm(x, m, v * v + 1)), IMAGES, (64,), (64,)
    ),
    "bf16 chain": Kernel(3, lambda x, y: (x * y + x).tanh() * y, (N, M), (N, M), dtype=torch.bfloat16),
    "AdamW": Optimizer(3),
    "AdamW, foreach": Optimizer(3, foreach=True),
    "AdamW, fused": Optimizer(1, fused=True),
}


def batch(call: Callable[[int], Any], device: str) -> Callable[[], float]:
    """Seconds per call in a batch of BATCH calls."""

    def run() -> float:
        began = time.perf_counter()
        kept = [call(i) for i in range(BATCH)]
        if device != "cpu":
            torch.remote.synchronize(device)
        took = time.perf_counter() - began
        del kept
        return took / BATCH

    return run


def measure(kernel: Kernel, sides: dict[str, str], rounds: int) -> dict[str, float]:
    """The median seconds of each side and of a clone on the device ("copy"). "share" is the bytes per second of the
    device's kernel, divided by those of the clone."""
    cpu = [kernel.operands(call) for call in range(BATCH)]
    runs = {}
    for side, device in sides.items():
        # Warm-up rounds build the programs.
        os.environ["TORCH_REMOTE_FUSION"] = "0" if side == "nodes" else "1"
        torch._dynamo.reset()
        call = kernel.make([[x.to(device) for x in operands] for operands in cpu], side == "inductor")
        if side == "remote" and not kernel.random:
            torch.testing.assert_close(call(0).cpu(), kernel.make(cpu, False)(0), rtol=0.05, atol=0.05)
        runs[side] = batch(call, device)
        for _ in range(3):
            runs[side]()
        # If runs do not wait for kernels: waits until they are compiled and the matmul libraries have been timed.
        until = time.monotonic() + (0 if "TORCH_REMOTE_WAIT_COMPILE" in os.environ else 2)
        while side == "remote" and time.monotonic() < until:
            runs[side]()
            time.sleep(0.01)
    copied = [torch.zeros(N, M).to(sides["remote"]) for _ in range(BATCH)]
    runs["copy"] = batch(lambda call: copied[call].clone(), sides["remote"])
    runs["copy"]()
    times: dict[str, list[float]] = {side: [] for side in runs}
    for _ in range(rounds):
        for side, run in runs.items():
            times[side].append(run())
    middle = {side: sorted(taken)[len(taken) // 2] for side, taken in times.items()}
    middle["share"] = kernel.bytes(cpu[0]) / middle["remote"] / (2 * copied[0].nbytes / middle["copy"])
    return middle


def table(names: list[str], rounds: int, sides: dict[str, str]) -> None:
    print(
        "| kernel | CPU eager | Inductor | op by op | fused | over eager | target | over op by op | over Inductor "
        "| share of a copy's rate |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    ratios: dict[str, list[float]] = {side: [] for side in sides}
    for name in names:
        kernel = KERNELS.get(name) or MATMULS[name]
        took = measure(kernel, sides, rounds)
        for side in sides:
            ratios[side].append(took[side] / took["remote"])
        over = {side: f"{of[-1]:.2f}" for side, of in ratios.items()}
        if ratios["cpu"][-1] < kernel.target:
            over["cpu"] += " **missed**"
        shown = [f"{1e3 * took[s]:.2f} ms" if s in took else "" for s in ("cpu", "inductor", "nodes", "remote")]
        shown += [over["cpu"], f"{kernel.target:g}", over.get("nodes", ""), over.get("inductor", "")]
        print("| " + " | ".join([name, *shown, f"{took['share']:.0%}"]) + " |", flush=True)
    means = {side: f"{geomean(of):.2f}" for side, of in ratios.items()}
    print(
        f"| geometric mean | | | | | {means['cpu']} | | {means.get('nodes', '')} | {means.get('inductor', '')} | |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*KERNELS, *MATMULS], metavar="NAME")
    parser.add_argument("--products", action="store_true", help="instead: products with what follows them, attention")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("TORCH_REMOTE_WORKER", "local,local")
    if args.products:
        del os.environ["TORCH_REMOTE_WAIT_COMPILE"]  # with it, no library is chosen by timing
    sides = dict(SIDES)
    if args.no_inductor:
        del sides["inductor"]
    if torch.remote.device_count() < 2:
        del sides["nodes"]
    table(args.only or list(MATMULS if args.products else KERNELS), args.rounds, sides)
    return 0


if __name__ == "__main__":
    sys.exit(main())
