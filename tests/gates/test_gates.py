"""Runs the gates of docs/reliability.md with small counts; `bazel run //tests/gates` runs all of them."""

import os

import pytest

from tests.gates.parts import PARTS
from tests.gates.pieces import Piece, prepare


@pytest.mark.parametrize("part", [part for part in PARTS if part.short], ids=lambda part: part.name)
def test_gate(part, tmp_path):
    prepare(tmp_path)
    outcome = part.run(Piece(tmp_path, 0, part.short))
    assert outcome.count > 0 and outcome.wrong == 0, outcome
    if part.limit:
        # The limit assumes idle cores. On a busy machine, each call takes longer in proportion.
        limit = part.limit * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert all(time <= limit for time in outcome.times), (outcome, limit)
