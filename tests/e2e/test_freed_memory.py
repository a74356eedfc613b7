"""Freed memory is available to later allocations, for all connections to a worker."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from python_processes import Python

# 300 MB hold one of these tensors, but not two.
USE = """
import torch, torch_remote

def use(device):
    count = 50_000_000
    for i in range(4):  # programs that are known
        x = torch.full((count + i,), 1.0, device=device)
        assert x[-1].item() == 1
        del x
    for i in range(4):  # another structure each time, so that its program is loaded first
        x = torch.zeros(count + i, device=device)
        few = x[-4:]
        for _ in range(i):
            few = few * 2 + 1
        assert few.sum().item() == 4 * (2**i - 1)
        del x, few
    host = torch.arange(count, dtype=torch.int32)
    for i in range(3):
        x = host[i:].to(device)
        assert x[7].item() == 7 + i
        del x
        x = torch.full((count + i,), 2.0, device=device)
        assert x[-1].item() == 2
        del x
    step = torch.compile(lambda t: (t + 1)[-1])
    for i in range(2):
        x = torch.full((count // 3 + i,), 3.0, device=device)
        assert step(x).item() == 4
        del x
    x = torch.full((count,), 5.0, device=device)
    try:
        torch.full((count,), 6.0, device=device)[-1].item()
    except torch.OutOfMemoryError as error:
        assert "aten::fill_" in str(error) and "200000000 bytes" in str(error), error
    else:
        raise AssertionError
    assert x[-1].item() == 5
"""

MACHINE = """
with torch_remote.RemoteMachine("local", memory_limit="300M") as machine:
    use(machine.device())
"""


def test_of_a_local_worker(script, remote):
    script(USE + MACHINE, timeout=200)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_of_a_worker_that_listens(script, remote, tmp_path, kind):
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    url = f"unix://{tmp_path}/w" if kind == "unix" else "tcp://127.0.0.1:0"
    worker = Python(
        [sys.executable, "-m", "torch_remote.worker", "--listen", url, "--memory-limit", "300M"],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if kind == "tcp":
            url = worker.stdout.readline().strip()
        deadline = time.monotonic() + 60
        while kind == "unix" and not (tmp_path / "w").is_socket():
            assert worker.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        script(USE + "use('remote')", timeout=200, TORCH_REMOTE_WORKER=url)
    finally:
        worker.kill()
        worker.wait()
