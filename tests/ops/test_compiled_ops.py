"""Some ops of torch's op_db, compiled for the device, against CPU; `run.py --what compiled` has them all."""

import pytest
import torch
from compiled import check_compiled
from harness import Report, op_name, ops_for

STRIDE = 30  # every STRIDE-th op in float32, every 6 * STRIDE-th in another dtype, from another one on for each
GROUP = 3
FORMS = (
    (torch.float32, "packed"),
    (torch.float32, "permuted"),
    (torch.int64, "packed"),
    (torch.bfloat16, "permuted"),
    (torch.complex64, "packed"),
    (torch.bool, "packed"),
    (torch.float64, "permuted"),
)


def groups():
    for start, (dtype, layout) in enumerate(FORMS):
        stride = STRIDE if dtype == torch.float32 else 6 * STRIDE
        ops = sorted(ops_for(dtype), key=op_name)[start::stride]
        for i in range(0, len(ops), GROUP):
            yield pytest.param(dtype, layout, ops[i : i + GROUP], id=f"{str(dtype)[6:]}-{layout}-{op_name(ops[i])}")


@pytest.mark.parametrize(("dtype", "layout", "ops"), groups())
def test_compiled_ops_equal_cpu(remote, dtype, layout, ops):
    report = Report()
    for op in ops:
        check_compiled(op, dtype, remote, 2, report, layout)
    assert not report.failures(), "\n".join(report.failures())
