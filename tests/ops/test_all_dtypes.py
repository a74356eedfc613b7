"""A part of all ops in all dtypes, a different one for each commit. matrix.json states the expected outcomes, and how
much must be compared. `bazel run //tests/ops:matrix` runs all of it."""

import random
from collections import Counter
from pathlib import Path

import matrix
import pytest
from commit import chosen_seed
from harness import load_table

UNITS = 24  # of about 700; takes a minute
EXPECTED = matrix.load()
EXPECTED_MARKS = matrix.cells(EXPECTED)
# matrix.json is for Intel processors. On AMD, MKL sums in another order; these equal CPU there, too.
if "AuthenticAMD" in Path("/proc/cpuinfo").read_text():
    EQUAL_THERE = {
        "complex64": ["addmm.decomposed", "linalg.lu_factor_ex"],
        "complex128": ["linalg.multi_dot"],
    }
    for dtype in EQUAL_THERE:
        names = ["linalg.lstsq", "linalg.lstsq.grad_oriented", "linalg.lu_solve", "lu_solve", *EQUAL_THERE[dtype]]
        EXPECTED_MARKS |= {("ops", name, dtype): "=" for name in names}
    # In these, a gradient differs by rounding (2.5e-16 at most), because a lazy conjugate is a separate operand here.
    for name in ["linalg.lu", "linalg.lu_factor", "linalg.lu_factor_ex", "lu"]:
        EXPECTED_MARKS["ops", name, "complex128"] = matrix.MARKS["different"]
        EXPECTED["reasons"]["ops"][f"{name} complex128"] = "rounding"


# Another torch has ops that were not measured.
ACCEPTED_IF_NOT_MEASURED = "" if matrix.is_measured() else "=*"

SEED = chosen_seed()
CHOSEN = random.Random(SEED).sample(matrix.units(), UNITS)


@pytest.fixture(scope="module")
def table():
    return load_table()


@pytest.mark.parametrize("unit", CHOSEN, ids=str)
def test_ops_equal_cpu(device, unit, table):
    results = matrix.Results()
    for _, part in matrix.check(unit, device, table):
        results.update(part)
    again = f"again with TORCH_REMOTE_TEST_SEED={SEED}; //tests/ops:matrix writes what is expected"
    wrong = [
        f"{name} {dtype}: {results.reasons.get((part, name, dtype), mark)}"
        for (part, name, dtype), mark in results.marks.items()
        if mark != EXPECTED_MARKS.get((part, name, dtype), mark if mark in ACCEPTED_IF_NOT_MEASURED else None)
        and (part == "ops" or mark in "frd")
    ]
    assert not wrong, "\n".join([again, *wrong])
    for name in unit.names:
        count, least = results.compared["ops", name, unit.dtype], matrix.compared(EXPECTED, name, unit.dtype)
        assert count >= least, f"{again}\n{name}: {count} calls were compared, {least} when it was written"


def test_nearly_all_that_cpu_runs_is_equal():
    for part in matrix.PARTS:
        counts = Counter(mark for (p, _, _), mark in EXPECTED_MARKS.items() if p == part)
        runs = sum(counts.values()) - counts[matrix.NONE]
        assert counts["="] + counts["*"] >= 0.995 * runs, (part, counts)
        assert runs >= matrix.LEAST[part]


def test_all_that_is_not_equal_has_a_reason():
    for (part, name, dtype), mark in EXPECTED_MARKS.items():
        if mark in "frd":
            assert EXPECTED["reasons"][part][f"{name} {dtype}"]
