"""The page of remote-viz for a capture of a real session with several programs, in a headless Chromium."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from browser import Browser
from python_processes import run_python

import torch_remote

SCRIPT = """
import torch, torch_remote
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to("remote")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    x, y = torch.randn(32, 64, device="remote"), torch.randn(32, 8, device="remote")
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
with torch.no_grad():
    print(model(torch.ones(1, 64, device="remote")).argmax().item())
"""


def run(tool: str, *arguments: object) -> str:
    package = Path(torch_remote.__file__).parent
    environment = {
        **os.environ,
        "TORCH_REMOTE_PACKAGE": str(package),
        "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib"),
    }
    done = subprocess.run(
        [str(package / "bin" / tool), *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    (folder / "train.py").write_text(SCRIPT)
    path = folder / "train.rreplay"
    run_python(folder / "train.py", env={**os.environ, "TORCH_REMOTE_CAPTURE": str(path)}, check=True, timeout=120)
    return path


def menu(browser: Browser) -> list[str]:
    return browser.evaluate("[...document.getElementById('program').options].map((option) => option.textContent)")


def summary(browser: Browser) -> str:
    return browser.evaluate("document.getElementById('summary').textContent")


def test_the_menu_has_all_programs_of_a_session(capture: Path) -> None:
    programs = json.loads(run("remote-dump", capture, "--json"))["programs"]
    page = capture.with_suffix(".html")
    run("remote-viz", capture, "-o", page)
    with Browser() as browser:
        browser.open(page)
        entries = menu(browser)
        assert len(entries) == len(programs) >= 3
        for entry, program in zip(entries, programs, strict=True):
            assert entry.startswith(f"{program['program']}: {program['ops']} op"), entry
            assert f"{program['runs']} run" in entry
        most = max(programs, key=lambda program: program["ops"] * program["runs"])
        assert summary(browser).startswith(f"{most['ops']} ops")
        for program in programs:
            browser.evaluate(f"location.hash = 'program={program['program']}'")
            browser.wait_until(f"document.title === 'program {program['program']} of train.rreplay'")
            assert summary(browser).startswith(f"{program['ops']} op")
            browser.evaluate("drawAll()")
            source = browser.evaluate("nodes.find((node) => node.source).source")
            assert "train.py:" in source and source.endswith("in <module>")
        assert browser.errors == []


def test_times_of_a_replay(capture: Path) -> None:
    times, page = capture.with_suffix(".json"), capture.with_suffix(".times.html")
    times.write_text(run("remote-replay", capture, "--bench", "--rounds", 3, "--json"))
    bench = {entry["program"]: entry for entry in json.loads(times.read_text())["programs"]}
    runs = {entry["program"]: entry["runs"] for entry in json.loads(run("remote-dump", capture, "--json"))["programs"]}
    slowest = max(bench, key=lambda program: bench[program]["p50_us"] * runs[program])
    run("remote-viz", capture, "--times", times, "-o", page)
    with Browser() as browser:
        browser.open(page)
        assert all(" each" in entry and "ATen" in entry for entry in menu(browser)), menu(browser)
        assert browser.evaluate("document.title") == f"program {slowest} of train.rreplay"
        node = browser.evaluate("data.runners.findIndex((runner) => runner !== '')")
        browser.evaluate(f"goTo({node})")
        assert "runner" in browser.evaluate("document.getElementById('details').innerText")
        assert browser.errors == []
