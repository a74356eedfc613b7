"""Runs a script with each client on each worker: pairs.py CHECKOUT...

Each checkout has a wheel (`./bazelw build //:wheel`) for the torch of its .venv: see bazel/versions.sh. The exit status
is 1 if a pair fails.
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
class Checkout:
    root: Path
    site: Path  # the unpacked wheel

    @property
    def python(self) -> Path:
        return self.root / ".venv/bin/python"

    def unpack(self) -> None:
        text = (self.root / "python/torch_remote/version.py").read_text()
        version = text.partition('\n__version__ = "')[2].partition('"')[0]
        # The folder may have older wheels, too.
        (wheel,) = self.root.glob(f"bazel-bin/python/torch_remote/torch_remote-{version}-*.whl")
        unpack(wheel, self.site)

    def torch(self) -> Path:
        """The folder of its torch."""
        (folder,) = self.root.glob(".venv/lib/python3*/site-packages/torch")
        return folder

    def version(self) -> str:
        said = subprocess.run(
            [self.python, "-c", "import importlib.metadata as m; print(m.version('torch'))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return said.stdout.strip()


def run(worker: Checkout, client: Checkout) -> str:
    """Returns what the client printed last."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "worker"
        process = subprocess.Popen(
            [worker.site / "torch_remote/bin/torch-remote-worker", "--listen", f"unix://{socket}"],
            env=environment(TORCH_REMOTE_TORCH_LIB=worker.torch() / "lib"),
        )
        try:
            while not socket.exists() and process.poll() is None:
                time.sleep(0.05)
            done = subprocess.run(
                [client.python, "-c", SCRIPT],
                env=environment(PYTHONPATH=client.site, TORCH_REMOTE_WORKER=f"unix://{socket}"),
                capture_output=True, text=True, timeout=600,
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait()
    return (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]


def main() -> None:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        found = [Checkout(Path(root), Path(folder) / str(i)) for i, root in enumerate(sys.argv[1:])]
        for checkout in found:
            checkout.unpack()
        checkouts = {checkout.version(): checkout for checkout in found}
        for worker in checkouts:
            for client in checkouts:
                said = run(checkouts[worker], checkouts[client])
                wrong += said != "right"
                print(f"worker with torch {worker}, client with torch {client}: {said}", flush=True)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
