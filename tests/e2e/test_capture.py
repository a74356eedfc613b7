"""TORCH_REMOTE_CAPTURE records a session in a file, which remote-replay replays."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

TRAIN = """
    import torch, torch_remote
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Dropout(), nn.Linear(32, 4)).to("remote")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        x, y = torch.randn(8 + step, 16).to("remote"), torch.randint(0, 4, (8 + step,)).to("remote")
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
    print(model[0].weight.detach().nonzero().sum().item(), model[0].weight.sum().cpu())
"""


@pytest.fixture
def replay(remote: torch.device):
    """Runs remote-replay on a capture; returns the exit status and its JSON."""
    import torch_remote

    def run(capture: Path, *arguments: str) -> tuple[int, dict]:
        result = subprocess.run(
            [str(Path(torch_remote.__file__).parent / "bin/remote-replay"), str(capture), "--json", *arguments],
            env={**os.environ, "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode in (0, 1), result.stderr
        return result.returncode, json.loads(result.stdout)

    return run


@pytest.mark.parametrize("worker", ["local", "inproc"])
def test_a_training_run_replays_bit_for_bit(script, replay, tmp_path, worker):
    capture = tmp_path / "train.rreplay"
    script(TRAIN, TORCH_REMOTE_CAPTURE=str(capture), TORCH_REMOTE_WORKER=worker)
    status, found = replay(capture, "--compare", "recorded", "--worker", worker)
    assert status == 0, found
    assert found["ending"] == "complete" and found["compared"] == found["reads"] == 6 and found["runs"] >= 5
    status, found = replay(capture, "--compare", "passes", "--worker", worker)
    assert status == 0 and found["compared"] >= 5 and found["without_source"] == 0, found


def test_without_the_variable_nothing_is_written(script, remote, tmp_path):
    script(TRAIN, TORCH_REMOTE_CAPTURE="")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_errors_of_the_capture_are_expected_in_its_replay(script, replay, tmp_path):
    capture = tmp_path / "errors.rreplay"
    script(
        """
        import torch, torch_remote
        x = torch.arange(4.0, device="remote")
        try:
            print(x.index_select(0, torch.tensor([9]).to("remote")).cpu())
        except IndexError as error:
            print(error)
        assert (x + 1).tolist() == [1, 2, 3, 4]
        """,
        TORCH_REMOTE_CAPTURE=str(capture),
    )
    status, found = replay(capture, "--compare", "recorded")
    assert status == 0 and found["errors"] == [] and found["compared"] == 1, found


def test_the_limit_ends_the_capture_and_not_the_session(script, replay, tmp_path):
    capture = tmp_path / "part.rreplay"
    result = script(TRAIN, TORCH_REMOTE_CAPTURE=str(capture), TORCH_REMOTE_CAPTURE_LIMIT="30K")
    assert result.stderr.count("TORCH_REMOTE_CAPTURE_LIMIT") == 1 and len(result.stdout.splitlines()) == 5
    assert capture.stat().st_size <= 30 << 10
    status, found = replay(capture)
    assert status == 0 and found["ending"] == "ends at its limit" and found["uploads"] > 0, found


def test_a_killed_process_leaves_what_it_did(script, replay, tmp_path):
    capture = tmp_path / "killed.rreplay"
    script(TRAIN + "    import os; os.kill(os.getpid(), 9)\n", status=-9, TORCH_REMOTE_CAPTURE=str(capture))
    status, found = replay(capture, "--compare", "recorded")
    assert status == 0 and found["ending"] == "cut off" and found["compared"] == 6, found


def test_a_forked_child_does_not_write(script, replay, tmp_path):
    capture = tmp_path / "forked.rreplay"
    script(
        """
        import os, sys, torch, torch_remote
        x = torch.ones(3, device="remote")
        assert x.sum().item() == 3
        pid = os.fork()
        if pid == 0:
            del x
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert (x * 2).tolist() == [2, 2, 2]
        """,
        TORCH_REMOTE_CAPTURE=str(capture),
    )
    status, found = replay(capture, "--compare", "recorded")
    assert status == 0 and found["ending"] == "complete" and found["compared"] == 2, found


def test_each_session_and_process_has_its_file(script, replay, tmp_path):
    script(
        """
        import torch, torch_remote
        assert torch.ones(3, device="remote").sum().item() == 3
        torch.remote.restart()
        assert torch.ones(4, device="remote").sum().item() == 4
        """,
        TORCH_REMOTE_CAPTURE=str(tmp_path / "of.%p.rreplay"),
    )
    first, second = sorted(tmp_path.glob("*.rreplay"), key=lambda path: len(path.name))
    assert first.name.split(".")[1].isdigit() and second.name == first.name.replace(".rreplay", ".2.rreplay")
    for capture in (first, second):
        assert replay(capture, "--compare", "recorded")[0] == 0


@pytest.mark.parametrize(
    ("path", "limit", "message"),
    [
        ("/proc/nonexistent/x.rreplay", "1G", "cannot write the capture '/proc/nonexistent/x.rreplay'"),
        ("x.rreplay", "lots", "TORCH_REMOTE_CAPTURE_LIMIT='lots'"),
    ],
)
def test_a_capture_that_cannot_be_made_is_an_error(script, remote, path, limit, message):
    result = script(
        'import torch, torch_remote\ntorch.ones(1, device="remote").cpu()',
        status=1,
        TORCH_REMOTE_CAPTURE=path,
        TORCH_REMOTE_CAPTURE_LIMIT=limit,
    )
    assert "RuntimeError: remote: " in result.stderr and message in result.stderr
