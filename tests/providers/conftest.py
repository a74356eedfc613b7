"""Fixtures of the tests of the command torch-remote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def environment(tmp_path, remote):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture
def command(environment, tmp_path):
    """command("worker", "status") -> (exit status, standard output, standard error)."""

    def run(*arguments, **variables):
        result = subprocess.run(
            [sys.executable, "-m", "torch_remote_cli", *map(str, arguments)],
            env={**environment, **variables}, capture_output=True, text=True, timeout=120, cwd=tmp_path,
        )  # fmt: skip
        return result.returncode, result.stdout, result.stderr

    yield run
    run("worker", "stop", "--all")
    left = [path for path in (tmp_path / "torch-remote").glob("workers/*") if path.suffix != ".log"]
    assert not left, left
