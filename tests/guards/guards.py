"""Runs the guard harness (guard_harness.cpp) and reads its report.

bazel run //tests/guards:guards                 what the worker's own path lets through
bazel run //tests/guards:guards -- --torch      what torch's kernels do without the worker's checks
bazel run //tests/guards:guards -- --update     writes ir/ops/allowed_ops.txt
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HARNESS = "tests/guards/guard_harness"
HEADER = """\
# Ops of aten:: outside the op table that programs may call: //tests/guards changed their arguments in every way that it
# knows, and found no access outside of operands. Written by: bazel run //tests/guards:guards -- --update
"""
# Prefixes of names, overloads included. These ops change a tensor's metadata instead of its elements, read files, or
# trust the components of sparse and nested tensors. Programs have no such layouts.
NEVER = (
    "set_", "resize_", "resize_as_", "_resize_output_", "set_data", "from_file", "_reshape_alias",
    "_nested_view_from_buffer", "_nested_view_from_buffer_copy", "_sparse_bsc_tensor_unsafe",
    "_sparse_bsr_tensor_unsafe", "_sparse_compressed_tensor_unsafe", "_sparse_coo_tensor_unsafe",
    "_sparse_csc_tensor_unsafe", "_sparse_csr_tensor_unsafe",
)  # fmt: skip


def listed(path: str | Path) -> list[str]:
    return [line for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]


@dataclass
class Report:
    mode: str = "worker"
    cases: int = 0
    ran: int = 0
    refused: int = 0
    slow: int = 0  # modified calls that took too long
    exercised: set[str] = field(default_factory=set)  # overloads whose unmodified call ran
    may_run: set[str] = field(default_factory=set)  # overloads that a program can name; known to part 0
    crashes: list[tuple[str, str]] = field(default_factory=list)  # overload; modification and signal
    not_run: dict[str, str] = field(default_factory=dict)  # overloads whose unmodified call fails, and the reason

    def add(self, other: Report) -> None:
        for name in ("cases", "ran", "refused", "slow"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.exercised |= other.exercised
        self.may_run |= other.may_run
        self.crashes += other.crashes
        self.not_run |= other.not_run

    def overloads(self) -> list[str]:
        return sorted({name for name, _ in self.crashes})


def read(lines: Iterable[str], mode: str) -> Report:
    report = Report(mode)
    ended = False
    for line in lines:
        if not line.startswith('{"kind"'):
            continue  # LAPACK prints its own error messages
        row: dict[str, Any] = json.loads(line)
        kind = row["kind"]
        # Programs cannot have invalid dtypes, because ir::verify checks them.
        if kind == "crash" and not (row["change"].startswith("dtype: ") and report.mode == "torch"):
            report.crashes.append((row["op"], f"{row['change']} (signal {row['text']})"))
        elif kind in ("refused", "no program"):
            report.not_run[row["op"]] = row["text"]
        elif kind == "overloads":
            report.may_run = set(row["names"])
        elif kind == "summary":
            ended = True
            report.exercised = set(row["exercised"])
            for name in ("cases", "ran", "refused", "slow"):
                setattr(report, name, row[name])
    if not ended:
        raise RuntimeError("the harness has not come to its end")
    return report


def run(
    samples: str, mode: str = "worker", place: str = "end", part: int = 0, parts: int = 1, only: str = ""
) -> Report:
    command = [HARNESS, samples, mode, place, str(part), str(parts), *([only] if only else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, errors="replace", text=True, check=True)
    return read(done.stdout.splitlines(), mode)


def run_all(samples: str, mode: str, places: Iterable[str]) -> Report:
    cores = len(os.sched_getaffinity(0))
    total = Report()
    with ThreadPoolExecutor(cores) as pool:
        for place in places:
            parts = 4 * cores
            for report in pool.map(lambda i, p=place, n=parts: run(samples, mode, p, i, n), range(parts)):
                total.add(report)
    return total


def allowed(worker: Report, torch_alone: Report, table: set[str]) -> list[str]:
    """The overloads outside the table for which the harness found no error: as they are, or (those already on the list)
    with the worker's checks."""
    good = torch_alone.exercised - set(torch_alone.overloads()) - set(worker.not_run)
    good |= worker.exercised - set(worker.overloads())
    return sorted(
        name
        for name in good - table
        if name.startswith("aten::")
        and name.removeprefix("aten::").split(".")[0] not in NEVER
        and torch.Tag.inplace_view not in tags(name)
    )


def tags(name: str) -> list[torch.Tag]:
    operator, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload or "default").tags


def sampled(samples: str) -> set[str]:
    """The overloads that a file has samples of."""
    return {row[0] for row in torch.load(samples)}


def table() -> set[str]:
    return {op["name"] for op in json.loads(Path("ir/ops/op_list.json").read_text())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="torch's kernels alone")
    parser.add_argument("--place", choices=("end", "begin", "both"), default="both")
    parser.add_argument("--update", action="store_true", help="writes the list of ops that are allowed")
    args = parser.parse_args()
    places = ("end", "begin") if args.place == "both" else (args.place,)
    samples = "tests/guards/samples.pt"
    report = run_all(samples, "torch" if args.torch else "worker", places)
    for name, change in report.crashes:
        print(f"{name}: {change}")
    for name, why in report.not_run.items():
        print(f"{name}: does not run unchanged: {why}")
    print(
        f"{report.cases} calls of {len(report.exercised)} overloads: {report.ran} ran, {report.refused} were refused,"
        f" {report.slow} took too long; {len(report.crashes)} in {len(report.overloads())} overloads ended the process"
    )
    if args.update:
        file = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"]) / "ir/ops/allowed_ops.txt"
        names = allowed(report, run_all(samples, "torch", places), table())
        # Another supported version of torch has the others.
        names = sorted({*names, *(name for name in listed(file) if not torch._C._dispatch_has_kernel(name))})
        file.write_text(HEADER + "".join(f"{name}\n" for name in names))
        return 0
    return int(bool(report.crashes))


if __name__ == "__main__":
    sys.exit(main())
