"""restore="replay": tensors survive the death of their worker."""

import os
import signal
import threading
import time

import pytest
import torch
from python_processes import run_python
from torch import nn


@pytest.fixture
def kill_worker(worker_processes):
    def kill():
        processes = worker_processes()
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        return len(processes)

    return kill


@pytest.fixture
def replaying(remote):
    """The device, which is restored from a log that may be small."""

    def begin(**options):
        torch.remote.restart()
        torch.remote.set_restore("replay", **options)
        return remote

    yield begin
    torch.remote.restart()
    torch.remote.set_restore(None)


def train(device, steps, at_step=lambda step: None, compiled=False):
    """The trained state of a small net with dropout, batch norm and AdamW, and all losses that were read."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(24, 64),
        nn.BatchNorm1d(64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.Softmax(1),
        nn.Linear(64, 3),
    ).to(device)
    call = torch.compile(net, backend="remote") if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, y = torch.randn(40 + step % 3, 24).to(device), torch.randint(3, (40 + step % 3,)).to(device)
        loss = nn.functional.cross_entropy(call(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        at_step(step)
        if step % 7 == 0:
            losses.append(loss.item())
    state = [t.cpu() for t in net.state_dict().values()]
    state += [t.cpu() for s in optimizer.state.values() for t in s.values()]
    return state + [torch.tensor(losses), torch.randn(5, device=device).cpu()]


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert x.numpy().tobytes() == y.numpy().tobytes()


@pytest.mark.parametrize("compiled", [False, True])
def test_training_survives_kills(replaying, kill_worker, capfd, compiled):
    expected = train(replaying(), 40, compiled=compiled)
    killed = []

    def at_step(step):
        if step in (3, 17, 18, 31):
            killed.append(kill_worker())

    same(train(replaying(), 40, at_step, compiled), expected)
    assert sum(killed) >= 2
    assert torch.remote.restored() >= 2
    assert "its tensors are recomputed" in capfd.readouterr().err


def test_what_came_before_a_checkpoint_is_not_done_again(replaying, kill_worker):
    expected = train(replaying(), 30)

    def at_step(step):
        if step == 10:
            torch.remote.checkpoint()
        if step in (12, 20):
            kill_worker()

    same(train(replaying(), 30, at_step), expected)
    assert torch.remote.restored() == 2


def test_checkpoints_are_made_beside_the_work_when_the_log_is_full(replaying, kill_worker):
    expected = train(replaying(), 60)
    kills = iter((9, 26, 44))
    next_kill = [next(kills)]

    def at_step(step):
        if step == next_kill[0]:
            time.sleep(0.3)  # a due checkpoint is complete by then
            kill_worker()
            next_kill[0] = next(kills, None)

    same(train(replaying(limit="400K"), 60, at_step), expected)
    assert torch.remote.restored() == 3


def test_views_of_one_buffer_writes_in_place_and_results_that_were_read(replaying, kill_worker):
    device = replaying()
    base = torch.arange(12.0, device=device)
    rows = base.view(3, 4)
    rows[1] += 0.5
    empty, one = torch.empty(0, device=device), torch.tensor(7, device=device)
    assert base.sum().item() == 68
    kill_worker()
    rows[2].mul_(2)
    torch.remote.checkpoint()
    base.add_(1)
    kill_worker()
    assert rows.tolist() == [[1, 2, 3, 4], [5.5, 6.5, 7.5, 8.5], [17, 19, 21, 23]]
    assert empty.tolist() == [] and one.item() == 7
    assert torch.remote.restored() == 2


def test_failures_fail_again_once(replaying, kill_worker):
    device = replaying()
    weight = torch.ones(4, device=device)
    bad = torch.ones(3, device=device)[torch.tensor([5], device=device)]
    with pytest.raises(IndexError):
        bad.cpu()
    kill_worker()
    with pytest.raises(IndexError):
        bad.cpu()
    assert (weight * 2).tolist() == [2, 2, 2, 2]
    torch.remote.synchronize()  # does not raise: the failure was already reported
    torch.remote.checkpoint()
    kill_worker()
    with pytest.raises(RuntimeError):  # the tensor has no contents after a checkpoint either
        bad.cpu()
    assert (weight * 3).tolist() == [3, 3, 3, 3]


def test_a_worker_that_dies_while_it_is_rebuilt(replaying, kill_worker, worker_processes):
    expected = train(replaying(), 30)
    killed = []
    first, trained = threading.Event(), threading.Event()

    def keep_killing():
        while len(killed) < 2 and not trained.is_set():
            for pid in worker_processes():
                if pid not in killed and not trained.wait(0.1):
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)
                    first.set()
            time.sleep(0.01)

    killer = threading.Thread(target=keep_killing)

    def at_step(step):
        if step == 20:
            killer.start()
            assert first.wait(20)

    try:
        same(train(replaying(), 30, at_step), expected)
    finally:
        trained.set()
        if killer.ident is not None:
            killer.join()  # it must not kill the worker of another test


def test_cancelled_work_is_not_repeated(replaying, kill_worker):
    device = replaying()
    x = torch.ones(4, device=device)
    torch.remote.synchronize()
    torch.remote.cancel()
    y = x + 1
    torch.remote.checkpoint()
    kill_worker()
    assert y.tolist() == [2, 2, 2, 2]
    assert torch.remote.restored() == 1


def test_a_log_that_is_full_says_so(replaying, kill_worker, monkeypatch):
    device = replaying(limit="64K")
    x = torch.randn(200_000).to(device)  # more than the log may hold
    kill_worker()
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            x.sum().item()  # either a checkpoint was complete in time, or the error gives the reason
            break
    except torch.remote.WorkerLost as error:
        assert "limit" in str(error)


def test_settings(replaying):
    device = replaying()
    torch.ones(2, device=device).sum().item()
    with pytest.raises(RuntimeError, match="before the first use"):
        torch.remote.set_restore("replay")
    with pytest.raises(ValueError, match="'replay' and None"):
        torch.remote.set_restore("again")
    with pytest.raises(ValueError, match="500M"):
        torch.remote.set_restore("replay", limit="lots")
    torch.remote.restart()
    torch.remote.set_restore(None)
    torch.ones(2, device=device).sum().item()
    with pytest.raises(RuntimeError, match="set_restore"):
        torch.remote.checkpoint()


def test_by_the_environment(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, re, signal, torch, torch_remote\n"
        "x = torch.arange(5., device='remote')\n"
        "x += 1; x.sum().item()\n"
        "os.kill(int(re.search(r'pid (\\d+)', torch.remote.get_device_properties().worker)[1]), signal.SIGKILL)\n"
        "print((x * 2).tolist(), torch.remote.restored())\n"
    )
    environment = {**os.environ, "TORCH_REMOTE_RESTORE": "replay", "TORCH_REMOTE_RESTORE_FOLDER": str(tmp_path / "log")}
    done = run_python(script, env=environment, timeout=100)
    assert done.stdout.strip() == "[2.0, 4.0, 6.0, 8.0, 10.0] 1", done.stderr
    assert list((tmp_path / "log").iterdir()) == []


def test_a_machine(remote, kill_worker):
    import torch_remote

    with torch_remote.RemoteMachine("local", restore="replay") as machine:
        x = torch.arange(3.0, device=machine.device())
        x.mul_(2)
        assert x.sum().item() == 6
        kill_worker()
        assert (x + 1).tolist() == [1, 3, 5]
        assert torch.remote.restored(machine.device()) == 1
    with pytest.raises(RuntimeError, match="restore='again'"):
        torch_remote.RemoteMachine("local", restore="again")
