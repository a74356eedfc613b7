"""Compares two wheels in turn: ratios of the second one's times to the first one's.

bazel run //tests/bench:wheels -- BEFORE.whl AFTER.whl [--rounds 60]

Each wheel has one process with one thread, which lives as long as the comparison, and a kernel cache of its own. The
processes measure in turn, so that disturbances affect both. A row is the median of the ratios of neighboring samples,
with their first and third quartile. Rows that need a new process have a tenth of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from unpacked_wheel import environment, unpack

# The process of a wheel: prints the seconds of a measurement for each name that it reads.
PROCESS = """
import sys, time, torch, torch_remote
torch.set_num_threads(1)
small = torch.ones(8, 8, device="remote")
large = torch.randn(256, 1024).to("remote")
net = torch.nn.Sequential(
    torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
    torch.nn.Linear(1024, 10)).to("remote")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
target = torch.zeros(256, dtype=torch.long).to("remote")

def clock(body, count=1):
    begin = time.perf_counter()
    body()
    return (time.perf_counter() - begin) / count

def record():
    def body():
        for _ in range(1000):
            small + small
    took = clock(body, 1000)
    torch.remote.synchronize()
    return took

def cached_run():
    def body():
        x = small
        for _ in range(300):
            x = x * 1.5 + small
        x.sum().item()
    return clock(body)

def elementwise():
    return clock(lambda: (torch.tanh(large) * large + large.softmax(1)).sum().item())

def mlp_step():
    def body():
        loss = torch.nn.functional.cross_entropy(net(large), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    return clock(body)

def upload_and_read():
    host = torch.ones(1 << 20)
    return clock(lambda: host.to("remote").cpu())

for line in sys.stdin:
    print(globals()[line.strip()](), flush=True)
"""
ROWS = {
    "record": "record `a + b`, per op",
    "cached_run": "cached run of 600 ops, and its result",
    "elementwise": "three fused ops on 256 x 1024 floats",
    "mlp_step": "training step of an MLP (AdamW, batch 256)",
    "upload_and_read": "4 MB to the worker and back",
}
FIRST_STEP = """
import torch, torch_remote
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to("remote")
optimizer = torch.optim.Adam(net.parameters())
loss = net(torch.ones(32, 64, device="remote")).square().mean()
loss.backward()
optimizer.step()
loss.item()
"""
FRESH = {"import torch_remote": "import torch_remote", "import, and a first training step": FIRST_STEP}


class Wheel:
    def __init__(self, wheel: Path, folder: Path):
        self.folder = folder / wheel.parent.name / wheel.stem
        while self.folder.exists():
            self.folder = self.folder.with_name(self.folder.name + "_")
        unpack(wheel, self.folder)
        self.environment = environment(
            PYTHONPATH=self.folder, TORCH_REMOTE_KERNEL_CACHE=self.folder / "cache", OMP_NUM_THREADS=1
        )
        self.process = self._start(PROCESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _start(self, source: str, **streams: int) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", source], env=self.environment, text=True, **streams)

    def measure(self, name: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def measure_process(self, source: str) -> float:
        begin = time.perf_counter()
        if self._start(source).wait() != 0:
            raise SystemExit(f"{self.folder.name}: the process failed")
        return time.perf_counter() - begin

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(what: str, before: Callable[[], float], after: Callable[[], float], rounds: int) -> str:
    pairs = [[before(), after()] if i % 2 == 0 else [after(), before()][::-1] for i in range(rounds)]
    low, ratio, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    seconds = statistics.median(a for a, _ in pairs)
    return f"| {what} | {seconds * 1e6:,.1f} µs | {ratio:.3f} | {low:.3f} to {high:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    # `bazel run` starts in another folder.
    here = Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    with tempfile.TemporaryDirectory() as folder:
        wheels = [Wheel(here / wheel, Path(folder)) for wheel in (options.before, options.after)]
        before, after = wheels
        print("| what | before | after / before | quartiles |\n|---|---|---|---|")
        for name, what in ROWS.items():
            for wheel in wheels * min(20, options.rounds):  # until kernels are compiled and algorithms chosen
                wheel.measure(name)
            print(compare(what, lambda n=name: before.measure(n), lambda n=name: after.measure(n), options.rounds))
        for what, source in FRESH.items():
            fresh = [lambda w=wheel, s=source: w.measure_process(s) for wheel in wheels]
            print(compare(what, *fresh, max(2, options.rounds // 10)))
        sizes = [(here / wheel).stat().st_size / 1e6 for wheel in (options.before, options.after)]
        print(f"| size of the wheel | {sizes[0]:.1f} MB | {sizes[1] / sizes[0]:.3f} | |")
        for wheel in wheels:
            wheel.close()


if __name__ == "__main__":
    main()
