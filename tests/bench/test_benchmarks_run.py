"""Every benchmark runs and gives numbers. No target is checked: the machine that runs tests is shared."""

import math

import pytest
import run
import steps
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


def test_steps(remote, capsys):
    """Every side takes the same steps."""
    mlp = steps.models()["mlp"]
    for path in steps.PATHS:
        losses = {
            side: [step() for step in [steps.make_step(mlp, side, path)] * 3] for side in ("cpu", "remote", "compiled")
        }
        for side in ("remote", "compiled"):
            assert losses[side] == pytest.approx(losses["cpu"], rel=1e-5)
    steps.cold(["mlp"], 1)
    assert capsys.readouterr().out.count(" s |") == 4
