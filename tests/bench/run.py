"""Paired benchmarks: each quantity on the device and on CPU, alternating in one process; ratios of medians.

bazel run //tests/bench:run                      everything, as the markdown table of docs/benchmarks.md
bazel run //tests/bench:run -- --only record     only these groups
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import processes
import torch
import torch.nn.functional as F
from torch import nn

import torch_remote  # noqa: F401

REMOTE = torch.device("remote")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One line of the table. `target` is the condition for `value`."""

    group: str
    what: str
    cpu: str
    remote: str
    value: str
    target: str
    met: bool


def row(group: str, what: str, cpu: str, remote: str, value: float, target: tuple[str, float], unit: str = "") -> Row:
    sign, limit = target
    met = value <= limit if sign == "≤" else value >= limit
    return Row(group, what, cpu, remote, f"{value:.2f}{unit}", f"{sign} {limit:g}{unit}", met)


def alternate(rounds: int, *functions: Callable[[], float]) -> list[float]:
    """Medians of the values that the functions return (seconds), called alternately.

    After CPU work, torch's OpenMP threads spin for some milliseconds in this process, so we wait before the next
    measurement. We spin while waiting, because a virtual machine's scheduler avoids cores that were idle, and would put
    client and worker on one core.
    """
    samples: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for values, function in zip(samples, functions, strict=True):
            busy_wait(0.01)
            values.append(function())
    return [statistics.median(values) for values in samples]


def busy_wait(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


# -- record cost -------------------------------------------------------------------------------------------------------

RECORDED: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "a + b": lambda t: t["a"] + t["b"],
    "a @ b": lambda t: t["a"] @ t["b"],
    "relu": lambda t: torch.relu(t["a"]),
    "x * 1.5": lambda t: t["a"] * 1.5,
    "sum": lambda t: t["a"].sum(),
    "sum(dim)": lambda t: t["a"].sum(1),
    "softmax": lambda t: torch.softmax(t["a"], -1),
    "layer_norm": lambda t: F.layer_norm(t["a"], (16,), t["w"], t["w"]),
    "cat": lambda t: torch.cat([t["a"], t["b"]]),
    "where": lambda t: torch.where(t["mask"], t["a"], t["b"]),
    "add_": lambda t: t["a"].add_(t["b"]),
    "a[2:9]": lambda t: t["a"][2:9],
    "a[2:9, 1]": lambda t: t["a"][2:9, 1],
    "view": lambda t: t["a"].view(-1),
    "t": lambda t: t["a"].t(),
    "linear": lambda t: F.linear(t["a"], t["b"], t["w"]),
    "gelu": lambda t: F.gelu(t["a"]),
    "to(half)": lambda t: t["a"].to(torch.float16),
    "index_select": lambda t: t["a"].index_select(0, t["i"]),
    "embedding": lambda t: F.embedding(t["i"], t["a"]),
}


def record_cost(rounds: int) -> list[Row]:
    """Time of a call from Python, on 16x16 tensors. The device is synchronized only between the rounds."""
    rows = []
    calls = 300
    host = {
        "a": torch.randn(16, 16),
        "b": torch.randn(16, 16),
        "w": torch.randn(16),
        "mask": torch.rand(16, 16) > 0.5,
        "i": torch.arange(8),
    }
    there = {k: v.to(REMOTE) for k, v in host.items()}

    def per_call(function: Callable[[dict[str, torch.Tensor]], object], tensors: dict[str, torch.Tensor]) -> float:
        torch.remote.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function(tensors)
        return (time.perf_counter() - begin) / calls

    with torch.no_grad():
        for name, function in RECORDED.items():
            per_call(function, there), per_call(function, host)
            cpu, remote = alternate(rounds, lambda f=function: per_call(f, host), lambda f=function: per_call(f, there))
            rows.append(
                row(
                    "record", f"`{name}` 16x16", f"{cpu * 1e6:.2f} µs", f"{remote * 1e6:.2f} µs", remote / cpu, ("≤", 1)
                )
            )
    return rows


GRADIENT: dict[str, Callable[[dict[str, torch.Tensor]], torch.Tensor]] = {
    "a + b": lambda t: t["a"] + t["b"],
    "a @ b": lambda t: t["a"] @ t["b"],
    "relu": lambda t: torch.relu(t["a"]),
    "linear": lambda t: F.linear(t["a"], t["b"], t["w"]),
    "layer_norm": lambda t: F.layer_norm(t["a"], (16,), t["w"], t["w"]),
}


