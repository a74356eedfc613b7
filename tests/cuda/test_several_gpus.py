"""One worker with two GPUs (in software): sessions are spread over them, and each has its own."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

WORKER = Path("worker/cuda/emulated/worker").resolve()
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_REMOTE_WORKER", "CUDA"))}

CLIENT = """
import torch, torch_remote
count = torch.remote.device_count()
def used():
    return [torch.remote.memory_allocated(i) for i in range(count)]
torch.manual_seed(0)
x, w = torch.randn(64, 32), torch.randn(32, 8)
for i in range(count):
    there = x.to(f"remote:{i}")
    on_next = there.to(f"remote:{(i + 1) % count}")
    assert torch.equal(on_next.cpu(), x)
    product = torch.softmax(there @ w.to(there.device), -1)
    torch.testing.assert_close(product.cpu(), torch.softmax(x @ w, -1))
kept = torch.ones(1 << 20, device=f"remote:{count - 1}")
torch.remote.synchronize()
assert kept.sum().item() == 1 << 20
print([torch.remote.get_device_properties(i).name for i in range(count)])
"""


@contextmanager
def serving(url, devices):
    process = subprocess.Popen(
        [WORKER, "--listen", url, "--device", devices], env=CLEAN, stdout=subprocess.PIPE, text=True
    )
    try:
        if url.endswith(":0"):
            url = process.stdout.readline().strip()
        while url.startswith("unix") and not Path(url.removeprefix("unix://")).exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield url
    finally:
        process.terminate()
        process.wait()


def client(*addresses):
    result = subprocess.run(
        [sys.executable, "-c", CLIENT], text=True, capture_output=True, timeout=120,
        env={**CLEAN, "PYTHONPATH": os.pathsep.join(sys.path), "TORCH_REMOTE_WORKER": ",".join(addresses)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [int(number) for number in re.findall(r"in software (\d+)", result.stdout)]


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_sessions_are_spread_over_the_gpus(tmp_path, scheme):
    url = f"unix://{tmp_path}/w" if scheme == "unix" else "tcp://127.0.0.1:0"
    with serving(url, "cuda:0,cuda:1") as address:
        assert client(address, address) == [0, 1]
        deadline = time.monotonic() + 20
        while (used := client(address, address, address)) != [0, 1, 0]:  # once the first ones have ended
            assert time.monotonic() < deadline, used


def test_one_gpu_may_be_another_than_the_first(tmp_path):
    with serving(f"unix://{tmp_path}/w", "cuda:1") as address:
        assert client(address, address) == [1, 1]


@pytest.mark.parametrize("devices", ["cuda:0,cpu", "cuda:0,", "cuda:-1", ",cuda:0", "cuda:x", "gpu"])
def test_what_is_no_device_is_refused(devices):
    said = subprocess.run(
        [WORKER, "--listen", "tcp://127.0.0.1:0", "--device", devices], capture_output=True, text=True
    )
    assert said.returncode != 0 and "is no device" in said.stderr + said.stdout


def test_one_client_has_one_device():
    said = subprocess.run([WORKER, "--stdio", "--device", "cuda:0,cuda:1"], capture_output=True, text=True)
    assert said.returncode == 1 and "one client has one device" in said.stderr
