"""Random programs on the device compared with CPU: every tensor must be the same in everything that a program can
observe.

random_programs.py --seed 0 --count 10000        runs the programs of seeds 0 to 9999
random_programs.py --seed 4711                   replays one program; prints it minimized if it fails
random_programs.py --seed 4711 --show            prints the program
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import os
import subprocess
import sys
import time

import torch
from generator import generate
from program import Failure, Program, compare, explained_programs, minimize, with_variants

BATCH = 500  # programs per process, so that a crash loses only one of them


VARIANTS = (0, 1, 2)  # the program itself; with other leaves and scalars; with other sizes


def program_of(seed: int, devices: int = 1) -> Program:
    return with_variants(generate(seed, devices=devices), VARIANTS)


def first_failure(seed: int, device: str, shrink: bool = True, devices: int = 1) -> Failure | None:
    failure = compare(program_of(seed, devices), device)
    return minimize(failure, device) if failure is not None and shrink else failure


def run_range(first: int, count: int, device: str, shrink: bool, devices: int) -> int:
    """Runs `count` programs in this process, prints the failures, and returns their number."""
    faulthandler.enable()
    if device != "cpu":
        import torch_remote  # noqa: F401
    failures = 0
    for seed in range(first, first + count):
        print(f"running {seed}", flush=True)
        failure = first_failure(seed, device, shrink, devices)
        if failure is not None:
            failures += 1
            print(f"FAILED {failure.report()}\nend of {seed}", flush=True)
    for seed in sorted(explained_programs):
        print(f"rounded {seed}", flush=True)
    return failures


def run_batches(first: int, count: int, device: str, shrink: bool, devices: int) -> int:
    """Runs each batch in a separate process, so that a crash counts as a failure. Returns the number of failures."""
    failures = rounded = 0
    begin = time.perf_counter()
    kinds: collections.Counter[str] = collections.Counter()
    seed, last = first, first + count
    while seed < last:
        batch = min(BATCH, last - seed)
        arguments = ["--worker", "--seed", str(seed), "--count", str(batch), "--device", device]
        arguments += ["--devices", str(devices)]
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments, *([] if shrink else ["--no-minimise"])],
            env={name: value for name, value in os.environ.items() if not name.startswith("TEST_")},
            stdout=subprocess.PIPE,
            text=True,
        )
        current = seed
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("running "):
                current = int(line.split()[1])
                continue
            rounded += line.startswith("rounded ")
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
    speed = f"{seconds:.0f} s ({count / seconds:.0f} programs/s)"
    shown = f"{failures} failed, {rounded} differ by roundings"
    print(f"{count} programs, each in up to {len(VARIANTS)} variants, {shown}, {speed}")
    for kind, number in kinds.most_common(20):
        print(f"  {number:5} {kind}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--devices", type=int, default=1, help="that a program uses: 1 or 2")
    parser.add_argument("--show", action="store_true", help="print the program instead of running it")
    parser.add_argument("--no-minimise", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.show:
        print(program_of(args.seed, args.devices).listing())
        return 0
    run = run_range if args.worker or args.count == 1 else run_batches
    # As a sharded test, each shard runs a part.
    shards, shard = (int(os.environ.get(name, d)) for name, d in (("TEST_TOTAL_SHARDS", 1), ("TEST_SHARD_INDEX", 0)))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        open(os.environ["TEST_SHARD_STATUS_FILE"], "w").close()
    begin, end = (args.count * i // shards for i in (shard, shard + 1))
    failures = run(args.seed + begin, end - begin, args.device, not args.no_minimise, args.devices)
    return 0 if args.worker else min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