def record_cost_of_users(rounds: int) -> list[Row]:
    """As record_cost, but as scripts call ops: with autograd, and results stay alive. The loop is so long that the
    worker computes meanwhile and slows the recording down."""
    host = {"a": torch.randn(16, 16), "b": torch.randn(16, 16), "w": torch.randn(16)}
    sides = {device: {k: v.to(device).requires_grad_(k != "b") for k, v in host.items()} for device in (CPU, REMOTE)}

    calls = 300

    def per_call(function: Callable[..., torch.Tensor], device: torch.device, graph: bool) -> float:
        torch.remote.synchronize()
        kept = []
        with torch.set_grad_enabled(graph):
            begin = time.perf_counter()
            for _ in range(calls):
                kept.append(function(sides[device]))
            return (time.perf_counter() - begin) / calls

    rows = []
    cases = [(f"`{name}` 16x16 with autograd, results kept", f, True) for name, f in GRADIENT.items()]
    cases += [(f"`{name}` 16x16, results kept", GRADIENT[name], False) for name in ("a + b", "a @ b")]
    for name, function, graph in cases:
        for device in (REMOTE, CPU):
            per_call(function, device, graph)
        cpu, remote = alternate(rounds, *[lambda d=d, f=function, g=graph: per_call(f, d, g) for d in (CPU, REMOTE)])
        what = (name, f"{cpu * 1e6:.2f} µs", f"{remote * 1e6:.2f} µs")
        rows.append(row("record-kept", *what, remote / cpu, ("≤", 1)))

    def long(device: torch.device) -> float:
        x = sides[device]["a"].detach()
        torch.remote.synchronize()
        begin = time.perf_counter()
        for _ in range(25_000):
            x = (x @ sides[device]["b"] * 0.5).relu() + 1
        passed = time.perf_counter() - begin  # x is read below, so that all of it is computed
        x.sum().item()
        return passed / 100_000

    with torch.no_grad():
        long(REMOTE), long(CPU)
        cpu, remote = alternate(max(1, rounds // 3), lambda: long(CPU), lambda: long(REMOTE))
    what = ("one of 100,000 ops in a chain, the worker at work", f"{cpu * 1e6:.2f} µs", f"{remote * 1e6:.2f} µs")
    return [*rows, row("record-kept", *what, remote / cpu, ("≤", 1))]


HOT = ("add", "add_", "mul by a number", "mm", "addmm", "relu", "sum", "softmax", "view", "t")


def record_cost_in_cpp(rounds: int) -> list[Row]:
    """Our share of a call from C++, on 16x16 tensors: shape rule, new tensor and record.

    It is the call's time minus the time that torch takes to reach a boxed kernel that does nothing.
    """
    import cpp_loop

    rows = []
    host = [torch.randn(16, 16), torch.randn(16, 16), torch.randn(16)]
    there = [t.to(REMOTE) for t in host]

    def per_call(name: str, tensors: list[torch.Tensor]) -> float:
        torch.remote.synchronize()
        return cpp_loop.seconds_per_call(name, tensors, 1000)

    for name in cpp_loop.names():
        per_call(name, there), per_call(name, host)
        cpu, remote, nothing = alternate(
            rounds,
            lambda n=name: per_call(n, host),
            lambda n=name: per_call(n, there),
            lambda: per_call("nothing", there),
        )
        rows.append(
            row(
                "record-cpp",
                f"`{name}` 16x16 called from C++; our share",
                f"{cpu * 1e6:.2f} µs",
                f"{remote * 1e6:.2f} µs",
                (remote - nothing) * 1e6,
                ("≤", 0.3 if name in HOT else 1.0),
                " µs",
            )
        )
    return rows


# -- loops and training steps ------------------------------------------------------------------------------------------


def tiny_ops(rounds: int) -> list[Row]:
    def loop(device: torch.device) -> float:
        x = torch.ones(16, 16, device=device)
        torch.remote.synchronize()

        def body() -> None:
            nonlocal x
            for _ in range(2000):
                x = x * 1.0001 + 0.5
            x.sum().item()

        return timed(body)

    loop(REMOTE), loop(REMOTE), loop(CPU)
    cpu, remote = alternate(rounds, lambda: loop(CPU), lambda: loop(REMOTE))
    name = "`x = x * 1.0001 + 0.5` 2000 times, `.item()`; speed-up"
    return [row("loop", name, f"{cpu * 1e3:.2f} ms", f"{remote * 1e3:.2f} ms", cpu / remote, ("≥", 1.5))]


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ), torch.randn(64, 256)


def small_mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(
        16, 32
    )


def cnn() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )
    return net, torch.randn(32, 1, 28, 28)


