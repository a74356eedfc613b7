"""Measures a worker on a GPU: copies, norms, matmuls, attention, models, and its start. Writes a Markdown page.

tests/gpu/run.sh runs it; TORCH_REMOTE_WORKER has the worker's address. Kernels are timed by the GPU's own clock
(torch.remote.Event). Each call has different operands, and every result is read. If torch has CUDA, the same is timed
there: eager, and models with Inductor.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_remote

REMOTE = torch.device("remote")
MODELS = ("gpt2", "llama", "bert", "vit", "resnet", "unet", "lstm")


@dataclass(frozen=True)
class Case:
    """One call, on operands that `make` creates on a device. `work` is the number of bytes that it moves, or of
    operations."""

    name: str
    size: str
    make: Callable[[torch.device], tuple[Tensor, ...]]
    call: Callable[..., Tensor]
    work: float
    unit: str  # of work per second: "TB/s" or "TFLOP/s"
    target: str  # for one H200


def randoms(*shapes: tuple[int, ...], dtype: torch.dtype) -> Callable[[torch.device], tuple[Tensor, ...]]:
    # Drawn in float32 and then rounded, because devices draw different numbers in half types.
    return lambda device: tuple(torch.randn(shape, device=device).to(dtype) for shape in shapes)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def cases(tiny: bool) -> list[Case]:
    count = 1 << 12 if tiny else 1 << 28
    rows, width = (8, 64) if tiny else (16384, 8192)
    n = 32 if tiny else 8192
    batch, heads, length, depth = (1, 2, 16, 16) if tiny else (8, 16, 2048, 128)
    sequences, cache = (2, 32) if tiny else (64, 8192)
    half = torch.bfloat16
    moved = 2.0 * rows * width * 4
    return [
        Case("copy", f"{4 * count / 2**20:g} MiB", randoms((count,), dtype=torch.float32), torch.clone,
             8.0 * count, "TB/s", "3.9 TB/s"),
        Case("softmax", f"{rows} x {width} f32", randoms((rows, width), dtype=torch.float32),
             lambda x: torch.softmax(x, -1), moved, "TB/s", "3.7 TB/s"),
        Case("layer norm", f"{rows} x {width} f32", randoms((rows, width), (width,), (width,), dtype=torch.float32),
             lambda x, w, b: F.layer_norm(x, w.shape, w, b), moved, "TB/s", "3.7 TB/s"),
        Case("product", f"{n} x {n} x {n} bf16", randoms((n, n), (n, n), dtype=half), torch.mm,
             2.0 * n**3, "TFLOP/s", "0.99 times torch's speed"),
        Case("attention", f"{batch} x {heads} heads, {length} x {length}, d {depth}, bf16",
             randoms(*[(batch, heads, length, depth)] * 3, dtype=half), attention,
             4.0 * batch * heads * length**2 * depth, "TFLOP/s", "565 TFLOP/s"),
        Case("attention of one token", f"{sequences} x {heads} heads, cache {cache}, d {depth}, bf16",
             randoms((sequences, heads, 1, depth), *[(sequences, heads, cache, depth)] * 2, dtype=half), attention,
             4.0 * sequences * heads * cache * depth, "TB/s", "80 % of the memory's"),
    ]  # fmt: skip


def events(device: torch.device) -> tuple[torch.Event, torch.Event]:
    kind = torch.remote.Event if device.type == "remote" else torch.cuda.Event
    return kind(enable_timing=True), kind(enable_timing=True)


def kernel_seconds(case: Case, device: torch.device, blocks: int) -> float:
    """Seconds per call by the device's clock: the median of blocks. The calls of a block have different operands;
    otherwise they would be computed once, and find their operands in the cache."""
    operands = [case.make(device) for _ in range(2)]
    times: list[float] = []
    # Waits until programs, kernels and plans exist: cuDNN compiles plans for attention at their second use.
    calls, warm, until = 0, 1 if blocks == 1 else 3, time.monotonic() + (0 if blocks == 1 else 5)
    while len(times) < blocks:
        is_warm = calls >= warm and time.monotonic() >= until
        calls += 1
        begin, end = events(device)
        begin.record()
        results = [case.call(*its) for its in operands]
        end.record()
        end.synchronize()
        if is_warm:
            times.append(begin.elapsed_time(end) / 1e3 / len(operands))
        for result in results:
            if not math.isfinite(result.flatten()[-1].item()):
                raise ArithmeticError(f"{case.name}: the result is not finite")
    return statistics.median(times)


def train(name: str, device: torch.device, compiled: bool, tiny: bool) -> Callable[[int], float]:
    """A function that runs a number of steps and reads the last loss."""
    import zoo

    model = zoo.MODELS[name]
    torch.manual_seed(0)
    net = model.make().to(device)
    run = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batch = {key: value.to(device) for key, value in model.batch(*((2, 8) if tiny else (32, 64))).items()}

    def steps(count: int) -> float:
        for _ in range(count):
            loss = model.loss(run, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.item())

    return steps


def step_seconds(name: str, device: torch.device, compiled: bool, tiny: bool, blocks: int) -> float:
    """Seconds per training step of a model, measured in the script."""
    steps = train(name, device, compiled, tiny)
    for _ in range(1 if tiny else 5):
        steps(1)
    times = []
    for _ in range(blocks):
        begin = time.perf_counter()
        if not math.isfinite(steps(1 if tiny else 10)):
            raise ArithmeticError(f"{name}: the loss is not finite")
        times.append((time.perf_counter() - begin) / (1 if tiny else 10))
    return statistics.median(times)


_FIRST = """
import os, sys, time
import torch, torch_remote
begin = float(sys.argv[1])
while not os.path.exists(sys.argv[2]): time.sleep(0.001)
assert (torch.ones(4, device="remote") * 2).sum().item() == 8
print(time.time() - begin)
"""


def start_seconds(command: list[str]) -> float:
    """Seconds from the start of a worker to the first result of a kernel there. The client starts at the same time; its
    imports take about a second."""
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/worker.sock"
        begin = time.time()
        with subprocess.Popen([*command, "--listen", f"unix://{socket}"]) as worker:
            try:
                said = subprocess.run(
                    [sys.executable, "-c", _FIRST, str(begin), socket], text=True, capture_output=True, timeout=120,
                    env={**os.environ, "TORCH_REMOTE_WORKER": f"unix://{socket}"}, check=True,
                )  # fmt: skip
            finally:
                worker.terminate()
    return float(said.stdout)


def cell(value: Callable[[], float], show: Callable[[float], str]) -> str:
    """The measured value, or the reason why there is none."""
    try:
        return show(value())
    except Exception as error:  # a failing row must not affect the others
        return f"failed: {str(error).splitlines()[0][:120]}"


def rows(
    tiny: bool, blocks: int, command: list[str], models: list[str]
) -> Iterator[tuple[str, str, str, str, str, str]]:
    cuda = torch.device("cuda") if torch.cuda.is_available() else None
    for case in cases(tiny):

        def show(seconds: float, case: Case = case) -> str:
            return f"{case.work / seconds / 1e12:.4g} {case.unit}"

        here = cell(lambda case=case: kernel_seconds(case, REMOTE, blocks), show)
        there = cell(lambda case=case: kernel_seconds(case, cuda, blocks), show) if cuda else ""
        yield case.name, case.size, here, case.target, there, ""
    for name in models:

        def show_step(seconds: float) -> str:
            return f"{seconds * 1e3:.3g} ms"

        here = cell(lambda name=name: step_seconds(name, REMOTE, False, tiny, blocks), show_step)
        eager = cell(lambda name=name: step_seconds(name, cuda, False, tiny, blocks), show_step) if cuda else ""
        inductor = cell(lambda name=name: step_seconds(name, cuda, True, tiny, blocks), show_step) if cuda else ""
        target = "1.5 times eager CUDA's speed, 1.1 times Inductor's"
        yield f"{name}, a training step", "2 x 8" if tiny else "32 x 64", here, target, eager, inductor
    yield (
        "worker's start to first result",
        "",
        cell(lambda: start_seconds(command), lambda s: f"{s:.2f} s"),
        "3 s",
        "",
        "",
    )


def page(probe: dict[str, object], emulated: bool, table: list[tuple[str, ...]]) -> str:
    gpu = probe["gpus"][0]  # type: ignore[index]
    versions = ", ".join(
        f"{part['name']} {part['version']}".strip()
        for part in probe["parts"]
        if not part["missing"]  # type: ignore[attr-defined]
    )
    lines = [
        "# On a GPU",
        "",
        "**These numbers are of a GPU in software and mean nothing.**"
        if emulated
        else f"On one {gpu['name']} (sm_{gpu['sm']}, "
        f"{gpu['processors']} processors, {gpu['all_memory'] / 2**30:.1f} GiB), {datetime.date.today():%d %B %Y}.",
        f"{versions}; torch {torch.__version__}, torch_remote {torch_remote.__version__}.",
        "Written by `tests/gpu/run.sh`.",
        "",
        "Kernels by the GPU's clock, median of blocks, each call on operands of its own; training steps by the",
        "script's clock.",
        "Targets are those of one H200. Empty columns: there was no torch with CUDA.",
        "",
        "| | size | worker | target | eager CUDA | Inductor |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in table),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the page")
    parser.add_argument("--probe", type=Path, required=True, help="what `torch-remote-worker --probe --json` said")
    parser.add_argument("--worker", required=True, help="the worker's program")
    parser.add_argument("--emulated", action="store_true", help="the GPU is one in software: tiny sizes")
    parser.add_argument("--models", nargs="*", choices=MODELS, help="default: all; with --emulated: lstm")
    args = parser.parse_args()
    models = args.models if args.models is not None else ["lstm"] if args.emulated else list(MODELS)
    table = []
    for row in rows(args.emulated, 1 if args.emulated else 15, [args.worker, "--device", "cuda:0"], models):
        print(*filter(None, row), sep="  ", flush=True)
        table.append(row)
    args.out.write_text(page(json.loads(args.probe.read_text()), args.emulated, table))
    if any(row[2].startswith("failed") for row in table):
        raise SystemExit("some rows failed: see " + str(args.out))


if __name__ == "__main__":
    main()
