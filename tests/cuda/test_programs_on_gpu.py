"""Random programs on a worker whose GPU is one in software, against CPU. All that it refuses is listed.

`gpu_programs.py --count 10000` is a longer run.
"""

import os

import pytest
from gpu_programs import Tally, run
from refused_ops import REFUSED_OPS

FIRST = int(os.environ.get("TORCH_REMOTE_TEST_SEED", "2000"))
PROGRAMS = 160
GROUP = 20
LEAST_STEPS = 300  # of a group, that were compared
# Steps that may be left out, of all.
MOST_REFUSED, MOST_COMPLEX = 0.06, 0.06


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, GROUP))
def test_programs_equal_cpu(remote, first):
    tally = Tally()
    for seed in range(first, first + GROUP):
        failure = run(seed, remote.type, tally)
        assert failure is None, failure.report()
    new = {op: tally.examples.get(op) for op in tally.refused if op not in REFUSED_OPS}
    assert not new, f"the worker refuses more than refused_ops.py lists: {new}"
    assert tally.programs >= GROUP - 2
    assert tally.steps >= LEAST_STEPS
    steps = tally.steps + tally.refused.total() + tally.complex_refused.total()
    assert tally.refused.total() <= MOST_REFUSED * steps, tally.refused
    assert tally.complex_refused.total() <= MOST_COMPLEX * steps, tally.complex_refused
