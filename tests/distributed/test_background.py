"""Other work continues while ranks wait for each other."""

from __future__ import annotations

import threading
from unittest import mock

import ranks
import torch
import torch.distributed as dist

MUCH = 10_000_000  # elements; more than sockets buffer


def meet():
    """Waits for the other rank with gloo, outside the workers' order."""
    dist.all_reduce(torch.zeros(1))


def independent_ops_run(rank, size):
    """Ops that do not use a collective's result execute even if another rank has not reached the collective."""
    result, other = torch.ones(1000, device="remote"), torch.full((3,), 2.0, device="remote")
    gathered, mine = torch.zeros(size * 4, device="remote"), torch.full((4,), float(rank), device="remote")
    sent = torch.full((MUCH,), 3.0, device="remote")
    dist.all_reduce(result)
    if rank == 0:
        dist.all_reduce(result)
        dist.all_gather_into_tensor(gathered, mine)
        dist.isend(sent, 1)
        mine += 100  # must not change the gathered tensor and the message
        sent.zero_()
        assert (other * 3).tolist() == [6.0] * 3
        assert sent[:3].tolist() == [0.0] * 3
        assert not torch.remote.current_stream().query()
        meet()
    else:
        meet()
        dist.all_reduce(result)
        dist.all_gather_into_tensor(gathered, mine)
        got = torch.zeros(MUCH, device="remote")
        dist.recv(got, 0)
        assert got.min().item() == got.max().item() == 3
    assert (result * 2).tolist() == [2.0 * size**2] * 1000
    assert gathered.view(size, 4)[:, 0].tolist() == [float(r) for r in range(size)]
    torch.remote.synchronize()
    assert torch.remote.current_stream().query()


def crosswise(rank, size):
    """Two ranks send large messages to each other, in different groups, neither of which was used earlier."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    mine, others = groups[rank], groups[1 - rank]
    for _ in range(2):
        out, got = torch.full((MUCH,), float(rank), device="remote"), torch.zeros(MUCH, device="remote")
        sent = dist.isend(out, 1 - rank, group=mine)
        dist.recv(got, 1 - rank, group=others)
        sent.wait()
        assert got.min().item() == got.max().item() == 1 - rank
        totals = [torch.ones(5, device="remote") for _ in groups]
        order = (0, 1) if rank == 0 else (1, 0)
        works = [dist.all_reduce(totals[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        assert [t.tolist() for t in totals] == [[2.0] * 5] * 2


def many(rank, size):
    """Several large messages in both directions, before one is received."""
    outs = [torch.full((2 * MUCH,), 10.0 * rank + i, device="remote") for i in range(3)]
    gots = [torch.zeros(2 * MUCH, device="remote") for _ in range(3)]
    works = [dist.isend(t, 1 - rank) for t in outs] + [dist.irecv(t, 1 - rank) for t in gots]
    for work in works:
        work.wait()
    for i, got in enumerate(gots):
        assert got.min().item() == got.max().item() == 10 * (1 - rank) + i


def in_call_order(rank, size):
    """Collectives of two threads run in the order of the calls, even if the first thread has not sent its own yet."""
    first, second = torch.ones(5, device="remote"), torch.full((3,), 2.0, device="remote")
    dist.all_reduce(first)  # the first collective sets up the group
    if rank == 0:
        with mock.patch("torch_remote._C.flush"):
            thread = threading.Thread(target=dist.all_reduce, args=(first,))
            thread.start()
            thread.join()
    else:
        dist.all_reduce(first)
    dist.all_reduce(second)
    assert second.tolist() == [2.0 * size] * 3
    assert first.tolist() == [float(size**2)] * 5


def everything(rank, size):
    for function in (independent_ops_run, crosswise, many, in_call_order):
        function(rank, size)


def test_in_the_background(remote, tmp_path):
    ranks.run(__file__, "everything", 2, tmp_path)
