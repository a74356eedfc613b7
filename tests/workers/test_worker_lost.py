"""When the worker dies, a typed error is raised in time, and the script can continue."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch


@pytest.fixture
def kill_worker(worker_processes):
    def kill():
        (pid,) = worker_processes()
        os.kill(pid, signal.SIGKILL)

    return kill


@pytest.fixture
def restarted(remote):
    yield remote
    torch.remote.restart()


def test_kill_mid_step_raises_worker_lost_and_restart_mends(restarted, kill_worker):
    net = torch.nn.Linear(64, 64).to(restarted)
    x = torch.randn(512, 64, device=restarted)
    for _ in range(3):
        net(x).square().mean().backward()
    torch.remote.synchronize()
    for _ in range(50):
        net(x).square().mean().backward()
    kill_worker()
    begin = time.perf_counter()
    with pytest.raises(torch.remote.WorkerLost) as error:
        net.weight.grad.sum().item()
    assert time.perf_counter() - begin < 2
    assert isinstance(error.value, RuntimeError)
    assert error.value.session is not None and error.value.last_acknowledged is not None
    assert "restart" in str(error.value)

    with pytest.raises(torch.remote.WorkerLost):  # until the restart
        x.cpu()
    torch.remote.restart()
    fresh = torch.nn.Linear(4, 4).to(restarted)
    fresh(torch.ones(2, 4, device=restarted)).sum().backward()
    assert fresh.bias.grad.tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError):  # its contents are lost
        x.cpu()
    assert (torch.ones(3, device=restarted) + 1).tolist() == [2, 2, 2]


def test_kill_while_waiting(restarted, kill_worker):
    import threading

    big = torch.randn(1500, 1500, device=restarted)
    torch.remote.synchronize()
    for _ in range(40):
        big = big @ big
        big = big / big.abs().max()
    killed = []

    def kill():
        kill_worker()
        killed.append(time.perf_counter())

    threading.Timer(0.3, kill).start()
    with pytest.raises(torch.remote.WorkerLost):
        big.sum().item()
    assert time.perf_counter() - killed[0] < 2


def test_kill_while_idle(restarted, kill_worker):
    x = torch.ones(3, device=restarted)
    assert x.sum().item() == 3
    kill_worker()
    time.sleep(0.1)
    with pytest.raises(torch.remote.WorkerLost):
        (x + 1).tolist()


def test_many_kills(script, remote):
    """Each time: the typed error, a restart, and a correct result."""
    script(
        """
    import os, random, signal, torch, torch_remote
    rng = random.Random(0)
    def worker():
        return int(open(f"/proc/self/task/{os.getpid()}/children").read().split()[0])
    kills = 0
    for i in range(20):
        x = torch.ones(64, 64, device="remote")
        for _ in range(rng.randint(0, 300)):
            x = x @ x / 64
        if rng.random() < 0.5:
            torch.remote.synchronize()
        else:
            x.sum()
        try:
            os.kill(worker(), signal.SIGKILL)
        except IndexError:
            continue  # nothing was sent yet: there is no worker
        kills += 1
        try:
            x.sum().item()
            raise SystemExit("no error")
        except torch.remote.WorkerLost:
            torch.remote.restart()
        assert (torch.ones(5, device="remote") * 2).sum().item() == 10
    assert kills >= 10
    """,
        timeout=120,
    )


def test_the_worker_dies_with_its_parent(script, remote):
    """This also holds if the parent is killed and cannot clean up."""
    result = script(
        """
    import os, signal, torch, torch_remote
    torch.ones(1, device="remote").item()
    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """,
        status=-signal.SIGKILL,
    )
    pid = int(result.stdout.split()[0])
    status = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        try:
            state = status.read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # a zombie: its status was not collected
            return
        time.sleep(0.02)
    pytest.fail(f"worker {pid} lives on, in state {state}")


def test_a_process_that_ends_normally_is_quick_and_silent(script, remote):
    begin = time.perf_counter()
    result = script(
        """
    import torch, torch_remote
    x = torch.ones(1000, device="remote")
    keep = [x + i for i in range(100)]
    """
    )
    assert result.stderr == "" and time.perf_counter() - begin < 20


@pytest.mark.parametrize("ops", [5, 6, 7])
def test_a_loss_that_shows_between_forward_and_backward_is_a_worker_lost(restarted, kill_worker, ops):
    """The forward pass can no longer be sent when the backward pass begins. The error must be the loss of the worker,
    not missing contents of tensors."""
    torch.remote._C.set_cut_limits(0, ops, 100_000)
    try:
        x = torch.randn(8, device=restarted, requires_grad=True)
        torch.remote.synchronize()
        kill_worker()
        time.sleep(0.2)
        with pytest.raises(torch.remote.WorkerLost):
            y = x
            for _ in range(ops):
                y = y.sin()
            y.sum().backward()
            x.grad.sum().item()
    finally:
        torch.remote._C.set_cut_limits(0, 64, 1024)
