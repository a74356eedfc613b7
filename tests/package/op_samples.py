"""Compares ops of torch's op_db with CPU in float32, the first samples of each: op_samples.py [OPS [SAMPLES]]

The last line has the number of ops that equal CPU and of those that differ. The exit status is 1 if one differs.
"""

import sys
from collections import Counter

import torch
from harness import Report, check_op, ops_for

import torch_remote  # noqa: F401


def main() -> None:
    ops = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    report = Report()
    everything = ops_for(torch.float32)
    chosen = [everything[i * len(everything) // ops] for i in range(min(ops, len(everything)))]
    for op in chosen:
        check_op(op, torch.float32, torch.device("remote"), samples, report, grad=False)
    for failure in report.failures():
        print(failure[:500])
    outcomes = Counter(report.outcomes.values())
    print(f"{len(chosen)} ops, {sum(report.compared.values())} calls:", dict(outcomes))
    sys.exit(bool(report.failures()))


if __name__ == "__main__":
    main()
