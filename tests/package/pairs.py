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

SCRIPT = """
import torch, torch_remote
from torch import nn

torch.manual_seed(0)
device = torch.device("remote")

def close(got, expected):
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)

x = torch.randn(64, 64)
there = x.to(device).requires_grad_()
here = x.clone().requires_grad_()
for t in (here, there):
    (torch.softmax(t @ t.T, 1) * t.sin()).sum().backward()
close(there.grad, here.grad)

def net():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 5))

losses = {}
images, labels = torch.randn(16, 3, 16, 16), torch.randint(5, (16,))
for where in ("cpu", "remote"):
    model = net().to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(images.to(where)), labels.to(where))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses[where] = loss.detach().cpu()
torch.testing.assert_close(losses["remote"], losses["cpu"], rtol=1e-3, atol=1e-4)

close(x.to(device).nonzero(), x.nonzero())  # its size depends on data
close(torch.linalg.svdvals(x.to(device)), torch.linalg.svdvals(x))
close(nn.LSTM(4, 8).to(device)(torch.ones(3, 2, 4, device=device))[0].detach() * 0, torch.zeros(3, 2, 8))
close(torch.cdist(x.to(device), x.to(device)), torch.cdist(x, x))
assert 0.3 < torch.rand(1000, device=device).mean().item() < 0.7

@torch.compile(backend="remote")
def f(a):
    return (a * 2 + 1).relu().sum(1)

close(f(x.to(device)), (x * 2 + 1).relu().sum(1))
try:
    torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)
except RuntimeError as error:
    assert "shapes cannot be multiplied" in str(error), error
else:
    raise AssertionError("a wrong matmul raised no error")
print("right")
"""


@dataclass(frozen=True)
class Checkout:
    root: Path
    site: Path  # the unpacked wheel

    @property
    def python(self) -> Path:
        return self.root / ".venv/bin/python"

    def unpack(self) -> None:
        (wheel,) = self.root.glob("bazel-bin/python/torch_remote/*.whl")
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
