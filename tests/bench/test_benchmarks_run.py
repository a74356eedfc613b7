"""Every benchmark runs and gives numbers. No target is checked: the machine that runs tests is shared."""

import math

import pytest
import run
import waits
import zoo_speed


@pytest.mark.parametrize("group", run.GROUPS)
def test_benchmark(remote, group):
    rows = run.GROUPS[group](1)
    assert rows and all(math.isfinite(float(row.value.split()[0])) for row in rows)


def test_waits(remote):
    rows = waits.tiny(1)
    assert rows and all(math.isfinite(float(row.value.split()[0])) for row in rows)


def test_zoo_speed(remote, capsys):
    zoo_speed.zoo(["gpt2"], 1, compiled=False)
    zoo_speed.single_ops(["GRU"], 1)
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) >= 3
