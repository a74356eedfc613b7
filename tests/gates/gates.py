"""Runs the gates of docs/reliability.md, mostly over real sockets and processes.

Runs what is still missing, for two hours:  bazel run //tests/gates -- --minutes=120
Runs some of the gates:                     bazel run //tests/gates -- --minutes=30 2 5
Prints results without storing them:        bazel run //tests/gates -- --short 2 5
Writes the table of docs/reliability.md:    bazel run //tests/gates -- --page

A gate has parts (parts.py), and a part is run in pieces. Each piece adds a line to tests/gates/results.jsonl
(results.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gates import results
from tests.gates.parts import PARTS
from tests.gates.results import Part
from tests.gates.running import describe, is_failure, run_missing, run_piece, workspace


def chosen(names: list[str]) -> list[Part]:
    for name in names:
        if not any(name in (part.name, part.gate) for part in PARTS):
            raise SystemExit(f"there is no gate {name}; there are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if not names or part.name in names or part.gate in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gates", nargs="*", help="numbers, or names of parts; default: all")
    parser.add_argument("--minutes", type=float, default=120, help="how long pieces are begun; default: 120")
    parser.add_argument("--results", type=Path, default=Path("tests/gates/results.jsonl"), help="read, and added to")
    parser.add_argument("--from", type=int, default=0, dest="start", metavar="N", help="only pieces from this one on")
    parser.add_argument("--short", action="store_true", help="a first piece of each; results are printed, not kept")
    parser.add_argument("--page", action="store_true", help="write the table of docs/reliability.md")
    arguments = parser.parse_args()
    parts, file = chosen(arguments.gates), workspace() / arguments.results
    if arguments.page:
        page = workspace() / "docs/reliability.md"
        page.write_text(results.replace_table(page.read_text(), results.table(PARTS, results.read(file))))
        return 0
    if arguments.short:
        failed = False
        for part in parts:
            record = run_piece(part, 0, 1, "")
            failed |= is_failure(part, record)
            print(describe(part, record), flush=True)
        return int(failed)
    return run_missing(parts, file, arguments.minutes, arguments.start)


if __name__ == "__main__":
    sys.exit(main())
