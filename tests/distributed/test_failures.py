"""Errors in a process group are raised on all ranks, and name the rank, the op and the fix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import ranks
import torch
import torch.distributed as dist

from torch_remote.device._device import _process


def message(f):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        f()
        torch.remote.synchronize()
    return str(raised.value)


def started(rank, size, **options):
    """A group that has executed one op."""
    group = dist.new_group(range(size), **options)
    t = torch.ones(4, device="remote")
    dist.all_reduce(t, group=group)
    torch.remote.synchronize()
    return group


def mismatched(rank, size):
    group = started(rank, size)
    text = message(lambda: dist.all_reduce(torch.ones(3 if rank == 0 else 5, device="remote"), group=group))
    assert "number 2" in text and "of 3 elements" in text and "of 5 elements" in text, text
    assert "same order" in text and "in mismatched" in text, text
    text = message(lambda: dist.all_reduce(torch.ones(3, device="remote"), group=group))
    assert "of 5 elements" in text, text  # the cause of the failure
    t = torch.ones(2, device="remote")
    dist.all_reduce(t)  # other groups still work
    assert t.tolist() == [size] * 2


def other_op(rank, size):
    group = started(rank, size)
    t = torch.ones(2, device="remote")
    text = message(lambda: dist.broadcast(t, 1, group) if rank == 0 else dist.all_reduce(t, group=group))
    assert "broadcast (number 2)" in text and "all_reduce (number 2)" in text, text


def left_out(rank, size):
    """Rank 0's tensor could not be computed, so the other ranks get an error."""
    group = started(rank, size)
    t = torch.ones(4, device="remote")
    if rank == 0:
        t = t[torch.tensor([9], device="remote")].expand(4) * 1

    def both():
        dist.all_reduce(t, group=group)
        dist.all_reduce(torch.ones(4, device="remote"), group=group)

    text = message(both)
    assert "skipped collective op number 2" in text, text
    assert rank != 0 or "index 9 is out of bounds" in text, text


def refused(rank, size):
    """Invalid calls raise locally, and break nothing."""
    t = torch.ones(4, device="remote")
    assert "use SUM" in message(lambda: dist.all_reduce(t, dist.ReduceOp.BOR))
    assert "PREMUL_SUM" in message(lambda: dist.all_reduce(t, dist._make_nccl_premul_sum(2.0)))
    assert "need 8" in message(lambda: dist.all_gather_into_tensor(torch.ones(5, device="remote"), t))
    assert "not divisible" in message(lambda: dist.all_to_all_single(t[:3], t[:3]))
    assert "add up" in message(lambda: dist.all_to_all_single(torch.ones(4, device="remote"), t, [1, 2], [2, 2]))
    assert "not with rank" in message(lambda: dist.group.WORLD.send([t], rank, 0))
    if "software" not in torch.remote.get_device_properties(0).name:  # a GPU does not support such a tensor
        assert "bfloat16" in message(lambda: dist.all_reduce(t.to(torch.float8_e5m2)))
    assert "to_dense" in message(lambda: dist.all_reduce(t.to_sparse(), async_op=True))
    dist.all_reduce(t)
    assert t.tolist() == [size] * 4


def late(rank, size):
    group = started(rank, size, timeout=timedelta(seconds=0.5))
    if rank == 0:
        text = message(lambda: dist.all_reduce(torch.ones(3, device="remote"), group=group))
        assert "waited 0.5" in text and "all_reduce (number 2)" in text and "for rank 1" in text, text
        assert "timeout=" in text, text
    dist.barrier()


def missing(rank, size):
    group = dist.new_group(range(size), timeout=timedelta(seconds=0.5))
    if rank == 0:
        text = message(lambda: dist.all_reduce(torch.ones(3, device="remote"), group=group))
        assert "rank 1 did not send the address of its worker" in text, text
    dist.barrier()


def failed_twice(rank, size):
    group = dist.new_group(range(size))
    work = dist.irecv(torch.ones(2, device="remote"), 1 - rank, group)
    dist.destroy_process_group(group)
    for _ in range(2):  # a wait that failed does not make the next one succeed
        assert "this process group was destroyed" in message(work.wait)


def everything(rank, size):
    for function in (refused, mismatched, other_op, left_out, late, missing, failed_twice):
        function(rank, size)


def killed(rank, size):
    """Rank 1's worker is killed, and the process of rank 2 ends."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
    for group in (first, second):
        if dist.get_rank(group) >= 0:
            dist.all_reduce(torch.ones(4, device="remote"), group=group)
    torch.remote.synchronize()
    if rank == 1:
        os.kill(_process(None), signal.SIGKILL)
        dist.barrier()
        os._exit(0)
    if rank == 2:
        dist.barrier()
        os._exit(0)
    large = torch.ones(1_000_000, device="remote")
    text = message(lambda: dist.all_reduce(large, group=first))
    assert "the worker of rank 1 is gone" in text and "in all_reduce" in text, text
    dist.barrier()
    text = message(lambda: dist.all_reduce(large, group=second))
    assert "the worker of rank 1 is gone" in text and "in all_reduce" in text, text  # rank 1 of that group
    os._exit(0)


def restoring(rank, size):
    assert "restore='replay'" in message(lambda: dist.all_reduce(torch.ones(4, device="remote")))


def test_told(remote, tmp_path):
    ranks.run(__file__, "everything", 2, tmp_path)


def test_a_rank_that_is_gone(remote, tmp_path):
    ranks.run(__file__, "killed", 3, tmp_path)


def listening(rank, size, allowed):
    t = torch.ones(4, device="remote")
    if allowed == "no":
        assert "--peer-host" in message(lambda: dist.all_reduce(t))
        return
    dist.all_reduce(t)
    assert t.tolist() == [size] * 4


@pytest.mark.parametrize("allowed", ["no", "yes"])
def test_workers_that_listen(remote, allowed, tmp_path, monkeypatch):
    """Listening workers wait for other workers only if they know their addresses."""
    socket = tmp_path / "worker.sock"
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch_remote.worker",
            "--listen",
            f"unix://{socket}",
            *(["--peer-host", "127.0.0.1"] if allowed == "yes" else []),
        ],
        env=os.environ | {"PYTHONPATH": ranks.python_path()},
        stdout=subprocess.DEVNULL,
    )
    try:
        while not socket.exists() and worker.poll() is None:
            time.sleep(0.02)
        monkeypatch.setenv("TORCH_REMOTE_WORKER", f"unix://{socket}")
        ranks.run(__file__, "listening", 2 if allowed == "yes" else 1, tmp_path, allowed)
    finally:
        worker.terminate()
        worker.wait()


def test_restore(remote, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_REMOTE_RESTORE", "replay")
    ranks.run(__file__, "restoring", 1, tmp_path)
