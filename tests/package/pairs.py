"""Runs a script with each client on each worker: pairs.py WHEEL PYTHON...

The wheel is for several versions of torch (`TORCH_REMOTE_TORCH`), and each Python has one of them: see bazel/versions.sh.
The exit status is 1 if a pair fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unpacked_wheel import environment, unpack

SCRIPT = Path(__file__).with_name("smoke.py").read_text()


def torch_of(python: str) -> tuple[str, Path]:
    """Returns the version and the folder of its torch."""
    find = "import importlib.metadata as m, importlib.util as u; print(m.version('torch'), u.find_spec('torch').origin)"
    version, path = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.split()
    return version, Path(path).parent


def run(site: Path, worker: str, client: str) -> str:
    """Runs the script with the Python `client` on a worker with the torch of `worker`. Returns what it printed last."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "worker"
        process = subprocess.Popen(
            [site / "torch_remote/bin/torch-remote-worker", "--listen", f"unix://{socket}"],
            env=environment(TORCH_REMOTE_TORCH_LIB=torch_of(worker)[1] / "lib"),
        )
        try:
            while not socket.exists() and process.poll() is None:
                time.sleep(0.05)
            done = subprocess.run(
                [client, "-c", SCRIPT],
                env=environment(PYTHONPATH=site, TORCH_REMOTE_WORKER=f"unix://{socket}"),
                capture_output=True, text=True, timeout=600,
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait()
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


def main() -> None:
    wheel, *pythons = sys.argv[1:]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        unpack(Path(wheel), site)
        for worker in pythons:
            for client in pythons:
                said = run(site, worker, client)
                wrong += said != "right"
                versions = f"worker with torch {torch_of(worker)[0]}, client with torch {torch_of(client)[0]}"
                print(f"{versions}: {said}", flush=True)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
