"""Ops of torch.distributed on the device give the results of gloo on the CPU."""

from __future__ import annotations

import math
import time

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.testing import assert_close

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
OPS = dist.ReduceOp


def both(f, *tensors, exact=True):
    """Calls f with the tensors, and with copies on the device. The tensors must be equal afterwards."""
    copies = [[t.to("remote") for t in x] if isinstance(x, list) else x.to("remote") for x in tensors]
    f(*tensors)
    f(*copies)
    for expected, got in zip(tensors, copies, strict=True):
        rows = zip(expected, got, strict=True) if isinstance(expected, list) else [(expected, got)]
        for a, b in rows:
            assert b.device.type == "remote"
            half = a.dtype in (torch.float16, torch.bfloat16)  # gloo rounds each partial sum
            some = {"rtol": 3e-2, "atol": 3e-2} if half else {}
            assert_close(b.cpu(), a, **({"rtol": 0, "atol": 0} if exact else some))


def random(shape, dtype=torch.float32):
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    return torch.randint(0, 20, shape).to(dtype)


def reductions(rank, size):
    # Two numbers have one sum, in any order.
    for dtype in FLOATS + INTEGERS:
        for op in (OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX):
            exact = size == 2 or not dtype.is_floating_point or op in (OPS.MIN, OPS.MAX)
            for shape in ((), (1,), (3, 5), (1000,)):
                both(lambda t, op=op: dist.all_reduce(t, op), random(shape, dtype), exact=exact)
    for op in (OPS.BAND, OPS.BOR, OPS.BXOR):
        both(lambda t, op=op: dist.all_reduce(t, op), random((50,), torch.int64))
    both(lambda t: dist.all_reduce(t), random((700_001,)), exact=size == 2)  # more than one piece
    both(lambda t: dist.all_reduce(t), torch.randn(2, 3, dtype=torch.complex64), exact=size == 2)
    average = torch.full((4,), float(rank), device="remote")
    dist.all_reduce(average, OPS.AVG)
    assert average.tolist() == [(size - 1) / 2] * 4
    flags = torch.tensor([rank == 0, True, False], device="remote")
    dist.all_reduce(flags, OPS.MIN)
    assert flags.tolist() == [size == 1, True, False]
    empty = torch.empty(0, device="remote")
    dist.all_reduce(empty)
    assert empty.tolist() == []

    def reduce(t, root):
        kept = t.clone()
        dist.reduce(t, root)
        if rank != root:  # gloo uses it as scratch memory
            assert t.device.type == "cpu" or torch.equal(t, kept)
            t.copy_(kept)

    for root in range(size):
        both(lambda t, root=root: reduce(t, root), random((1000, 3)), exact=size == 2)
        both(lambda t, root=root: dist.broadcast(t, root), random((1000, 3)))
    dist.reduce(torch.ones(0, device="remote"), 0)


def moving(rank, size):
    for dtype in (torch.float32, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn):
        mine = torch.full((2, 3), rank + 1).to(dtype).to("remote")
        lists = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(lists, mine)
        for other, tensor in enumerate(lists):
            assert_close(tensor.cpu().to(torch.complex64), torch.full((2, 3), other + 1).to(dtype).to(torch.complex64))
    root = size - 1
    for shape in ((1,), (3, 2), (0, 4)):
        many = (size * shape[0], *shape[1:])
        rows = [torch.zeros(shape) for _ in range(size)]
        both(dist.all_gather, [torch.zeros(shape) for _ in range(size)], random(shape))
        both(dist.all_gather_into_tensor, torch.zeros(many), random(shape))
        both(dist.reduce_scatter_tensor, torch.zeros(shape), random(many), exact=size == 2)
        both(dist.reduce_scatter, torch.zeros(shape), [random(shape) for _ in range(size)], exact=size == 2)
        both(dist.all_to_all_single, torch.zeros(many), random(many))
        both(lambda t, o: dist.gather(t, o if rank == root else None, root), random(shape), rows)
        both(
            lambda t, i: dist.scatter(t, i if rank == root else None, root),
            torch.zeros(shape),
            list(map(random, [shape] * size)),
        )
    # Rank a sends a + 2 b rows to rank b.
    to = [rank + 2 * other for other in range(size)]
    come = [other + 2 * rank for other in range(size)]
    both(lambda o, t: dist.all_to_all_single(o, t, come, to), torch.zeros(sum(come), 2), random((sum(to), 2)))
    parts = [torch.full((n, 2), rank * 10.0 + other, device="remote") for other, n in enumerate(to)]
    got = [torch.zeros(n, 2, device="remote") for n in come]
    dist.all_to_all(got, parts)
    for other, tensor in enumerate(got):
        assert_close(tensor.cpu(), torch.full((come[other], 2), other * 10.0 + rank))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]


