"""One worker with two emulated GPUs: sessions are distributed over them, and each session uses one."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_processes import run_python

WORKER = Path("tests/emulated_gpu/worker").resolve()
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


# Copies between two devices: their bytes, their order, failed copies, and the route that they took.
COPIES = """
import torch, torch_remote
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
    here = (torch.randn(5, 6) * 50).to(dtype)
    layouts = (lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x[2, 2], lambda x: x[:0])
    for i, layout in enumerate(layouts):
        moved = layout(here.to(f"remote:{i % 2}")).to(f"remote:{1 - i % 2}")
        assert moved.device.index == 1 - i % 2 and torch.equal(moved.cpu(), layout(here)), (dtype, i)
x, copies = torch.ones(1 << 20, device="remote:0"), []
for i in range(5):
    copies.append(x.to("remote:1", non_blocking=True))
    x += 1
assert [c[-1].item() for c in copies] == [1, 2, 3, 4, 5] and copies[2].sum().item() == 3 << 20
wrong = torch.ones(3, device="remote:0")[torch.tensor([0, 7], device="remote:0")].to("remote:1")
right = x.to("remote:1")
try:
    print(wrong.cpu())
    raise AssertionError("an index out of range")
except IndexError:
    pass
assert right[0].item() == 6
w = torch.randn(6, 6, requires_grad=True)
a, b = w.detach().to("remote:0").requires_grad_(), w.detach().to("remote:1").requires_grad_()
((torch.tanh(a @ a)).to("remote:1") @ b).sum().backward()  # a pipeline of two
((torch.tanh(w @ w)) @ w).sum().backward()
torch.testing.assert_close(a.grad.cpu() + b.grad.cpu(), w.grad)
for path in torch.remote.copy_paths():
    assert path.direct > 0 and path.relayed == 0, path
    print(path.way)
"""


@contextmanager
def serving(url, devices, *options, **environment):
    process = subprocess.Popen(
        [WORKER, "--listen", url, "--device", devices, *options],
        env=CLEAN | environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
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


def run(script, *addresses):
    result = run_python(
        "-c", script, timeout=120,
        env={**CLEAN, "PYTHONPATH": os.pathsep.join(sys.path), "TORCH_REMOTE_WORKER": ",".join(addresses)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def client(*addresses):
    return [int(number) for number in re.findall(r"in software (\d+)", run(CLIENT, *addresses))]


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_sessions_are_spread_over_the_gpus(tmp_path, scheme):
    url = f"unix://{tmp_path}/w" if scheme == "unix" else "tcp://127.0.0.1:0"
    with serving(url, "cuda:0,cuda:1") as address:
        assert client(address, address) == [0, 1]
        deadline = time.monotonic() + 20
        while (used := client(address, address, address)) != [0, 1, 0]:  # waits until the first sessions have ended
            assert time.monotonic() < deadline, used


@pytest.mark.parametrize("device", ["cuda:1", "cuda:GPU-e1e1e1e1-e1e1-e1e1-e1e1-e1e1e1e1e1e1", "cuda:GPU-e1"])
def test_one_gpu_may_be_another_than_the_first(tmp_path, device):
    with serving(f"unix://{tmp_path}/w", device) as address:
        assert client(address, address) == [1, 1]


@pytest.mark.parametrize(
    "others, way",
    [
        ("readable", "from GPU to GPU"),
        ("refused", "over the network, as .*peer access is not supported"),
        ("garbled", "over the network, as .*a read of the other GPU's memory returned wrong bytes"),
    ],
)
def test_copies_go_from_gpu_to_gpu_where_they_can(tmp_path, others, way):
    options = ["--peer-host", "127.0.0.1"]
    with serving(f"unix://{tmp_path}/w", "cuda:0,cuda:1", *options, TORCH_REMOTE_TEST_OTHERS=others) as address:
        ways = run(COPIES, address, address).splitlines()
    assert len(ways) == 2 and all(re.match(way, said) for said in ways), ways


def test_a_gpu_and_a_cpu_meet_over_the_network(tmp_path):
    with serving(f"unix://{tmp_path}/w", "cuda:0", "--peer-host", "127.0.0.1") as address:
        ways = run(COPIES, address, "local").splitlines()
    assert ways == ["over the network, as remote:1 is not a GPU"] * 2


@pytest.mark.parametrize("devices", ["cuda:0,cpu", "cuda:0,", "cuda:-1", ",cuda:0", "cuda:x", "cuda:GPU-x", "gpu"])
def test_what_is_no_device_is_refused(devices):
    said = subprocess.run(
        [WORKER, "--listen", "tcp://127.0.0.1:0", "--device", devices], capture_output=True, text=True
    )
    assert said.returncode != 0 and "is not a device" in said.stderr + said.stdout


def test_one_client_has_one_device():
    said = subprocess.run([WORKER, "--stdio", "--device", "cuda:0,cuda:1"], capture_output=True, text=True)
    assert said.returncode == 1 and "one client has one device" in said.stderr
