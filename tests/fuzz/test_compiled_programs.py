"""A short run of the compiled random programs; `compiled_programs.py --count 1000` is a longer one."""

import os

import pytest
from commit import commit_number
from compiled_programs import check, function_of

PROGRAMS = 60
GROUP = 15
# The seed of the first program; without one, each commit runs programs of its own.
SEED = os.environ.get("TORCH_REMOTE_TEST_SEED")
FIRST = int(SEED) if SEED else commit_number() * 1000
# Of a group: programs that have gradients, and at most so many in which torch's own capture differs from eager code.
LEAST_GRADIENTS = 1
MOST_OF_TORCH = 3


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, GROUP))
def test_compiled_programs_equal_cpu(remote, first):
    gradients, torchs = 0, []
    for seed in range(first, first + GROUP):
        result = check(seed)
        repeat = f"repeat: bazel run //tests/fuzz:compiled_programs -- --seed {seed}"
        assert result.what is None, f"seed {seed}: {result.what}\n{function_of(seed).source}\n{repeat}"
        gradients += result.gradients
        if result.torchs is not None:
            torchs.append(f"seed {seed}: {result.torchs}")
    assert gradients >= LEAST_GRADIENTS
    assert len(torchs) <= MOST_OF_TORCH, "\n".join(torchs)
