"""Gates 1 and 13: the simulator and the verifier, which are programs of their own."""

from __future__ import annotations

import os
import re
import subprocess

from tests.gates.pieces import Outcome, Piece


def verified(piece: Piece) -> Outcome:
    """Gate 13: a program of 10,000 ops must be verified within 1 ms."""
    times = []
    for _ in range(piece.count):
        done = subprocess.run(
            [os.environ.get("BUILD_COST", "passes/build_cost_benchmark")], capture_output=True, text=True, check=True
        )
        found = re.findall(r"^verified (\d+) ops in ([\d.]+) ms$", done.stdout, re.M)
        assert any(int(ops) >= 10_000 for ops, _ in found), done.stdout
        times += [float(time) / 1000 for ops, time in found if int(ops) >= 10_000]
    return Outcome(piece.count, 0, times)


def simulated(piece: Piece) -> Outcome:
    """Gate 1: seeds of the simulator."""
    program = os.environ.get("SIMULATOR", "tests/simulator/simulator")
    done = subprocess.run(
        [program, f"--seeds={piece.first}:{piece.first + piece.count}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    counted = re.search(r"^(\d+) seeds, (\d+) failed", done.stdout, re.M)
    faults = re.search(r"^faults: (.*)$", done.stdout, re.M)
    assert counted and faults, done.stdout[-1000:]
    kinds = {kind: int(count) for kind, count in re.findall(r"([a-z -]+) (\d+)(?:,|$)", faults[1])}
    failures = "; ".join(re.findall(r"^seed .*$", done.stdout, re.M))
    return Outcome(int(counted[1]), int(counted[2]), kinds={k.strip(): n for k, n in kinds.items()}, text=failures)
