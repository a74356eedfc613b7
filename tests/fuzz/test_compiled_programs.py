"""A short run of the compiled random programs; `compiled_programs.py --count 1000` is a longer one."""

import pytest
from compiled_programs import difference, function_of

PROGRAMS = 75
GROUP = 15


@pytest.mark.parametrize("first", range(0, PROGRAMS, GROUP))
def test_compiled_programs_equal_cpu(remote, first):
    for seed in range(first, first + GROUP):
        what = difference(seed)
        assert what is None, f"seed {seed}: {what}\n{function_of(seed)[0]}"
