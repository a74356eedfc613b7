"""tests/gpu/run.sh on the emulated GPU: everything runs, and the page states that its numbers are emulated."""

import os
import re
import subprocess
import sys
from pathlib import Path

WORKER = Path("tests/emulated_gpu/worker")


def run(*arguments):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    package = str(Path("python/torch_remote").resolve())
    return subprocess.run(
        ["bash", "tests/gpu/run.sh", "--python", sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "TORCH_REMOTE_PACKAGE": package}, text=True, capture_output=True,
    )  # fmt: skip


def test_it_runs_and_writes_a_page(tmp_path):
    page = tmp_path / "page.md"
    result = run("--emulated", WORKER, "--out", page)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert re.search(r"\d+ passed", result.stdout) and "cuda:0" in result.stdout
    text = page.read_text()
    assert "## Self-test" in text and re.search(r"run sort.cu +ok", text), text
    assert "of a GPU in software and mean nothing" in text
    rows = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    for name, unit in (
        ("copy", "TB/s"),
        ("softmax", "TB/s"),
        ("layer norm", "TB/s"),
        ("product", "TFLOP/s"),
        ("attention", "TFLOP/s"),
        ("attention of one token", "TB/s"),
        ("lstm, a training step", "ms"),
        ("worker's start to first result", "s"),
    ):
        number, found = rows[f"| {name}"][2].split()
        assert found == unit and float(number) > 0, rows


def test_without_a_gpu_it_says_so(tmp_path):
    result = run("--out", tmp_path / "page.md")
    if result.returncode == 0:
        return  # this machine has a GPU
    assert result.returncode == 2 and "there is no GPU to test on" in result.stderr and "nvidia-driver" in result.stdout
    assert not (tmp_path / "page.md").exists()


def test_a_worker_that_does_not_start_is_no_missing_gpu(tmp_path):
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/sh\necho 'libspdlog.so.1.10: cannot open shared object file' >&2\nexit 127\n")
    worker.chmod(0o755)
    result = run("--worker", worker, "--out", tmp_path / "page.md")
    assert result.returncode == 1 and "libspdlog" in result.stderr and "does not start" in result.stderr


def choose(tmp_path, driver):
    """What run.sh installs on a machine whose nvidia-smi reports this driver."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {driver}\n")
    program.chmod(0o755)
    return subprocess.run(
        ["bash", "tests/gpu/run.sh", "--dry-run", "yes"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, text=True, capture_output=True,
    )  # fmt: skip


def test_the_driver_selects_the_builds(tmp_path):
    assert choose(tmp_path, "580.65.06").stdout.split() == ["https://download.pytorch.org/whl/cu130", "cuda"]
    assert choose(tmp_path, "550.54.15").stdout.split() == ["https://download.pytorch.org/whl/cu126", "cuda12"]
    old = choose(tmp_path, "470.82.01")
    assert old.returncode == 2 and "470.82.01 is too old; install 525.60 or later" in old.stderr


def test_unknown_options_show_the_usage():
    result = run("--what", "now")
    assert result.returncode == 64 and "--emulated WORKER" in result.stdout


def test_the_page_in_the_tree_says_that_nobody_ran_it():
    text = Path("docs/gpu_benchmarks.md").read_text()
    assert "tests/gpu/run.sh" in text and ("Nobody has run this" in text or "by the GPU's clock" in text)
