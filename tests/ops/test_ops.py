"""Every op of torch's op_db in float32, and the overloads of the op table that they reach. run.py is the long form."""

import pytest
import torch
from harness import LAYOUTS, Report, check_op, check_table, load_table, op_name, ops_for

FLOAT_OPS = {op_name(op): op for op in ops_for(torch.float32)}
GROUP = 10
NAMES = sorted(FLOAT_OPS)
GROUPS = [NAMES[i : i + GROUP] for i in range(0, len(NAMES), GROUP)]


def failures(report):
    return [f"{name}: {report.messages[name]}" for name, outcome in report.outcomes.items() if outcome == "fail"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_ops_equal_cpu(device, names, layout):
    report = Report()
    for name in names:
        check_op(FLOAT_OPS[name], torch.float32, device, 2, report, layout=layout)
    assert not failures(report), "\n".join(failures(report))


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_overloads_equal_cpu(device, names):
    report = Report()
    check_table([FLOAT_OPS[name] for name in names], torch.float32, device, 2, load_table(), report)
    assert not failures(report), "\n".join(failures(report))
