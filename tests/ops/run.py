"""The op tests at full length, as a table: every op of torch's op_db in every dtype, every overload of the op table.

bazel run //tests/ops:run -- --dtypes all --samples 8 --json /tmp/ops.json
bazel run //tests/ops:run -- --only softmax --dtypes float32 --what compiled
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter

import torch
from compiled import check_compiled
from harness import LAYOUTS, Report, check_op, check_table, load_table, op_name, ops_for

ALL = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128".split()
# The ops of op_db, recorded; the overloads of the op table; the ops of op_db, compiled.
WHAT = ("eager", "table", "compiled")


def worker(
    connection: multiprocessing.connection.Connection,
    device: str,
    dtype: str,
    names: list[str],
    samples: int,
    what: str,
    layout: str,
) -> None:
    """Checks one op after the other and sends what came out; a crash ends this process alone."""
    if device != "cpu":
        import torch_remote  # noqa: F401
    kind, where = getattr(torch, dtype), torch.device(device)
    overloads = load_table() if what == "table" else {}
    ops = {op_name(op): op for op in ops_for(kind)}
    for name in names:
        connection.send(("running", name))
        report = Report()
        counts: Counter[str] = Counter()
        if what == "table":
            counts = check_table([ops[name]], kind, where, samples, overloads, report)
        elif what == "compiled":
            counts = check_compiled(ops[name], kind, where, samples, report, layout)
        else:
            check_op(ops[name], kind, where, samples, report, layout=layout)
        connection.send(("done", name, report.outcomes, report.messages, dict(report.skipped), dict(counts)))
    connection.send(("end", None))


def run(
    device: str, dtype: str, only: str, samples: int, what: str, timeout: float, layout: str
) -> tuple[Report, Counter[str]]:
    """All ops of a dtype, in a process that is replaced when it crashes or hangs. The counter: how often the overloads
    were tried ("table"), nodes that ran outside of programs ("compiled")."""
    total, counts = Report(), Counter()
    names = [op_name(op) for op in ops_for(getattr(torch, dtype)) if only in op_name(op)]
    context = multiprocessing.get_context("spawn")
    while names:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=worker, args=(there, device, dtype, names, samples, what, layout))
        process.start()
        there.close()
        current = names[0]
        while True:
            try:
                message = here.recv() if here.poll(timeout) else ("hang", None)
            except EOFError:
                message = ("crash", None)
            if message[0] == "running":
                current = message[1]
            elif message[0] == "done":
                for name, outcome in message[2].items():
                    total.add(name, outcome, message[3].get(name, ""))
                    if outcome == "fail":
                        print(f"FAIL {what} {dtype} {name}: {message[3].get(name, '')}", flush=True)
                total.skipped.update(message[4])
                counts.update(message[5])
            else:
                break
        if message[0] == "end":
            names = []
        else:
            if message[0] == "hang":
                process.kill()
            process.join()
            text = "took too long" if message[0] == "hang" else f"the process ended with status {process.exitcode}"
            total.add(current, "fail", text)
            print(f"FAIL {what} {dtype} {current}: {text}", flush=True)
            names = names[names.index(current) + 1 :]
        process.join()
    return total, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--dtypes", default="float32", help=f"comma-separated, or all: {', '.join(ALL)}")
    parser.add_argument("--what", default="eager,table", help=f"comma-separated, or all: {', '.join(WHAT)}")
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--layout", default="packed", choices=LAYOUTS, help="of the tensors (not of --what table)")
    parser.add_argument("--samples", type=int, default=4, help="of each op")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one op")
    parser.add_argument("--json", help="write outcomes and messages there")
    args = parser.parse_args()

    dtypes = ALL if args.dtypes == "all" else args.dtypes.split(",")
    results: dict[str, dict[str, object]] = {}
    rows = []
    for dtype in dtypes:
        for what in WHAT if args.what == "all" else args.what.split(","):
            report, counted = run(args.device, dtype, args.only, args.samples, what, args.timeout, args.layout)
            counts = report.counts()
            missing = len(load_table()) - len(counted) if what == "table" else sum(report.skipped.values())
            rows.append((what, dtype, counts["pass"], counts["fallback"], counts["fail"], missing))
            results[f"{what} {dtype}"] = {
                "outcomes": report.outcomes,
                "messages": report.messages,
                "skipped": report.skipped,
                "counts": counted,
            }
    print("\n| what | dtype | pass | client fallback | fail | not tried |\n|---|---|---:|---:|---:|---:|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    return min(sum(row[4] for row in rows), 1)


if __name__ == "__main__":
    sys.exit(main())
