"""Every benchmark runs and prints numbers. No target is checked, because test machines are shared."""

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import distance
import kernel_speed
import memory
import pytest
import run
import steps
import tables
import waits
import wheels
import zoo_speed


@pytest.mark.parametrize("group", run.GROUPS)
def test_benchmark(remote, group):
    rows = run.GROUPS[group](1)
    assert rows and all(math.isfinite(float(row.value.split()[0])) for row in rows)


def test_waits(remote):
    rows = waits.tiny(1) + waits.generation("Llama", waits.llama, 1.0, 1)
    assert len(rows) == 6 and all(math.isfinite(float(row.value.split()[0])) for row in rows)


def test_zoo_speed(remote, capsys):
    zoo_speed.zoo(["gpt2"], 1, compiled=False)
    zoo_speed.single_ops(["GRU"], 1)
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) >= 3


@pytest.mark.parametrize("way", [["--delay", "1"], ["--near"]])
def test_distance(way):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
    }
    command = [sys.executable, distance.__file__, "--rounds", "1", "--steps", "20", *way, "--only", "batch 64"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0 and "| MLP 256-256-1" in result.stdout, result.stdout + result.stderr


def test_wheels():
    (wheel,) = Path("python/torch_remote").glob("*.whl")
    result = subprocess.run(
        [sys.executable, wheels.__file__, wheel, wheel, "--rounds", "2"], capture_output=True, text=True, timeout=200
    )
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert result.returncode == 0 and len(rows) == 1 + len(wheels.ROWS) + len(wheels.FRESH) + 1, result
    assert all(0 < float(row.split(" | ")[2]) < math.inf for row in rows[1:])


def test_kernels(remote, capsys):
    kernel_speed.table(["softmax", "transpose, add", "AdamW"], 1, {"cpu": "cpu", "remote": "remote:0"})
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == [
        "| kernel",
        "| softmax",
        "| transpose, add",
        "| AdamW",
        "| geometric mean",
    ]


def test_memory(remote, capsys):
    memory.table(["mamba"])
    assert "| mamba | " in capsys.readouterr().out


def test_tables_of_the_page(monkeypatch, capsys):
    """Each table names a program that accepts its options, and is replaced without changing the others."""
    page = Path("docs/benchmarks.md").read_text(encoding="utf-8")
    known = tables.tables(page)
    assert {table.program for table in known} == {
        "run",
        "waits",
        "zoo_speed",
        "steps",
        "compiled",
        "kernel_speed",
        "memory",
    }
    assert page.count("<!-- table ") == page.count("<!-- end -->") == len(known)
    for table in known:
        monkeypatch.setattr(sys, "argv", [table.program, *table.options, "--help"])
        with pytest.raises(SystemExit) as left:
            importlib.import_module(table.program).main()
        assert left.value.code == 0
    readme = Path("README.md").read_text(encoding="utf-8")
    assert tables.with_quotes(readme, page) == readme, "run ./bazelw run //tests/bench:tables -- --only"
    assert tables.with_quotes(readme, page.replace("| 0.25 | ≤ 1 |", "| 0.29 | ≤ 1 |")) != readme
    changed = tables.replaced(page, "steps", "\n| new |\n\n")
    assert changed.count("| new |") == 1
    assert tables.tables(changed) == known
    assert tables.replaced(changed, "steps", tables._TABLE.search(page, page.index("<!-- table steps"))["body"]) == page


def test_steps(remote, capsys):
    """Every side takes the same steps."""
    mlp = steps.models()["mlp"]
    for path in steps.PATHS:
        losses = {
            side: [step() for step in [steps.make_step(mlp, side, path)] * 3] for side in ("cpu", "remote", "compiled")
        }
        for side in ("remote", "compiled"):
            assert losses[side] == pytest.approx(losses["cpu"], rel=1e-5)
    outputs = [steps.make_inference(mlp, side)() for side in ("cpu", "remote", "compiled")]
    assert outputs == pytest.approx(outputs[:1] * 3, rel=1e-4, abs=1e-4)
    steps.cold(["mlp"], 1)
    printed = capsys.readouterr().out
    assert (printed.count(" ms |"), printed.count(" s |")) == (2, 2)
    steps.stalls(["mlp"], 1)
    printed = capsys.readouterr().out
    assert printed.count(" ms |") == 3 and "| mlp | 0 |" not in printed
