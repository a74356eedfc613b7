"""Random programs on a worker whose GPU is one in software, against CPU. All that it refuses is listed.

`gpu_programs.py --count 10000` is a longer run.
"""

import os

import pytest
from commit import commit_number
from gpu_programs import Tally, explained, run
from refused_ops import REFUSED_OPS

SEED = os.environ.get("TORCH_REMOTE_TEST_SEED")
FIRST = int(SEED) if SEED else commit_number() * 1000
PROGRAMS = 160
GROUP = 20
LEAST_STEPS = 300  # of a group, that were compared
# Steps that may be left out, of all.
MOST_REFUSED, MOST_COMPLEX, MOST_OWN = 0.06, 0.06, 0.02
MOST_ROUNDED = 4  # programs of a group


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, GROUP))
def test_programs_equal_cpu(remote, first):
    tally = Tally()
    explained.clear()
    for seed in range(first, first + GROUP):
        failure = run(seed, remote.type, tally)
        assert failure is None, f"{failure.report()}\nrepeat: gpu_programs.py --seed {seed}"
    new = {op: tally.examples.get(op) for op in tally.refused if op not in REFUSED_OPS}
    assert not new, f"the worker refuses more than refused_ops.py lists: {new}"
    assert tally.programs >= GROUP - 2
    assert tally.steps >= LEAST_STEPS
    steps = tally.steps + tally.refused.total() + tally.complex_refused.total()
    assert tally.refused.total() <= MOST_REFUSED * steps, tally.refused
    assert tally.complex_refused.total() <= MOST_COMPLEX * steps, tally.complex_refused
    assert tally.own.total() <= MOST_OWN * steps, tally.own
    assert len(explained) <= MOST_ROUNDED, f"rounding changes too many programs: {sorted(explained)}"
