"""The results of gates: a file with one JSON line for each piece that ran, and the table made from it.

A piece counts with the result of the last commit that ran it. If that is wrong, a later commit runs it again. A piece
that began while the machine was loaded (the load average was above the number of cores) is marked. If the part has a
time limit, such a piece does not count, its times are not published, and it is run again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
BEGIN = "<!-- written by `bazel run //tests/gates -- --page` -->"
END = "<!-- end of the table -->"


@dataclasses.dataclass
class Part:
    """A part of a gate. `name` begins with the gate's number."""

    name: str
    what: str
    contract: int  # units that a release needs
    piece: int  # units per piece
    short: int  # units in the normal test run; 0: another test covers it
    run: Callable[..., Any]
    limit: float = 0.0  # seconds that each time may take; 0: none
    over: float = 0.0  # share of times that may exceed the limit
    worst: str = ""  # format of the worst value
    adds: bool = False  # the worst values of pieces add up
    ours: bool = False  # the contract names no count; this project chose it
    least: int = 0  # minimum length of a piece if time is short

    @property
    def gate(self) -> str:
        return self.name.partition("-")[0]

    @property
    def pieces(self) -> int:
        return math.ceil(self.contract / self.piece)


def read(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, record: Record) -> None:
    # A single write, so that concurrent processes may share the file.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(record) + "\n").encode())
    finally:
        os.close(descriptor)


def loaded(record: Record) -> bool:
    return record["load"] > record["cores"]


def latest(part: Part, records: Iterable[Record]) -> dict[int, Record]:
    """The record that counts for each piece."""
    chosen: dict[int, Record] = {}
    for record in records:
        if record["part"] != part.name:
            continue
        before = chosen.get(record["piece"])
        if before is None or before["commit"] != record["commit"]:
            chosen[record["piece"]] = record
            continue
        # Same commit: prefers the record from an idle machine, and keeps wrong results.
        if loaded(record) and not loaded(before):
            record = {**before, "wrong": max(before["wrong"], record["wrong"])}
        chosen[record["piece"]] = {**record, "wrong": max(before["wrong"], record["wrong"])}
    return chosen


def counts(part: Part, record: Record) -> bool:
    return not (part.limit and loaded(record))


def exceeds_limit(part: Part, record: Record) -> bool:
    return record["late"] > part.over * record["count"]


def count(part: Part, records: Iterable[Record]) -> int:
    """The number of units that count towards the contract."""
    return sum(record["count"] for record in latest(part, records).values() if counts(part, record))


def next_piece(part: Part, records: list[Record], commit: str, idle: bool, start: int = 0) -> int | None:
    """The next piece to run, from `start` on, or None."""
    chosen = latest(part, records)
    failed = [
        piece
        for piece, record in chosen.items()
        if piece >= start and record["commit"] != commit and (record["wrong"] or (idle and exceeds_limit(part, record)))
    ]
    if failed or count(part, records) >= part.contract:
        return min(failed, default=None)
    enough = sum(record["count"] for record in chosen.values()) >= part.contract
    for piece in range(start, max(start, 1 + max(chosen, default=-1)) + 1):
        if piece not in chosen:
            if not enough and (start == 0 or part.least or piece < part.pieces):
                return piece
        elif idle and not counts(part, chosen[piece]):
            return piece
    return None


def duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def row(part: Part, records: list[Record]) -> str:
    chosen = latest(part, records).values()
    good = [record for record in chosen if counts(part, record)]
    busy = sum(record["count"] for record in chosen if loaded(record))
    kinds = sum((Counter(record["kinds"]) for record in chosen), Counter())
    found = [record["worst"] for record in good]
    notes = [part.worst.format(sum(found) if part.adds else max(found))] if part.worst and found else []
    if kinds:
        notes.append(", ".join(f"{n:,} {kind}" for kind, n in kinds.items()))
    late = sum(record["late"] for record in good)
    if part.limit and found:
        notes.insert(0, f"{late} later than {part.limit:g} s")
    done = sum(record["count"] for record in good)
    contract = f"({part.contract:,})" if part.ours else f"{part.contract:,}"
    wrong = sum(record["wrong"] for record in chosen)
    spent = duration(sum(record["seconds"] for record in chosen)) if chosen else ""
    reached = "yes" if done >= part.contract and not wrong and late <= part.over * done else "no"
    cells = [part.name, part.what, contract, f"{done:,}", reached, f"{busy:,}", str(wrong), "; ".join(notes), spent]
    return f"| {' | '.join(cells)} |"


def table(parts: list[Part], records: list[Record]) -> str:
    lines = [
        "| part | what | contract | counted | reached | on a loaded machine | wrong | | time |",
        "|---|---|---:|---:|---|---:|---:|---|---:|",
        *(row(part, records) for part in parts),
    ]
    names = {part.name for part in parts}
    commits = len({record["commit"] for part in parts for record in latest(part, records).values()})
    cores = sorted({record["cores"] for record in records if record["part"] in names})
    if records:
        lines += ["", f"Commits that these pieces ran at: {commits}. Cores: {', '.join(map(str, cores))}."]
    return "\n".join(lines)


def replace_table(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
