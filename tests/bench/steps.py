"""Training steps on all sides: CPU eager, Inductor on the CPU, the device, and the device with torch.compile. The sides
alternate in one process. The output is markdown tables for docs/benchmarks.md.

bazel run //tests/bench:steps                            each model, each path of the optimizer, quiet and loaded
bazel run //tests/bench:steps -- --only mlp gpt2 --rounds 11
bazel run //tests/bench:steps -- --inference             forward passes in eval mode instead of training steps
bazel run //tests/bench:steps -- --cold                  first steps, each in a fresh process without any cache
bazel run //tests/bench:steps -- --stalls                the longest call of the script while kernels are compiled

A step consists of forward, backward, AdamW and reading the loss. The optimizer takes the same path on every side: its
default, `foreach=True`, or `fused=True`. *Loaded*: other processes compute on all cores but one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import zoo_speed
from torch import nn
from torch.overrides import TorchFunctionMode
from zoo_speed import CPU, REMOTE, Model, geomean

PATHS: dict[str, dict[str, bool]] = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
SIDES = ("cpu", "inductor", "remote", "compiled")


def models() -> dict[str, Model]:
    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    return {"mlp": Model(mlp, lambda: torch.randn(64, 256), zoo_speed.first_class), **zoo_speed.models()}


def make_net(model: Model, side: str) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The net on its side's device, the function that calls it there, and its inputs."""
    torch.manual_seed(0)
    device = CPU if side in ("cpu", "inductor") else REMOTE
    net = model.make().to(device)
    x = model.inputs().to(device)
    if side in ("inductor", "compiled"):
        return net, torch.compile(net, backend="remote" if side == "compiled" else "inductor"), x
    return net, net, x


def make_training(model: Model, side: str, path: str) -> Callable[[], torch.Tensor]:
    """A step that returns the loss without reading it."""
    net, run, x = make_net(model, side)
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, **PATHS[path])

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(run(x), x)
        loss.backward()
        optimizer.step()
        return loss

    return step


def make_step(model: Model, side: str, path: str) -> Callable[[], float]:
    step = make_training(model, side, path)
    return lambda: step().item()


def make_inference(model: Model, side: str) -> Callable[[], float]:
    net, run, x = make_net(model, side)
    net.eval()

    def infer() -> float:
        with torch.no_grad():
            return run(x).sum().item()

    return infer


