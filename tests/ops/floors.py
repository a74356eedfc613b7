"""Records what the normal run of the op tests compares, so that a change by which less is compared fails.

floors.py                     measures, and writes matrix.json; fails if more calls than before are not compared
floors.py --allow-less        writes it in any case

Its part of matrix.json is "normal run". "ops" has, for each op of op_db, the number of calls whose values are compared
with CPU, by layout. "overloads" lists which overloads of the op table each group of ops reaches. "not compared" lists
the others, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import matrix
import torch
from harness import (
    CPU_IS_WRONG,
    LAYOUTS,
    NOT_CALLED,
    STRIDES_DIFFER,
    UNINITIALIZED,
    UNSUPPORTED,
    Report,
    check_op,
    check_overloads,
    check_table,
    foreach_ops_for,
    load_table,
    op_name,
    ops_for,
)
from overload_samples import overload_calls
from torch.testing._internal.opinfo.core import OpInfo

FIRST, SPREAD = 2, 2  # samples of an op: the first ones, and some spread over the others
GROUP = 10
FLOAT_OPS = {op_name(op): op for op in ops_for(torch.float32)}
NAMES = sorted(FLOAT_OPS)
GROUPS = [NAMES[i : i + GROUP] for i in range(0, len(NAMES), GROUP)]
OWN = "own calls"
# Dtypes for overloads that no float32 sample reaches.
MORE_DTYPES = ("int64", "bool", "complex64")


@dataclass(frozen=True)
class Unit:
    """Ops whose samples are captured together to reach overloads of the table; or overloads with our own calls."""

    dtype: str  # of the ops' samples; OWN: `names` are overloads of overload_samples.py
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.names[0]}-{self.names[-1]}"

    def ops(self) -> list[OpInfo]:
        dtype = getattr(torch, self.dtype)
        ops = {op_name(op): op for op in (*ops_for(dtype), *foreach_ops_for(dtype))}
        return [ops[name] for name in self.names]


KEY = "normal run"  # of matrix.json


def load() -> dict[str, Any]:
    return matrix.load()[KEY]


def units(more: dict[str, list[str]]) -> list[Unit]:
    """`more`: by dtype, the ops that reach overloads that float32 does not."""
    names = {
        "float32": NAMES + sorted(map(op_name, foreach_ops_for(torch.float32))),
        **more,
        OWN: list(overload_calls()),
    }
    return [Unit(dtype, tuple(ops[i : i + GROUP])) for dtype, ops in names.items() for i in range(0, len(ops), GROUP)]


def run_ops(names: list[str], layout: str, device: torch.device) -> Report:
    report = Report()
    for name in names:
        check_op(FLOAT_OPS[name], torch.float32, device, FIRST, report, layout=layout, spread=SPREAD)
    return report


def run_unit(unit: Unit, device: torch.device, table: dict[str, Any]) -> Report:
    report = Report()
    if unit.dtype == OWN:
        check_overloads(unit.names, device, table, report)
        return report
    ops = [op for op in unit.ops() if op_name(op) not in UNSUPPORTED]
    check_table(ops, getattr(torch, unit.dtype), device, FIRST, table, report)
    return report


def reached(report: Report) -> list[str]:
    """Overloads of the table whose values were compared with CPU."""
    return sorted({key.split()[0] for key, count in report.compared.items() if count} & load_table().keys())


def why_op(name: str, layout: str, report: Report) -> str:
    """Why no value of an op is compared."""
    if name in UNSUPPORTED:
        return UNSUPPORTED[name]
    if name.startswith(UNINITIALIZED):
        return "values are whatever was in memory"
    if layout == "permuted" and name in CPU_IS_WRONG:
        return CPU_IS_WRONG[name][1]
    reasons = [key.split(": ", 1)[1] for key in report.skipped if key.split(": ", 1)[0] == name]
    if "values not compared" in reasons:
        return "the result depends on the seed"
    return "; ".join(sorted(reasons)) or "no sample"


def why_overload(name: str, table: dict[str, Any], compared: set[str]) -> str:
    """Why an overload of the table is not compared."""
    operator, _, suffix = name.removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, operator), suffix or "default")
    if torch.Tag.nondeterministic_seeded in function.tags:
        return "the result depends on the seed"
    if name in NOT_CALLED:
        return NOT_CALLED[name]
    if function.__name__.startswith(UNINITIALIZED):
        return "part of what it makes is whatever was in memory"
    functional = table[name]["functional"]
    if functional != name:
        kind = (
            "its functional form is not compared"
            if functional not in compared
            else "no call of its functional form fits"
        )
        return kind
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys):
        return "CPU has no kernel"
    return "no sample of torch's reaches it in these dtypes"


def measure(device: torch.device) -> dict[str, Any]:
    table = load_table()
    ops: dict[str, list[int]] = {name: [0] * len(LAYOUTS) for name in NAMES}
    not_compared: dict[str, dict[str, str]] = {}
    excused: set[str] = set()
    for i, layout in enumerate(LAYOUTS):
        reasons = {}
        for names in GROUPS:
            report = run_ops(names, layout, device)
            excused |= report.excused.keys()
            for name in names:
                ops[name][i] = report.compared[name]
                if not report.compared[name]:
                    reasons[name] = why_op(name, layout, report)
            print_failures(report)
        not_compared[layout] = reasons
    by_unit: dict[str, list[str]] = {}
    compared: set[str] = set()

    def add(unit: Unit) -> bool:
        report = run_unit(unit, device, table)
        print_failures(report)
        new = [name for name in reached(report) if name not in compared]
        if new:
            by_unit[str(unit)] = new
            compared.update(new)
        return bool(new)

    for unit in units({}):
        add(unit)
    more: dict[str, list[str]] = {}
    for dtype in MORE_DTYPES:
        kind = getattr(torch, dtype)
        before = set(compared)
        found = []
        for name in sorted(op_name(op) for op in (*ops_for(kind), *foreach_ops_for(kind))):
            if add(Unit(dtype, (name,))):
                found.append(name)
        # Runs the found ops again in groups, starting from the overloads that were compared before this dtype.
        compared = before
        by_unit = {key: value for key, value in by_unit.items() if not key.startswith(dtype + " ")}
        more[dtype] = found
        for i in range(0, len(found), GROUP):
            add(Unit(dtype, tuple(found[i : i + GROUP])))
    overloads: dict[str, list[str]] = {}
    for name in sorted(set(table) - compared):
        overloads.setdefault(why_overload(name, table, compared), []).append(name)
    assert excused == set(STRIDES_DIFFER), f"no longer needed in STRIDES_DIFFER: {set(STRIDES_DIFFER) - excused}"
    return {
        "ops": ops,
        "overloads": by_unit,
        "more": more,
        "not compared": {"ops": not_compared, "overloads": overloads},
    }


def print_failures(report: Report) -> None:
    for text in report.failures():
        print(f"FAIL {text}", flush=True)


def not_compared(floors: dict[str, Any]) -> set[str]:
    ops, overloads = (floors["not compared"][key] for key in ("ops", "overloads"))
    return {f"{layout} {name}" for layout in ops for name in ops[layout]} | {n for ns in overloads.values() for n in ns}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--allow-less", action="store_true", help="write also if less is compared than before")
    args = parser.parse_args()
    if args.device != "cpu":
        import torch_remote  # noqa: F401
    new = measure(torch.device(args.device))
    file = matrix.path()
    data = json.loads(file.read_text())
    more = not_compared(new) - not_compared(data[KEY])
    if more and not args.allow_less:
        print(f"{len(more)} are not compared any more: {sorted(more)[:20]}", file=sys.stderr)
        return 1
    file.write_text(matrix.text(data | {KEY: new}))
    print(f"{len(not_compared(new))} not compared, wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
