"""Every benchmark runs and gives numbers. No target is checked: the machine that runs tests is shared."""

import math

import pytest
import run


@pytest.mark.parametrize("group", run.GROUPS)
def test_benchmark(remote, group):
    rows = run.GROUPS[group](1)
    assert rows and all(math.isfinite(float(row.value.split()[0])) for row in rows)
