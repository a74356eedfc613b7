"""torch's own samples of its ops on an emulated GPU: each op is executed or refused as gpu_ops.json states, without
errors."""

import os
import warnings

import gpu_ops
import pytest
from commit import commit_number

PARTS = 1 if os.environ.get("TORCH_REMOTE_TEST_ALL") == "1" else 48
NAMES = sorted(gpu_ops.ops())[commit_number() % PARTS :: PARTS]


@pytest.fixture(scope="module")
def marks():
    return gpu_ops.load()


def test_the_table_has_all(marks):
    assert sorted(marks) == sorted(gpu_ops.ops())
    rows = "".join(marks.values())
    assert rows.count(gpu_ops.EQUAL) >= 6900
    assert rows.count(gpu_ops.REFUSES) <= 950


@pytest.mark.parametrize("name", NAMES)
def test_op(remote, marks, name):
    refused: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row, wrong = gpu_ops.check_all(name, remote.type, refused)
    assert not wrong
    assert row == marks[name], refused
