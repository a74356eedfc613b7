"""Compares every op of torch's op_db, and every ATen overload that its samples reach, with CPU in every dtype.

bazel run //tests/ops:matrix                     all of it; writes tests/ops/matrix.json, if nothing became worse
bazel run //tests/ops:matrix -- --allow-worse    writes it in any case
bazel run //tests/ops:matrix -- --only softmax --dtypes float16,int64      a part: prints, and writes nothing

matrix.json has a mark per dtype, in the order of DTYPES, and the reason for each inequality. floors.py adds what the
normal run compares. docs/operators.md is made from it. test_all_dtypes.py runs a different part of it for each commit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from harness import FAILED, Report, check_op, check_table, foreach_ops_for, load_table, op_name, ops_for
from torch.testing._internal.opinfo.core import OpInfo

DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128".split()
FIRST, SPREAD = 2, 2  # samples per op and dtype
GROUP = 10  # ops per unit
# "*": sizes, strides and dtypes are equal; values are random or uninitialized. ".": CPU accepts no sample.
MARKS = {"equal": "=", "fallback": "f", "refused": "r", "different": "d"}
UNKNOWN, NONE = "*", "."
PARTS = ("ops", "overloads")
LEAST = {"ops": 6300, "overloads": 10300}  # cells with a call that CPU accepts
# Reasons where the message does not give one.
WHY = {
    "addmm.decomposed": "rounding: a lazily conjugated operand is copied first; CPU's matmul conjugates while it reads",
}


@dataclass(frozen=True)
class Unit:
    """The work that a process gets at once."""

    dtype: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.names[0]}"

    def ops(self) -> list[OpInfo]:
        found = ops_of(self.dtype)
        return [found[name] for name in self.names]


@dataclass
class Results:
    """By part, name and dtype: a mark, the number of calls whose values were compared, and the reason."""

    marks: dict[tuple[str, str, str], str] = field(default_factory=dict)
    compared: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    reasons: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def add(self, part: str, key: str, report: Report) -> None:
        name, dtype = key.split()
        place = (part, name, dtype)
        row = key if part == "overloads" else name  # in the report
        outcome, count = report.outcomes[row], report.compared[row]
        mark = MARKS[outcome] if outcome != "equal" or count else UNKNOWN
        self.compared[place] += count
        self.set(place, mark, report.messages.get(row, ""))

    def set(self, place: tuple[str, str, str], mark: str, reason: str) -> None:
        ranks = NONE + UNKNOWN + "".join(MARKS.values())
        if ranks.index(mark) > ranks.index(self.marks.get(place, NONE)):
            self.marks[place] = mark
            if mark in "frd":
                self.reasons[place] = shortened(place[1], reason)

    def update(self, other: Results) -> None:
        self.compared.update(other.compared)
        for place, mark in other.marks.items():
            self.set(place, mark, other.reasons.get(place, ""))


def shortened(name: str, reason: str) -> str:
    """The reason without the call and the lines that it came from."""
    return WHY.get(name) or re.sub(r" and dtype \w+", "", reason.split(" [aten::")[0].split("; called with")[0])


def ops_of(dtype: str) -> dict[str, OpInfo]:
    kind = getattr(torch, dtype)
    return {op_name(op): op for op in (*ops_for(kind), *foreach_ops_for(kind))}


def units(dtypes: list[str] = DTYPES, only: str = "") -> list[Unit]:
    found = []
    for dtype in dtypes:
        names = [name for name in sorted(ops_of(dtype)) if only in name]
        found += [Unit(dtype, tuple(names[i : i + GROUP])) for i in range(0, len(names), GROUP)]
    return found


def check(unit: Unit, device: torch.device, table: dict[str, Any]) -> Iterator[tuple[str, Results]]:
    """Checks the ops of a unit one by one. The last result, with name "", has the overloads that they reached."""
    dtype = getattr(torch, unit.dtype)
    for op in unit.ops():
        report, results = Report(), Results()
        check_op(op, dtype, device, FIRST, report, spread=SPREAD)
        for name in report.outcomes:
            results.add("ops", f"{name} {unit.dtype}", report)
        yield op_name(op), results
    report, results = Report(), Results()
    check_table(unit.ops(), dtype, device, FIRST, table, report)
    for key in report.outcomes:
        if key.split()[1] in DTYPES:
            results.add("overloads", key, report)
    yield "", results


def process(connection: Connection, device: str) -> None:
    """Checks the units that it receives. A crash ends only this process."""
    if device != "cpu":
        import torch_remote  # noqa: F401
    table = load_table()
    while (unit := connection.recv()) is not None:
        for name, results in check(unit, torch.device(device), table):
            connection.send((name, results))
        connection.send(None)


class Worker:
    """A process, and its current unit."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process = context.Process(target=process, args=(there, self.device))
        self.process.start()
        there.close()
        self.unit: Unit | None = None

    def give(self, unit: Unit | None) -> None:
        self.unit, self.done, self.since = unit, [], time.monotonic()
        self.connection.send(unit)

    def lost(self, why: str) -> tuple[Results, Unit | None]:
        """The result for the op that was running, and the rest of its unit. Restarts the process."""
        self.process.kill()
        self.process.join()
        unit, results = self.unit, Results()
        rest = [name for name in unit.names if name not in self.done]
        name = rest[0] if rest else unit.names[-1]
        results.set(("ops", name, unit.dtype), MARKS["different"], f"{name}: {why}")
        self.start()
        return results, Unit(unit.dtype, tuple(rest[1:])) if rest[1:] else None


