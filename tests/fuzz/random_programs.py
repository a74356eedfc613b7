"""Random programs on the device against CPU: every tensor must be the same in every way a program can see.

random_programs.py --seed 0 --count 10000        runs the programs of seeds 0 to 9999
random_programs.py --seed 4711                   replays one program; prints it minimised if it fails
random_programs.py --seed 4711 --show            prints the program
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import subprocess
import sys
import time

import torch
from generator import generate
from program import Failure, compare, minimise

BATCH = 500  # programs a process: a crash costs one of them only


def first_failure(seed: int, device: str, shrink: bool = True) -> Failure | None:
    failure = compare(generate(seed), device)
    return minimise(failure, device) if failure is not None and shrink else failure


def run_range(first: int, count: int, device: str, shrink: bool) -> int:
    """Runs `count` programs in this process and reports; the number of failures."""
    faulthandler.enable()
    if device != "cpu":
        import torch_remote  # noqa: F401
    failures = 0
    for seed in range(first, first + count):
        print(f"running {seed}", flush=True)
        failure = first_failure(seed, device, shrink)
        if failure is not None:
            failures += 1
            print(f"FAILED {failure.report()}\nend of {seed}", flush=True)
    return failures


def run_batches(first: int, count: int, device: str, shrink: bool) -> int:
    """Runs each batch in a process of its own, so that a crash is a failure like others; the number of failures."""
    failures = 0
    begin = time.perf_counter()
    kinds: collections.Counter[str] = collections.Counter()
    seed, last = first, first + count
    while seed < last:
        batch = min(BATCH, last - seed)
        arguments = ["--worker", "--seed", str(seed), "--count", str(batch), "--device", device]
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments, *([] if shrink else ["--no-minimise"])],
            stdout=subprocess.PIPE,
            text=True,
        )
        current = seed
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("running "):
                current = int(line.split()[1])
                continue
            if line.startswith("FAILED "):
                failures += 1
                kinds[line.split(": ", 1)[-1].split(" is ")[0].strip()[:80]] += 1
            print(line, end="", flush=True)
        if process.wait() != 0:
            failures += 1
            kinds[f"crash (exit status {process.returncode})"] += 1
            print(f"FAILED seed {current}: the process ended with status {process.returncode}", flush=True)
            seed = current + 1
        else:
            seed += batch
        print(f"... {seed - first} of {count}, {failures} failed", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - begin
    print(f"{count} programs, {failures} failed, {seconds:.0f} s ({count / seconds:.0f} programs/s)")
    for kind, number in kinds.most_common(20):
        print(f"  {number:5} {kind}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--show", action="store_true", help="print the program instead of running it")
    parser.add_argument("--no-minimise", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.show:
        print(generate(args.seed).listing())
        return 0
    run = run_range if args.worker or args.count == 1 else run_batches
    failures = run(args.seed, args.count, args.device, not args.no_minimise)
    return 0 if args.worker else min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