def views(rank, size):
    """Elements of the tensor outside a view stay, and the op sees what was recorded earlier."""
    base = torch.arange(24.0).reshape(4, 6)  # gloo writes outside such views
    for view in (lambda t: t[1:3, ::2], lambda t: t.t(), lambda t: t[:, 1], lambda t: t[0].expand(4, 6)[:1]):
        expected, got = base.clone(), base.to("remote")
        view(expected).mul_(size)
        dist.all_reduce(view(got))
        assert_close(got.cpu(), expected)
    rows = torch.zeros(6, size, device="remote").t()
    dist.all_gather_into_tensor(rows, base[0].to("remote") + rank)
    assert_close(rows.cpu(), torch.stack([base[0] + other for other in range(size)]))

    def chain(t):
        u = t * 2
        dist.all_reduce(u)
        v = u + t  # reads the result
        dist.all_reduce(v)
        t.copy_(v)
        dist.all_reduce(u)
        t.add_(u)

    for n in (3, 7, 1, 7):  # one program with different sizes
        both(chain, torch.arange(float(n)) + rank)
    # An unused result must still be computed; otherwise the ranks' next ops would not match.
    dist.all_reduce(torch.ones(3, device="remote"))
    if rank == 0:
        torch.remote.synchronize()
    last = torch.ones(1, device="remote")
    dist.all_reduce(last)
    assert last.item() == size


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for first in ("send", "recv"):  # in both orders, and with more data than a socket buffers
        for n in (10, 2_000_000):
            out, got = torch.full((n,), float(rank), device="remote"), torch.zeros(n, device="remote")
            pair = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, got, left)]
            for work in dist.batch_isend_irecv(pair if first == "send" else pair[::-1]):
                work.wait()
            assert got[0].item() == got[-1].item() == left
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.tensor([tag], device="remote"), 1, tag=tag)
    if rank == 1:
        got = torch.zeros(2, dtype=torch.int64, device="remote")
        later, sooner = dist.irecv(got[:1], 0, tag=2), dist.irecv(got[1:], 0, tag=1)
        sooner.wait()
        later.wait()
        assert got.tolist() == [2, 1]
    if rank == 0:  # the message that was requested first is sent last
        got = torch.zeros(3, device="remote")
        last, first = dist.irecv(got[:1], tag=3), dist.irecv(got[1:2], 1, tag=4)
        first.wait()
        dist.send(got[1:2] + 1, 1)
        last.wait()
        assert got.tolist() == [7, 5, 0]
    if rank == 1:
        reply = torch.zeros(1, device="remote")
        dist.send(torch.full((1,), 5.0, device="remote"), 0, tag=4)
        dist.recv(reply, 0)
        dist.send(reply + 1, 0, tag=3)
        assert reply.item() == 6
    got = torch.zeros(3, device="remote")
    if rank == 0:
        assert sorted(dist.recv(got) for _ in range(size - 1)) == list(range(1, size))
    else:
        dist.send(torch.full((3,), float(rank), device="remote"), 0)


def groups(rank, size):
    # Only two ranks ever use this group, before any op of all ranks.
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        t = torch.full((2,), float(rank), device="remote")
        dist.all_reduce(t, group=pair)
        assert t.tolist() == [size - 1.0] * 2
    t = torch.full((2,), float(rank), device="remote")
    dist.broadcast(t, 1)
    assert t.tolist() == [1.0] * 2
    work = dist.all_reduce(t, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.get_future().wait()[0].tolist() == [float(size)] * 2
    with dist._coalescing_manager(device=torch.device("remote")):
        dist.all_reduce(t)
    assert t.tolist() == [float(size * size)] * 2
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor

    assert all_reduce(t, "sum", dist.group.WORLD).tolist() == [float(size**3)] * 2
    assert all_gather_tensor(t[:1] * 0 + rank, 0, dist.group.WORLD).tolist() == list(map(float, range(size)))
    assert (
        reduce_scatter_tensor(torch.ones(2 * size, device="remote"), "sum", 0, dist.group.WORLD).tolist() == [size] * 2
    )
    assert math.isclose(all_reduce(t.to(torch.bfloat16), "avg", dist.group.WORLD)[0].item(), size * size)


def anew(rank, size):
    """The group is destroyed and created anew, with the same name and so the same keys of the store."""
    for value in (1.0, 2.0):
        group = dist.new_group(range(size), backend="remote", use_local_synchronization=True)
        if rank == 0 and value > 1:
            time.sleep(1)  # the other ranks must not take the secret and the address of the first group
        t = torch.full((2,), value, device="remote")
        dist.all_reduce(t, group=group)
        assert t.tolist() == [size * value] * 2
        dist.destroy_process_group(group)


def waiting(rank, size):
    """Collectives do not wait; a barrier waits for all ranks."""
    t = torch.ones(1000, device="remote")
    dist.all_reduce(t)
    torch.remote.synchronize()
    before = torch.remote.stats()
    for _ in range(10):
        t = t / size
        dist.all_reduce(t)
    after = torch.remote.stats()
    assert after["round_trips"] == before["round_trips"]
    assert after["client_fallbacks"] == 0
    assert after["programs_built"] - before["programs_built"] <= 1
    assert t[0].item() == size
    assert dist.get_backend_config() == "remote:remote"
    dist.barrier()  # where gloo is available in addition, the processes use gloo for this
    trips = torch.remote.stats()["round_trips"]
    dist.barrier()
    assert torch.remote.stats()["round_trips"] == trips + 1


def everything(rank, size):
    for function in (groups, reductions, moving, views, messages):
        function(rank, size)


@pytest.mark.parametrize("size", [2, 3])
def test_as_gloo(remote, size, tmp_path):
    ranks.run(__file__, "everything", size, tmp_path)


def test_nothing_waits_with_the_default_backend(remote, tmp_path):
    ranks.run(__file__, "waiting", 2, tmp_path, backend="")


def test_a_group_that_is_created_anew(remote, tmp_path):
    ranks.run(__file__, "anew", 2, tmp_path)


def test_one_rank(remote, tmp_path):
    ranks.run(__file__, "reductions", 1, tmp_path)
