"""Runs a script with each client on each worker: pairs.py WHEEL PYTHON...

The wheel is for several versions of torch (`TORCH_REMOTE_TORCH`), and each Python has one of them: bazel/versions.sh.
The exit status is 1 if a pair fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from unpacked_wheel import environment, unpack

SCRIPT = Path(__file__).with_name("smoke.py").read_text()


@dataclass(frozen=True)
class End:
    """What a client or a worker runs with."""

    name: str
    python: str
    site: Path  # the folder with the package torch_remote
    torch: Path  # the folder of torch
    paths: tuple[Path, ...] = ()  # further folders with packages


def end_of(python: str, site: Path) -> End:
    find = "import importlib.metadata as m, importlib.util as u; print(m.version('torch'), u.find_spec('torch').origin)"
    version, path = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.split()
    return End(f"torch {version}", python, site, Path(path).parent)


def run(worker: End, client: End, arguments: list[str], seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments on the client. What it does on the device runs on the worker."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "worker"
        process = subprocess.Popen(
            [worker.site / "torch_remote/bin/torch-remote-worker", "--listen", f"unix://{socket}"],
            env=environment(TORCH_REMOTE_TORCH_LIB=worker.torch / "lib"),
        )
        try:
            while not socket.exists() and process.poll() is None:
                time.sleep(0.05)
            paths = ":".join(map(str, [client.site, *client.paths]))
            return subprocess.run(
                [client.python, *arguments],
                env=environment(PYTHONPATH=paths, TORCH_REMOTE_WORKER=f"unix://{socket}"),
                capture_output=True, text=True, timeout=seconds,
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait()


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


def main() -> None:
    wheel, *pythons = sys.argv[1:]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        unpack(Path(wheel), site)
        ends = [end_of(python, site) for python in pythons]
        for worker in ends:
            for client in ends:
                said = last_line(run(worker, client, ["-c", SCRIPT]))
                wrong += said != "right"
                print(f"worker with {worker.name}, client with {client.name}: {said}", flush=True)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
