"""The gates of docs/reliability.md, with small counts; `bazel run //tests/gates` has all of them."""

import pytest

from tests.gates.gates import GATES, prepare


@pytest.mark.parametrize(("number", "gate"), GATES, ids=[f"{number}-{i}" for i, (number, _) in enumerate(GATES)])
def test_gate(number, gate, tmp_path):
    prepare(tmp_path)
    what, count, wrong, text = gate(tmp_path, 0.01 if number in "289" else 0.02)
    assert count > 0 and wrong == 0, f"{what}: {wrong} of {count}; {text}"
