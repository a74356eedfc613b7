"""Shadow runs find the wrong kernel of a worker whose results of aten::erf are wrong."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

DUMP = "python/torch_remote/bin/remote-dump"
REPLAY = "python/torch_remote/bin/remote-replay"
WORKER = "python/torch_remote/bin/torch-remote-worker"


@pytest.fixture(autouse=True)
def shadows(remote, monkeypatch, tmp_path):
    """Files are written to the test's folder, and other tests have no shadow runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    torch.remote.shadow(0)


def run(script: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "import torch, torch_remote\n" + script],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def network(x, w):
    hidden = torch.tanh(x @ w).clone()
    hidden += 1
    return torch.softmax(hidden, -1), hidden.to(torch.bfloat16).sum(0), (hidden > 1).any(1), hidden.argmax(1)


def test_right_results_make_no_difference(remote):
    x, w = torch.randn(64, 32, device=remote), torch.randn(32, 48, device=remote, requires_grad=True)
    before = torch.remote.shadow_report()
    torch.remote.shadow(1)
    for _ in range(3):
        network(x, w)[0].square().sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        w.sum().item()
    report = torch.remote.shadow_report()
    assert report.runs - before.runs >= 3 and report.steps - before.steps >= 20
    assert report.differences == before.differences and report.found == ()
    assert report.bytes > 0 and report.copying_seconds > 0 and report.checking_seconds > 0


def test_a_wrong_kernel_is_named_with_its_line(remote):
    torch.remote.shadow(1)
    x = torch.randn(16, 8, device=remote)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torch.remote.ShadowWarning)
        wrong = torch.erf(x)  # this line
        doubled = wrong * 2
        doubled.cpu(), wrong.cpu()
        found = [str(difference) for difference in torch.remote.shadow_report().found]
    found += [str(w.message) for w in caught if w.category is torch.remote.ShadowWarning]
    assert found and all("aten::erf(f32[16, 8])" in text for text in found), found
    line = test_a_wrong_kernel_is_named_with_its_line.__code__.co_firstlineno + 5
    assert f"test_shadow.py:{line} in test_a_wrong_kernel_is_named_with_its_line" in found[0]
    assert "result 0 (f32): 1 of 128 elements differ, at most by 0.5" in found[0]
    file = found[0].rpartition(" ")[2]
    dumped = subprocess.run([DUMP, file, "--program", "1"], capture_output=True, text=True, check=True).stdout
    assert "aten::erf" in dumped and f"test_shadow.py:{line}" in dumped


def test_the_file_repeats_the_difference(remote, tmp_path):
    torch.remote.shadow(1)
    x = torch.randn(16, 8, device=remote)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torch.remote.ShadowWarning)
        torch.erf(x).cpu()
        found = [str(difference) for difference in torch.remote.shadow_report().found]
    found += [str(w.message) for w in caught]
    file = found[0].rpartition(" ")[2]
    other = f"unix://{tmp_path}/reference"
    worker = subprocess.Popen([WORKER, "--device", "reference", "--listen", other], stderr=subprocess.DEVNULL)
    try:
        faulty = os.environ["TORCH_REMOTE_WORKER_BINARY"]
        mine = f"unix://{tmp_path}/faulty"
        plugin = next(Path("python/torch_remote").glob("torch*/libaten_plugin.so"))
        environment = {**os.environ, "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib")}
        second = subprocess.Popen([faulty, "--plugin", plugin, "--listen", mine], env=environment)
        try:
            wait_for(tmp_path / "reference"), wait_for(tmp_path / "faulty")
            compared = subprocess.run(
                [REPLAY, file, "--compare", "worker", "--worker", mine, "--other", other, "--atol", "1e-5"],
                capture_output=True, text=True,
            )  # fmt: skip
        finally:
            second.kill(), second.wait()
    finally:
        worker.kill(), worker.wait()
    assert compared.returncode == 1, compared.stderr
    assert "first differing op: node 0: aten::erf" in compared.stdout, compared.stdout + compared.stderr


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_first_runs_are_those_of_new_programs(remote):
    before = torch.remote.shadow_report()
    torch.remote.shadow(0, first=1)
    x = torch.randn(33, device=remote)
    for _ in range(5):
        torch.cos(x * 1.25).cpu()
    assert torch.remote.shadow_report().runs == before.runs + 1


@pytest.mark.parametrize(("rate", "first"), [(-0.1, 0), (1.5, 0), (float("nan"), 0), (0.5, -1)])
def test_wrong_shares_are_errors(remote, rate, first):
    with pytest.raises(ValueError, match=r"torch\.remote\.shadow: (rate|first) is"):
        torch.remote.shadow(rate, first=first)


def test_the_environment_chooses_the_share():
    script = "x = torch.randn(8, device='remote'); torch.cos(x).cpu(); print(torch.remote.shadow_report().runs > 0)"
    assert run(script, TORCH_REMOTE_SHADOW="1").stdout == "True\n"
    assert run(script).stdout == "False\n"
    wrong = run(script, TORCH_REMOTE_SHADOW="often")
    assert wrong.returncode == 1
    assert "TORCH_REMOTE_SHADOW is a share of runs between 0 and 1, such as 0.01, got 'often'" in wrong.stderr


def test_nobody_asks_a_worker_that_checks_nothing():
    script = """
torch.ones(2, device='remote').cpu()
before = torch.remote.stats()["round_trips"]
print(torch.remote.shadow_report() == torch.remote.ShadowReport(), torch.remote.stats()["round_trips"] - before)
torch.remote.shadow(0)
print(torch.remote.stats()["round_trips"] - before)
"""
    assert run(script).stdout == "True 0\n0\n"
    assert run(script, TORCH_REMOTE_WORKER="inproc").stdout == "True 0\n0\n"


def test_a_worker_without_a_reference_says_so():
    script = "torch.ones(2, device='remote').cpu()"
    refused = run(script, TORCH_REMOTE_SHADOW="1", TORCH_REMOTE_WORKER="inproc")
    assert refused.returncode == 1
    assert "has no reference implementation to compare runs with" in refused.stderr