@contextlib.contextmanager
def other_work() -> Iterator[None]:
    """Processes that compute on all cores but one."""
    source = "import torch; torch.set_num_threads(1); x = torch.randn(400, 400)\nwhile True: x @ x"
    others = [subprocess.Popen([sys.executable, "-c", source]) for _ in range(max(1, len(os.sched_getaffinity(0)) - 1))]
    time.sleep(3)  # until they compute
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def steps(names: list[str], paths: list[str], rounds: int) -> None:
    """Prints a row for each path of the optimizer; the path `inference` has no optimizer."""
    print(
        "| model | optimizer | CPU eager | Inductor | remote | remote, compiled | remote / eager, quiet | loaded "
        "| compiled / Inductor, quiet | loaded |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    found: dict[tuple[str, bool], list[float]] = {}
    known = models()
    for name in names:
        for path in paths:
            torch._dynamo.reset()
            model = known[name]
            functions = {
                side: make_inference(model, side) if path == "inference" else make_step(model, side, path)
                for side in SIDES
            }
            quiet = zoo_speed.alternate(rounds, functions)
            with other_work():
                loaded = zoo_speed.alternate(rounds, functions)
            cells = [f"{statistics.median(quiet[side]) * 1e3:.2f} ms" for side in SIDES]
            for of, to in (("remote", "cpu"), ("compiled", "inductor")):
                for times in (quiet, loaded):
                    # On a loaded machine a step takes 2 ms or 150 ms, so the total time counts.
                    value = sum(times[of]) / sum(times[to]) if times is loaded else zoo_speed.ratio(times, of, to)
                    found.setdefault((of, times is loaded), []).append(value)
                    cells.append(f"{value:.2f}")
            print(f"| {name} | {path} | {' | '.join(cells)} |", flush=True)
    means = [f"{geomean(values):.2f}" for values in found.values()]
    print(f"| geometric mean | | | | | | {' | '.join(means)} |")


def first_step(name: str, side: str) -> None:
    """Prints the seconds of the first step of this process, from when the model exists to the loss."""
    step = make_step(models()[name], side, "default")
    begin = time.perf_counter()
    step()
    print(time.perf_counter() - begin)


def without_caches(*arguments: str) -> list[str]:
    """This program's output for `arguments`, split into words, from a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_REMOTE_KERNEL_CACHE")
        environment = {**os.environ, **dict.fromkeys(caches, folder)}
        command = [sys.executable, __file__, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def cold(names: list[str], rounds: int) -> None:
    """Repeats the sides that do not compile `rounds` times, and runs the sides that compile for seconds once."""
    print(
        "| model | CPU eager | remote | remote / eager | Inductor | remote, compiled | compiled / Inductor |"
        "\n|---|---:|---:|---:|---:|---:|---:|"
    )
    found: dict[str, list[float]] = {"remote": [], "compiled": []}
    for name in names:
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for i in range(rounds):
            for side in SIDES if i == 0 else ("cpu", "remote"):
                seconds[side].append(float(without_caches("--first", name, side)[-1]))
        times = {side: statistics.median(values) for side, values in seconds.items()}
        for of, to in (("remote", "cpu"), ("compiled", "inductor")):
            found[of].append(times[of] / times[to])
        print(
            f"| {name} | {times['cpu'] * 1e3:.0f} ms | {times['remote'] * 1e3:.0f} ms | {found['remote'][-1]:.2f} "
            f"| {times['inductor']:.2f} s | {times['compiled']:.2f} s | {found['compiled'][-1]:.2f} |",
            flush=True,
        )
    print(f"| geometric mean | | | {geomean(found['remote']):.2f} | | | {geomean(found['compiled']):.2f} |")


class Calls(TorchFunctionMode):
    """The longest call of a torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = (0.0, "")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        begin = time.perf_counter()
        try:
            return function(*args, **(kwargs or {}))
        finally:
            seconds = time.perf_counter() - begin
            if seconds > self.longest[0]:
                self.longest = (seconds, function.__name__)


STALL_SECONDS = 3.0  # training time until the kernels are compiled
WAIT_EVERY = 4  # steps; few enough that the script never waits because too much work is in flight


def stalls_of(name: str) -> None:
    """Trains for `STALL_SECONDS`. Prints the longest call and its function, the median and the maximum recording time
    of a step (seconds), and the number of compiled kernels. The model is moved to the device beforehand."""
    step = make_training(models()[name], "remote", "default")
    torch.remote.synchronize()
    recorded: list[float] = []
    end = time.perf_counter() + STALL_SECONDS
    with Calls() as calls:
        while time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            recorded.append(time.perf_counter() - begin)
            if len(recorded) % WAIT_EVERY == 0:
                torch.remote.synchronize()
    torch.remote.synchronize()
    compiled = torch.remote.stats()["kernels_compiled"]
    print(*calls.longest, statistics.median(recorded), max(recorded), compiled)


def stalls(names: list[str], rounds: int) -> None:
    print(
        "| model | kernels compiled meanwhile | longest call | its function | recording a step, median | longest |"
        "\n|---|---:|---:|---|---:|---:|"
    )
    for name in names:
        seconds, of, median, longest, kernels = max(
            (without_caches("--stall", name)[-5:] for _ in range(rounds)), key=lambda printed: float(printed[0])
        )
        times = [f"{float(value) * 1e3:.1f} ms" for value in (seconds, median, longest)]
        print(f"| {name} | {kernels} | {times[0]} | `{of}` | {times[1]} | {times[2]} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["mlp", *zoo_speed.NAMES]
    parser.add_argument("--only", nargs="*", default=names, choices=names, help="some of the models")
    parser.add_argument("--paths", nargs="*", default=list(PATHS), choices=list(PATHS), help="of the optimizer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inference", action="store_true", help="instead: inference")
    parser.add_argument("--cold", action="store_true", help="instead: first steps in fresh processes")
    parser.add_argument("--stalls", action="store_true", help="instead: the longest call, of --rounds fresh processes")
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--stall", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.first:
        first_step(*args.first)
    elif args.stall:
        stalls_of(args.stall)
    elif args.stalls:
        stalls(args.only, args.rounds)
    elif args.cold:
        cold(args.only, args.rounds)
    else:
        steps(args.only, ["inference"] if args.inference else args.paths, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
