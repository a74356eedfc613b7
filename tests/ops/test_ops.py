"""Every op of torch's op_db in float32, and the overloads of the op table that they reach. run.py is the long form."""

import pytest
import torch
from harness import Report, check_op, check_table, load_table, ops_for

FLOAT_OPS = {
    op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in ops_for(torch.float32)
}
GROUP = 10
NAMES = sorted(FLOAT_OPS)
GROUPS = [NAMES[i : i + GROUP] for i in range(0, len(NAMES), GROUP)]


# What does not equal CPU yet, with what differs. Strict: an op of this list that passes fails the test.
KNOWN_GAPS = {
    "_native_batch_norm_legit": "its out overload is refused",
    "addbmm": "addbmm_ asks for the result's shape before it broadcasts",
    "addr": "addr_ with a 0-dim self is not refused",
    "fft.irfftn": "strides of a transform over several dims",
    "fft.rfftn": "strides of a transform over several dims",
    "histogramdd": "a list whose length only the run can tell",
    "linalg.eig": "strides of the eigenvectors (column major on CPU)",
    "nn.functional.embedding_bag": "sizes of the results that only the backward pass reads",
    "aten::_embedding_bag": "as above",
    "aten::_embedding_bag.out": "as above",
    "aten::_native_batch_norm_legit.out": "as above",
    "aten::addbmm_": "as above",
    "aten::linalg_eig": "as above",
}


def failures(report):
    """What differs from CPU and is not known, and what is known and does not differ."""
    messages = []
    for name, outcome in report.outcomes.items():
        if outcome == "fail" and name not in KNOWN_GAPS:
            messages.append(f"{name}: {report.messages[name]}")
        if outcome != "fail" and name in KNOWN_GAPS:
            messages.append(f"{name}: passes now; take it off KNOWN_GAPS")
    return messages


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_ops_equal_cpu(device, names):
    report = Report()
    for name in names:
        check_op(FLOAT_OPS[name], torch.float32, device, 2, report)
    assert not failures(report), "\n".join(failures(report))


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_overloads_equal_cpu(device, names):
    report = Report()
    check_table([FLOAT_OPS[name] for name in names], torch.float32, device, 2, load_table(), report)
    assert not failures(report), "\n".join(failures(report))
