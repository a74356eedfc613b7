"""Costs and benefits of torch.compile(backend="remote") by model, as markdown tables for docs/benchmarks.md.

bazel run //tests/bench:compiled                      all models
bazel run //tests/bench:compiled -- gpt2 resnet       only these
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import zoo
from torch._dynamo.utils import counters

import torch_remote  # noqa: F401
import torch_remote.compile.compiler as compiler

REMOTE = torch.device("remote")
MODELS = ["llama", "gpt2", "bert", "vit", "resnet", "unet"]
SIZES = [(2 + i % 5 + i // 5, 8 + i) for i in range(10)]  # ten different sizes


class Spent:
    """Seconds spent in our part of compilation, and in our part of each call."""

    def __init__(self) -> None:
        self.compile = 0.0
        self.nodes = 0
        self.calls: list[float] = []

    def __enter__(self) -> Spent:
        self._compile_graph = compiler.compile_graph
        compiler.compile_graph = self._timed
        return self

    def __exit__(self, *exc_info: object) -> None:
        compiler.compile_graph = self._compile_graph

    def _timed(self, module: torch.fx.GraphModule, **options: Any) -> Callable[[list[Any]], Any]:
        begin = time.perf_counter()
        compiled = self._compile_graph(module, **options)
        self.compile += time.perf_counter() - begin
        self.nodes += len(module.graph.nodes)

        def call(arguments: list[Any]) -> Any:
            begin = time.perf_counter()
            results = compiled(arguments)
            self.calls.append(time.perf_counter() - begin)
            return results

        call._boxed_call = True
        return call


def step_of(model: zoo.Model, net: torch.nn.Module, run: Any, optimizer: torch.optim.Optimizer) -> Callable[..., float]:
    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model.loss(run, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(name: str, rounds: int) -> str:
    torch._dynamo.reset()
    counters.clear()
    model = zoo.MODELS[name]
    torch.manual_seed(0)
    net = model.make().to(REMOTE)
    lazily = step_of(model, net, net, torch.optim.SGD(net.parameters(), 0.0))
    batches = [{key: value.to(REMOTE) for key, value in model.batch(*size).items()} for size in SIZES]
    lazily(batches[0]).item()

    with Spent() as spent:
        run = torch.compile(net, backend="remote", dynamic=True)
        compiled = step_of(model, net, run, torch.optim.SGD(net.parameters(), 0.0))
        compiled(batches[0]).item()
    compiled(batches[1]).item()
    before = torch.remote.stats()["programs_built"]
    for batch in batches[2:]:
        compiled(batch).item()
    built = torch.remote.stats()["programs_built"] - before

    def sample(step: Callable[..., torch.Tensor]) -> float:
        begin = time.perf_counter()
        for _ in range(5):
            loss = step(batches[0])
        loss.item()
        return (time.perf_counter() - begin) / 5

    for step in (compiled, lazily):
        sample(step)
    spent.calls.clear()
    pairs = [(sample(compiled), sample(lazily)) for _ in range(rounds)]
    with_graphs, without = (statistics.median(times) for times in zip(*pairs, strict=True))
    breaks = sum(counters["graph_break"].values())
    call = statistics.median(spent.calls) * 1e6
    return (
        f"| {name} | {breaks} | {built} | {call:.0f} µs | {spent.compile * 1e3:.0f} ms "
        f"({spent.compile / spent.nodes * 1e6:.1f} µs a node) "
        f"| {with_graphs * 1e3:.2f} ms | {without * 1e3:.2f} ms | {with_graphs / without:.2f} |"
    )


def modes(rounds: int) -> None:
    """The cost of a call of a small net in each mode. Each mode has its own session, because low latency cannot be
    switched off."""

    def once(mode: str) -> tuple[float, float]:
        torch.remote.restart()
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = [layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        net = torch.compile(torch.nn.Sequential(*layers).to(REMOTE), backend="remote", mode=mode)
        x = torch.randn(4, 64, device=REMOTE)

        def sample() -> tuple[float, float]:
            end = time.perf_counter() + 100e-6  # the code between calls
            while time.perf_counter() < end:
                pass
            begin = time.perf_counter()
            y = net(x)
            called = time.perf_counter()
            y.cpu()
            return called - begin, time.perf_counter() - begin

        with torch.no_grad():
            for _ in range(100):
                sample()
            call, whole = zip(*(sample() for _ in range(300)), strict=True)
        return statistics.median(call), statistics.median(whole)

    print("| mode | a call | with its result on the CPU |\n|---|---:|---:|")
    names = ("default", "reduce-overhead")
    times = [[once(mode) for mode in names] for _ in range(rounds)]
    for mode, samples in zip(names, zip(*times, strict=True), strict=True):
        call, whole = (statistics.median(sample) * 1e6 for sample in zip(*samples, strict=True))
        print(f"| {mode} | {call:.0f} µs | {whole:.0f} µs |", flush=True)


def tuned(name: str, rounds: int) -> str:
    """Training steps with and without tuning, in one session."""
    model = zoo.MODELS[name]
    torch.manual_seed(0)
    net = model.make().to(REMOTE)
    batch = {key: value.to(REMOTE) for key, value in model.batch(8, 32).items()}

    def make(mode: str) -> Callable[[], float]:
        torch._dynamo.reset()
        run = torch.compile(net, backend="remote", mode=mode)
        step = step_of(model, net, run, torch.optim.SGD(net.parameters(), 0.0))
        for _ in range(30):
            step(batch).item()

        def sample() -> float:
            begin = time.perf_counter()
            for _ in range(5):
                loss = step(batch)
            loss.item()
            return (time.perf_counter() - begin) / 5

        return sample

    samples = [make("default"), make("max-autotune-no-cudagraphs")]
    pairs = [[sample() for sample in samples] for _ in range(rounds)]
    default, with_tuning = (statistics.median(times) for times in zip(*pairs, strict=True))
    return f"| {name} | {default * 1e3:.2f} ms | {with_tuning * 1e3:.2f} ms | {with_tuning / default:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(zoo.MODELS)}")
    parser.add_argument("--rounds", type=int, default=11, help="pairs of step times")
    parser.add_argument("--modes", action="store_true", help="instead: what torch.compile's modes give")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.modes:
        modes(args.rounds)
        print("\n| model | default | tuned | ratio |\n|---|---:|---:|---:|")
        for name in args.models:
            print(tuned(name, args.rounds), flush=True)
        return 0
    print(
        "| model | graph breaks | programs built at sizes 3 to 10 | our share of a call | our compilation "
        "| compiled step | recorded step | ratio |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name in args.models:
        print(measure(name, args.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
