"""Some ops of torch's op_db, different ones for each commit, compiled for the device and compared with CPU.
//tests/ops:test_all_compiled_ops runs all of them."""

import os

import compiled
import matrix
import pytest
from commit import commit_number
from compiled import FORMS, check_compiled, form_name, not_as_listed, ops_of
from harness import Report, op_name

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
STRIDE = 1 if ALL else 30  # every STRIDE-th op, with a different start for each of FORMS
GROUP = 3
# Regression tests; always run.
REGRESSIONS = {"float32-permuted": ["nn.functional.interpolate.nearest", "nn.functional.pixel_shuffle"]}
LISTED = compiled.load()


def groups():
    for number, form in enumerate(FORMS):
        all_ops = ops_of(*form)
        start = 0 if ALL else (commit_number() + number) % STRIDE
        ops = all_ops[start::STRIDE]
        ops += [op for op in all_ops if op_name(op) in REGRESSIONS.get(form_name(*form), ()) and op not in ops]
        for i in range(0, len(ops), GROUP):
            yield pytest.param(*form, ops[i : i + GROUP], id=f"{form_name(*form)}-{op_name(ops[i])}")


@pytest.mark.parametrize(("dtype", "layout", "ops"), groups())
def test_compiled_ops_equal_cpu(remote, dtype, layout, ops):
    report = Report()
    wrong = []
    for op in ops:
        name = op_name(op)
        found = check_compiled(op, dtype, remote, report, layout)
        if matrix.is_measured():
            wrong += not_as_listed(name, found, LISTED[form_name(dtype, layout)].get(name, {}))
    wrong += report.failures()
    assert not wrong, "\n".join(wrong)


def test_the_list_names_ops_that_there_are():
    assert set(LISTED) == {form_name(*form) for form in FORMS}
    for dtype, layout in FORMS:
        names = {op_name(op) for op in ops_of(dtype, layout)}
        assert set(LISTED[form_name(dtype, layout)]) <= names or not matrix.is_measured()


def test_an_entry_that_is_missing_or_stale_is_told():
    assert not_as_listed("x", {"out": "refused: a"}, {"out": "refused: b"}) == []
    assert "equal in" in not_as_listed("x", {"out": "refused: a"}, {})[0]
    assert "now equal" in not_as_listed("x", {}, {"out": "refused: a"})[0]
    assert "strides in" in not_as_listed("x", {"out": "computed: a"}, {"out": "strides: a"})[0]
