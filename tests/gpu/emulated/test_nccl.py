"""Collective ops between workers on emulated GPUs with the emulated NCCL. The tests cover which ops NCCL executes, a
missing or refusing NCCL, overlap with other work, and a rank that is gone. tests/distributed/test_collectives.py
compares the results with gloo; it runs on such workers, too."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist

from torch_remote.device._device import _process


def counted() -> Counter[str]:
    """The number of calls of this rank's worker, by function."""
    path = Path(os.environ["TORCH_REMOTE_TEST_CALLS"].replace("%", str(_process(0))))
    torch.remote.synchronize()
    path.unlink(missing_ok=True)
    os.kill(_process(0), signal.SIGUSR1)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "the worker tells nothing"
        time.sleep(0.01)
    return Counter({name: int(count) for name, count in (line.split() for line in path.read_text().splitlines())})


def calls() -> dict[str, int]:
    return {name: count for name, count in counted().items() if name.startswith("nccl")}


def all_ops(rank, size):
    """Each op once in float32: first those that NCCL executes, then the others."""
    x = torch.arange(6.0, device="remote") + rank
    dist.all_reduce(x)
    assert x.tolist() == [size * i + sum(range(size)) for i in range(6)]
    dist.reduce(x, 1)
    dist.broadcast(x, 1)
    outs = [torch.empty(6, device="remote") for _ in range(size)]
    dist.all_gather(outs, x)
    assert all(torch.equal(o, x) for o in outs)
    out = torch.empty(3, device="remote")
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * size, device="remote"))
    assert out.tolist() == [size * (3 * rank + i) for i in range(3)]
    mine = torch.full((size,), float(rank), device="remote")
    got = torch.empty(size, device="remote")
    dist.all_to_all_single(got, mine)
    assert got.tolist() == list(range(size))


def by_nccl(rank, size):
    all_ops(rank, size)
    done = calls()
    wanted = ("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter", "ncclGroupEnd")
    assert all(done.get(name) == 1 for name in wanted), done
    # These go through the hosts: bitwise reductions, minima of floats (because of NaN), dtypes that NCCL lacks,
    # messages.
    bits = torch.tensor([rank + 1], device="remote")
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    low = torch.tensor([float("nan") if rank == 0 else 1.0], device="remote")
    dist.all_reduce(low, dist.ReduceOp.MIN)
    short = torch.ones(2, dtype=torch.int16, device="remote")
    dist.all_reduce(short)
    assert bits.item() == (1 | 2) and low.isnan().item() and short.tolist() == [size] * 2
    if rank == 0:
        dist.send(bits, 1)
    elif rank == 1:
        dist.recv(bits, 0)
    torch.remote.synchronize()
    assert calls() == done
    moved = torch.full((2,), rank == 0, device="remote")  # an op that only moves data supports every dtype
    dist.broadcast(moved, 0)
    assert moved.tolist() == [True, True] and calls()["ncclBroadcast"] == 2
    large = torch.full((300_000,), rank + 1, dtype=torch.int64, device="remote")
    dist.all_reduce(large, dist.ReduceOp.MAX)
    assert (large == size).all().item()
    before = calls()["ncclAllReduce"]
    for op, expected in ((dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.PRODUCT, [True, False, False])):
        seen = torch.tensor([True, rank == 0, False], device="remote")
        dist.all_reduce(seen, op)
        assert seen.tolist() == expected
    assert calls()["ncclAllReduce"] == before + 2
    group = dist.new_group(range(2))  # a new group, of some of the ranks
    if rank < 2:
        y = torch.ones(1, dtype=torch.bfloat16, device="remote")
        dist.all_reduce(y, dist.ReduceOp.AVG, group)
        assert y.item() == 1


def by_hosts(rank, size):
    all_ops(rank, size)
    assert sum(calls().get(name, 0) for name in ("ncclAllReduce", "ncclBroadcast", "ncclGroupEnd")) == 0


def own_part(rank, size):
    """Rank 0 sends two elements to itself and receives one."""
    group = dist.new_group(range(size))
    got = torch.zeros(2, device="remote")
    dist.all_reduce(got, group=group)
    torch.remote.synchronize()
    sizes = [2, 1] if rank == 0 else [1, 1]
    with pytest.raises((RuntimeError, ValueError)) as raised:
        dist.all_to_all_single(got, torch.ones(sum(sizes), device="remote"), [1, 1], sizes, group=group)
        torch.remote.synchronize()
    assert rank != 0 or "sizes that do not match" in str(raised.value), raised.value


def a_rank_goes(rank, size):
    x = torch.ones(4, device="remote")
    dist.all_reduce(x)
    torch.remote.synchronize()
    assert calls()["ncclAllReduce"] == 1
    if rank == 1:
        os.kill(_process(0), signal.SIGKILL)
        os._exit(0)
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(x)
        torch.remote.synchronize()
    text = str(raised.value)
    assert "rank 1" in text and "all_reduce (number 2)" in text, text
    assert (torch.ones(3, device="remote") * 2).tolist() == [2.0] * 3  # the device still works
    os._exit(0)


def overlaps(rank, size):
    """Work that does not use the result of an op does not wait for the op."""
    x, y = torch.ones(1000, device="remote"), torch.arange(8.0, device="remote")
    assert (y + 1).sum().item() == 36 and (y * 2).sum().item() == 56  # kernels are compiled before the time counts
    dist.all_reduce(torch.ones(1, device="remote"))  # the groups of the devices are made here
    torch.remote.synchronize()
    if rank == 1:
        time.sleep(4)
    began = time.monotonic()
    for _ in range(2):
        x *= 2
        dist.all_reduce(x)
        assert (y + 1).sum().item() == 36
    took = time.monotonic() - began
    assert rank == 1 or took > 2, took  # the second op needs the result of the first one
    x += 1
    assert x.tolist() == [(2 * size) ** 2 + 1] * 1000
    torch.remote.synchronize()
    if rank == 1:
        time.sleep(4)
    began = time.monotonic()
    dist.all_reduce(x)
    assert (y * 2).sum().item() == 56
    assert time.monotonic() - began < 2
    assert x.tolist() == [((2 * size) ** 2 + 1) * size] * 1000


def run(function, size, folder, monkeypatch, **environment):
    monkeypatch.setenv("TORCH_REMOTE_TEST_CALLS", f"{tempfile.mkdtemp()}/%")
    monkeypatch.setenv("TORCH_REMOTE_SHADOW", "0")  # its copies would count
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ranks.run(__file__, function, size, folder)


def test_ops_are_done_by_nccl(tmp_path, monkeypatch):
    run("by_nccl", 3, tmp_path, monkeypatch)


@pytest.mark.parametrize("why", ["missing", "refused 1"])
def test_hosts_do_them_where_one_rank_cannot(tmp_path, monkeypatch, why):
    run("by_hosts", 2, tmp_path, monkeypatch, TORCH_REMOTE_TEST_NCCL=why)


def test_a_rank_receives_as_much_as_it_sends_to_itself(tmp_path, monkeypatch):
    run("own_part", 2, tmp_path, monkeypatch)


def test_a_rank_that_goes_is_an_error(tmp_path, monkeypatch):
    run("a_rank_goes", 2, tmp_path, monkeypatch)


def test_ops_overlap_with_other_work(tmp_path, monkeypatch):
    run("overlaps", 2, tmp_path, monkeypatch)