def training(rounds: int) -> list[Row]:
    """Steps with Adam as in a script: the loss is read every tenth step."""
    rows = []
    for name, make in {"MLP 256-512-512-10, batch 64": mlp, "small MLP": small_mlp, "CNN 28x28, batch 32": cnn}.items():
        steps = {}
        for device in (CPU, REMOTE):
            torch.manual_seed(0)
            net, x = make()
            net.to(device)
            x, y = x.to(device), torch.randint(0, 10, (len(x),)).to(device)
            optimizer = torch.optim.Adam(net.parameters())

            def step(net=net, x=x, y=y, optimizer=optimizer) -> torch.Tensor:
                loss = F.cross_entropy(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss.detach()

            def ten(step=step) -> float:
                def body() -> None:
                    for _ in range(9):
                        step()
                    step().item()

                return timed(body) / 10

            ten(), ten()
            steps[device.type] = (step, ten)
        cpu, remote = alternate(rounds, steps["cpu"][1], steps["remote"][1])
        rows.append(
            row(
                "training",
                f"{name}: step with Adam",
                f"{cpu * 1e3:.2f} ms",
                f"{remote * 1e3:.2f} ms",
                remote / cpu,
                ("≤", 1.1),
            )
        )
        rows += step_counters(name, steps["remote"][0])
    return rows


def step_counters(name: str, step: Callable[[], torch.Tensor]) -> list[Row]:
    """The data that a step sends in the steady state."""
    for _ in range(30):  # a read after every step changes the cuts, so other programs and kernels are built
        step().item()
    torch.remote.synchronize()
    before = torch.remote.stats()
    for _ in range(10):
        step().item()
    after = torch.remote.stats()
    moved = {key: (after[key] - before[key]) / 10 for key in after}
    control = moved["bytes_sent"] + moved["bytes_received"]
    return [
        row(
            "training",
            f"{name}: programs built a step",
            "",
            f"{moved['programs_built']:g}",
            moved["programs_built"],
            ("≤", 0),
        ),
        row("training", f"{name}: control bytes a step", "", f"{control:.0f} B", control, ("≤", 4096)),
        row(
            "training",
            f"{name}: round trips a step (one `.item()`)",
            "",
            f"{moved['round_trips']:g}",
            moved["round_trips"],
            ("≤", 1),
        ),
    ]


# -- copies ------------------------------------------------------------------------------------------------------------


def copies(rounds: int) -> list[Row]:
    """64 MB up and down, compared with a memcpy by one thread between warm buffers."""
    import numpy as np

    size = 64 * 10**6
    host, other = torch.ones(size // 4), torch.zeros(size // 4)
    source, target = host.numpy(), other.numpy()
    there = host.to(REMOTE)
    torch.remote.synchronize()

    def up() -> float:
        def body() -> None:
            there.copy_(host)
            torch.remote.synchronize()

        return timed(body)

    def up_new() -> float:
        def body() -> None:
            keep = host.to(REMOTE)
            torch.remote.synchronize()
            del keep

        result = timed(body)
        torch.remote.synchronize()
        return result

    def down() -> float:
        return timed(lambda: other.copy_(there))

    for function in (up, up_new, down):
        function(), function()
    memcpy, *times = alternate(rounds, lambda: timed(lambda: np.copyto(target, source)), up, up_new, down)
    names = ("up, into a tensor", 'up, `.to("remote")`', "down, into a tensor")
    rate = lambda seconds: f"{size / seconds / 1e9:.2f} GB/s"  # noqa: E731
    return [
        row("copies", f"64 MB {name}; share of memcpy's rate", rate(memcpy), rate(t), memcpy / t, ("≥", 0.9))
        for name, t in zip(names, times, strict=True)
    ]


def start_up(rounds: int) -> list[Row]:
    rounds = max(1, rounds // 4)
    torch_alone, both = alternate(rounds, processes.import_torch, processes.import_both)
    cpu, remote = alternate(rounds, lambda: processes.first_result("cpu"), lambda: processes.first_result("remote"))
    return [
        row(
            "start-up",
            "import beyond torch's",
            f"{torch_alone:.2f} s",
            f"{both:.2f} s",
            both - torch_alone,
            ("≤", 0.3),
            " s",
        ),
        row("start-up", "process start to first result", f"{cpu:.2f} s", f"{remote:.2f} s", remote / cpu, ("≤", 1.5)),
    ]


def cached_step(rounds: int) -> list[Row]:
    step = processes.cached_step(3000)
    return [
        row(
            "flush",
            "cached 3000-op step: client time beyond recording",
            "",
            f"{step.microseconds:.0f} µs",
            step.microseconds,
            ("≤", 50),
            " µs",
        ),
        row(
            "flush",
            "cached 3000-op step: bytes of the run messages",
            "",
            f"{step.bytes:.0f} B",
            step.bytes,
            ("≤", 4096),
            " B",
        ),
    ]


# -- programs ----------------------------------------------------------------------------------------------------------


def builds(rounds: int) -> list[Row]:
    """The cost of a new program on the thread that builds it: passes and encoding, from the profile."""
    torch.manual_seed(0)
    weights = [torch.randn(16, 16, device=REMOTE) for _ in range(8)]
    ops = [torch.relu, torch.tanh, lambda x: x * 0.5, lambda x: x @ weights[0], lambda x: x + weights[1], torch.neg]
    costs = []
    for _ in range(max(rounds, 3)):
        x = weights[2]
        with torch.remote.profile() as profile, torch.no_grad():
            for choice in torch.randint(0, len(ops), (600,)).tolist():
                x = ops[choice](x)
            x.sum().item()
        ops_of = {run.program: run.ops for worker in profile.recording.workers for run in worker.runs.values()}
        for e in profile.recording.client:
            if e.kind == "build" and ops_of.get(e.program, 0) >= 64:
                costs.append((e.end - e.begin) / 1e3 / ops_of[e.program])
    cost = statistics.median(costs)
    return [
        row("builds", "program that is new: passes and encoding, an op", "", f"{cost:.2f} µs", cost, ("≤", 10), " µs")
    ]


def generation(rounds: int) -> list[Row]:
    """GPT-2 with a growing cache: programs built after the second token."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_head=4, n_embd=64, vocab_size=200, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval().to(REMOTE)
    tokens = torch.randint(0, 200, (1, 7)).to(REMOTE)
    built = []
    with torch.no_grad():
        out = model(tokens, use_cache=True)
        for _ in range(40):
            token = out.logits[:, -1:].argmax(-1)
            token.item()  # generate() does this to check for the end
            built.append(torch.remote.stats()["programs_built"])
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
    late = built[-1] - built[2]  # the prompt gives the first token
    return [row("generation", "GPT-2, 40 tokens: programs built after the second step", "", f"{late}", late, ("≤", 0))]


def first_step(rounds: int) -> list[Row]:
    """The first training step of a process, without anything that an earlier process may have left."""
    rounds = max(1, rounds // 4)
    cpu, remote = alternate(rounds, lambda: processes.first_step("cpu"), lambda: processes.first_step("remote"))
    what = ("CNN: first training step of a process", f"{cpu:.2f} s", f"{remote:.2f} s")
    return [row("first-step", *what, remote / cpu, ("≤", 1.5))]


GROUPS: dict[str, Callable[[int], list[Row]]] = {
    "record": record_cost,
    "record-kept": record_cost_of_users,
    "record-cpp": record_cost_in_cpp,
    "loop": tiny_ops,
    "training": training,
    "copies": copies,
    "flush": cached_step,
    "builds": builds,
    "generation": generation,
    "first-step": first_step,
    "start-up": start_up,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=GROUPS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of measurements of each quantity")
    parser.add_argument("--threads", type=int, default=0, help="of either side's kernels (default: torch's)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
        os.environ["TORCH_REMOTE_WORKER_THREADS"] = str(args.threads)

    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {threads} threads, {processor()}\n")
    print("| what | CPU | remote | ratio | target | |\n|---|---:|---:|---:|---:|---|")
    missed = 0
    for name in args.only or GROUPS:
        for r in GROUPS[name](args.rounds):
            print(
                f"| {r.what} | {r.cpu} | {r.remote} | {r.value} | {r.target} | {'' if r.met else '**missed**'} |",
                flush=True,
            )
            missed += not r.met
    print(f"\n{missed} targets missed")
    return 0


def processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
