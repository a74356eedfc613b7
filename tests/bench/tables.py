"""Writes the tables of docs/benchmarks.md anew. Two comments around each table name the benchmark that prints it.

bazel run //tests/bench:tables                     all of them, more than an hour; needs an otherwise idle machine
bazel run //tests/bench:tables -- --only steps run
bazel run //tests/bench:tables -- --list           lists them

    <!-- table steps: ./bazelw run //tests/bench:steps -->
    (the table, with the date and the machine above it)
    <!-- end -->

README.md quotes three figures of the page. They are written anew, too; alone with --only and no name after it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from run import processor

_TABLE = re.compile(
    r"(?P<begin><!-- table (?P<name>[\w-]+): \./bazelw run //tests/bench:(?P<program>\w+)"
    r"(?: -- (?P<options>[^>]*?))? -->\n)(?P<body>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Table:
    name: str
    program: str  # a file in this folder
    options: list[str]


def tables(page: str) -> list[Table]:
    return [Table(m["name"], m["program"], (m["options"] or "").split()) for m in _TABLE.finditer(page)]


def measure(table: Table) -> str:
    """The output of the benchmark, from the first table row on if there is one."""
    command = [sys.executable, str(Path(__file__).parent / f"{table.program}.py"), *table.options]
    print(f"{table.name}: {table.program} {' '.join(table.options)}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("|") or not line]
    when = f"{datetime.date.today().isoformat()}, {len(os.sched_getaffinity(0))} cores, {processor()}"
    load = os.getloadavg()[1]
    return f"\n{when}; load of the last five minutes {load:.1f}.\n\n" + "\n".join(lines).strip("\n") + "\n\n"


def replaced(page: str, name: str, body: str) -> str:
    return _TABLE.sub(lambda m: m["begin"] + body + m["end"] if m["name"] == name else m[0], page)


# For each figure that README.md quotes: its description, the table, the row's first cell, and the column.
_QUOTED = (
    ("training step of eight models in eager mode, compared with the CPU", "models", "geometric mean", 3),
    ("training step of nine models with `torch.compile`, compared with Inductor", "steps", "geometric mean", 8),
    ("recording a `softmax` of 16x16, compared with running it eagerly on the CPU", "run", "`softmax` 16x16", 3),
)
_QUOTES = re.compile(r"(?<=docs/benchmarks\.md -->\n).*?(?=<!-- end -->)", re.DOTALL)


def with_quotes(readme: str, page: str) -> str:
    """README.md with the figures that the page has."""
    lines = ["", "| what | ratio | command |", "|---|---:|---|"]
    for text, name, first, column in _QUOTED:
        table = next(m for m in _TABLE.finditer(page) if m["name"] == name)
        rows = (re.split(r" *\| *", line.strip().strip("|").strip()) for line in table["body"].splitlines())
        cells = next(cells for cells in rows if cells[0] == first)
        lines.append(f"| {text} | {cells[column]} | `./bazelw run //tests/bench:{table['program']}` |")
    return _QUOTES.sub(lambda _: "\n".join([*lines, "", ""]), readme)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of tables")
    parser.add_argument("--list", action="store_true", help="what there is, and stop")
    args = parser.parse_args()
    root = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    path = root / "docs" / "benchmarks.md"
    known = tables(path.read_text(encoding="utf-8"))
    if args.list:
        for table in known:
            print(f"{table.name}: //tests/bench:{table.program} {' '.join(table.options)}")
        return 0
    if unknown := set(args.only or ()) - {table.name for table in known}:
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(table.name for table in known)}")
    for table in known:
        if args.only is not None and table.name not in args.only:
            continue
        body = measure(table)
        page = path.read_text(encoding="utf-8")  # read again, because the file may have changed meanwhile
        path.write_text(replaced(page, table.name, body), encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(
        with_quotes(readme.read_text(encoding="utf-8"), path.read_text(encoding="utf-8")), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
