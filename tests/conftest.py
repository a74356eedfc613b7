"""Fixtures of all Python tests: the device, counters, and scripts in separate processes."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from python_processes import run_python

# On "cpu", the tests check themselves: their expectations must hold there, too.
DEVICE = os.environ.get("TORCH_REMOTE_TEST_DEVICE", "remote")
if DEVICE != "cpu":
    import torch_remote  # noqa: F401

# Results are compared with the CPU's.
torch.backends.cudnn.allow_tf32 = False


def pytest_configure(config: pytest.Config) -> None:
    # Workers on GPUs compare their first runs with their reference.
    if DEVICE != "cpu":
        config.addinivalue_line("filterwarnings", "error::torch_remote.shadow.ShadowWarning")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(DEVICE)


@pytest.fixture
def remote() -> torch.device:
    """For tests of features that only the device `remote` has."""
    if DEVICE == "cpu":
        pytest.skip("of the device remote alone")
    return torch.device(DEVICE)


@pytest.fixture(autouse=True)
def reproducible() -> None:
    torch.manual_seed(0)


class Counted:
    """Changes of counters during a `with counted() as c` block: c["round_trips"]."""

    def __init__(self) -> None:
        self.before: dict[str, int] = torch.remote.stats()
        self.after: dict[str, int] | None = None

    def __getitem__(self, name: str) -> int:
        after = self.after if self.after is not None else torch.remote.stats()
        return after[name] - self.before[name]


@pytest.fixture
def counted(remote: torch.device) -> Callable[[], object]:
    @contextmanager
    def block() -> Iterator[Counted]:
        torch.remote.synchronize()
        counters = Counted()
        yield counters
        counters.after = torch.remote.stats()

    return block


@pytest.fixture
def compiled_graphs(remote: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The results of compiling graphs, in order of compilation."""
    import torch_remote.compile.compiler as compiler

    made = []

    def compile_graph(*args: object, **kwargs: object) -> object:
        made.append(compile_as_ever(*args, **kwargs))
        return made[-1]

    compile_as_ever = compiler.compile_graph
    monkeypatch.setattr(compiler, "compile_graph", compile_graph)
    return made


def worker_processes() -> list[int]:
    """Pids of this process's workers that run."""
    pids = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            name, _, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(") ")
            # A killed worker that took long to end on a busy machine may never be waited for.
            if name.startswith("torch-remote") and not state.startswith("Z"):
                pids.append(int(pid))
    return pids


@pytest.fixture(name="worker_processes")
def worker_processes_fixture() -> Callable[[], list[int]]:
    return worker_processes


@pytest.fixture
def lose(remote: torch.device) -> Iterator[Callable[[], None]]:
    """Kills the worker, which loses all of its state; another worker replaces it."""

    def lose() -> None:
        torch.remote.synchronize()
        (pid,) = worker_processes()
        os.kill(pid, signal.SIGKILL)
        torch.remote.restart()

    yield lose
    torch.remote.restart()


Script = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs Python source in a separate process. Fails unless the exit status is the expected one. `fresh`: the process
    imports torch itself, instead of being forked after the import."""

    def run(
        source: str, status: int | None = 0, timeout: float = 60, fresh: bool = False, **environment: str
    ) -> subprocess.CompletedProcess:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(source))
        result = run_python(file, env={**os.environ, **environment}, timeout=timeout, fresh=fresh)
        if status is not None:
            assert result.returncode == status, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


def equal(got: torch.Tensor, expected: torch.Tensor, **tolerances: float) -> None:
    """Asserts that a tensor is on the device and equals a CPU tensor, including strides. Without tolerances, the
    comparison is bit for bit."""
    assert expected.device.type == "cpu"
    assert got.device.type == DEVICE, f"on {got.device}"
    tolerances = tolerances or {"rtol": 0, "atol": 0}
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True, **tolerances)
    assert got.stride() == expected.stride(), f"strides {got.stride()}, expected {expected.stride()}"


@pytest.fixture(name="equal")
def equal_fixture() -> Callable[..., None]:
    return equal