def run(todo: list[Unit], device: str, processes: int, timeout: float = 120) -> Results:
    total = Results()
    count, begin, done = len(todo), time.monotonic(), 0
    todo = todo[::-1]
    workers = [Worker(device) for _ in range(min(processes, count))]
    for worker in workers:
        worker.give(todo.pop())
    while any(worker.unit for worker in workers):
        ready = wait([worker.connection for worker in workers if worker.unit], timeout=1)
        for worker in workers:
            if worker.unit is None:
                continue
            message: Any = ()
            if worker.connection in ready:
                try:
                    message = worker.connection.recv()
                    worker.since = time.monotonic()
                except EOFError:
                    worker.process.join()
                    message = f"the process ended with status {worker.process.exitcode}"
            elif time.monotonic() - worker.since > timeout:
                message = "took too long"
            if isinstance(message, str):
                results, rest = worker.lost(message)
                total.update(results)
                print_results(results)
                if rest is not None:
                    todo.append(rest)
                message = None
            elif message:
                name, results = message
                worker.done.append(name)
                total.update(results)
                print_results(results)
            if message is None:
                done += 1
                if done % 20 == 0:
                    print(f"{done} of {count} units, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
                if todo:
                    worker.give(todo.pop())
                else:
                    worker.unit = None
    for worker in workers:
        worker.connection.send(None)
        worker.process.join()
    return total


def print_results(results: Results) -> None:
    for (_, name, dtype), reason in results.reasons.items():
        print(f"{dtype} {name}: {reason}", flush=True)


def to_json(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = {"torch": torch.__version__.partition("+")[0], "dtypes": DTYPES}
    for part in PARTS:
        names = sorted({name for p, name, _ in results.marks if p == part})
        data[part] = {name: "".join(results.marks.get((part, name, d), NONE) for d in DTYPES) for name in names}
    names = data["ops"]
    data["compared"] = {name: [results.compared["ops", name, d] for d in DTYPES] for name in names}
    data["reasons"] = {part: {} for part in PARTS}
    for (part, name, dtype), reason in sorted(results.reasons.items()):
        data["reasons"][part][f"{name} {dtype}"] = reason
    return data


def text(data: Any, depth: int = 0) -> str:
    """JSON with one line per name: everything but dicts stands on one line."""
    if not isinstance(data, dict) or not data:
        return json.dumps(data)
    indent = " " * (depth + 1)
    lines = (f"{indent}{json.dumps(key)}: {text(value, depth + 1)}" for key, value in data.items())
    return "{\n" + ",\n".join(lines) + f"\n{' ' * depth}}}" + ("" if depth else "\n")


def totals(data: dict[str, Any], part: str) -> Counter[str]:
    return Counter(mark for marks in data[part].values() for mark in marks)


def worse(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Cells that were equal and are not any more, or that are not compared any more."""
    found = []
    for part in PARTS:
        for name, marks in old[part].items():
            now = new[part].get(name, NONE * len(DTYPES))
            found += [
                f"{name} {dtype}: {mark} is {after} now"
                for dtype, mark, after in zip(DTYPES, marks, now, strict=True)
                if mark != after and (mark == "=" or after in (MARKS["refused"], MARKS["different"], NONE))
            ]
    return found


def is_measured() -> bool:
    """Whether the lists were measured with this version of torch. Others have other ops."""
    return load()["torch"] == torch.__version__.partition("+")[0]


def load() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "matrix.json").read_text())


def cells(data: dict[str, Any]) -> dict[tuple[str, str, str], str]:
    return {
        (part, name, dtype): mark
        for part in PARTS
        for name, marks in data[part].items()
        for dtype, mark in zip(DTYPES, marks, strict=True)
    }


def compared(data: dict[str, Any], name: str, dtype: str) -> int:
    return data["compared"].get(name, [0] * len(DTYPES))[DTYPES.index(dtype)]


def path() -> Path:
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")) / "tests/ops/matrix.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="comma-separated")
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--allow-worse", action="store_true")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers, too, so that sums run in the same order on both sides
    results = run(units(args.dtypes.split(","), args.only), args.device, args.processes)
    data = to_json(results)
    for part in PARTS:
        print(part, dict(totals(data, part)))
    if args.only or args.dtypes != ",".join(DTYPES):
        return int(any(mark in map(MARKS.get, FAILED) for mark in results.marks.values()))
    file = path()
    before = json.loads(file.read_text())
    data["normal run"] = before["normal run"]  # floors.py writes it
    found = worse(data, before)
    if found and not args.allow_worse:
        print(f"{len(found)} became worse:\n" + "\n".join(found), file=sys.stderr)
        return 1
    file.write_text(text(data))
    print(f"wrote {file}; now: bazel run //ir/ops:update_docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
