"""Kernels read and write at indices as torch does, for all sizes, without being compiled again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
FLOATS = DTYPES[:4]


def near(x: torch.Tensor) -> torch.Tensor:
    """A neighbor in a group that does not change values."""
    return x & True if x.dtype == torch.bool else x * 1


def table(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    numbers = torch.randint(-9, 9, shape)
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


def places(bound: int, *shape: int, least: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(least, bound, shape).to(dtype)


# By name: a function, and its operands for sizes n and m of a dtype.
READS: dict[str, tuple[Callable, Callable]] = {
    "index_select rows": (lambda t, i: t.index_select(0, i), lambda d, n, m: (table(d, n, m), places(n, 2 * n))),
    "index_select columns": (lambda t, i: t.index_select(-1, i), lambda d, n, m: (table(d, n, m), places(m, 7))),
    "index_select in the middle": (
        lambda t, i: t.index_select(1, i),
        lambda d, n, m: (table(d, 3, n, m), places(n, 5, dtype=torch.int32)),
    ),
    "index_select by one": (lambda t, i: t.index_select(0, i), lambda d, n, m: (table(d, n, m), places(n, 1)[0])),
    "gather rows": (lambda t, i: t.gather(0, i), lambda d, n, m: (table(d, n, m), places(n, 2 * n, m))),
    "gather columns": (lambda t, i: t.gather(1, i), lambda d, n, m: (table(d, n, m), places(m, n, 3))),
    "gather of some rows": (lambda t, i: t.gather(-1, i), lambda d, n, m: (table(d, n + 2, 4, m), places(m, n, 2, 5))),
    "gather of a transposed": (lambda t, i: t.t().gather(0, i), lambda d, n, m: (table(d, n, m), places(m, 4, n))),
    "gather with an expanded index": (
        lambda t, i: t.gather(1, i[:, :, None].expand(-1, -1, t.shape[2])),
        lambda d, n, m: (table(d, 3, n, m), places(n, 3, 6)),
    ),
    "take_along_dim": (lambda t, i: t.take_along_dim(i, 1), lambda d, n, m: (table(d, n, m), places(m, 1, 4))),
    "take": (lambda t, i: t.take(i), lambda d, n, m: (table(d, n, m), places(n * m, 9, 5, least=-n * m))),
    "take of a transposed": (
        lambda t, i: t.transpose(0, 2).take(i),
        lambda d, n, m: (table(d, 3, n, m), places(3 * n * m, 200, least=-3 * n * m)),
    ),
    "take of a slice": (lambda t, i: t[:, 1:].take(i), lambda d, n, m: (table(d, n, m + 1), places(n * m, 200))),
    "one index": (lambda t, i: t[i], lambda d, n, m: (table(d, n, m), places(n, 5, 3, least=-n))),
    "index of columns": (lambda t, i: t[:, i], lambda d, n, m: (table(d, n, m), places(m, 9, least=-m))),
    "a scalar index": (lambda t, i: t[:, i], lambda d, n, m: (table(d, n, m, 3), places(m, 1)[0])),
    "two indices": (
        lambda t, i, j: t[i, j],
        lambda d, n, m: (table(d, n, m), places(n, 50, least=-n), places(m, 50, least=-m)),
    ),
    "two indices, broadcast": (
        lambda t, i, j: t[i[:, None], j],
        lambda d, n, m: (table(d, n, m, 2), places(n, 6), places(m, 5, dtype=torch.int32)),
    ),
    "pairs of a batch": (
        lambda t, i, j: t[:, i, j],
        lambda d, n, m: (table(d, 4, n, m), places(n, 11), places(m, 11)),
    ),
    "indices apart": (
        lambda t, i, j: t[i, :, j],
        lambda d, n, m: (table(d, n, 5, m), places(n, 8), places(m, 8)),
    ),
    "three indices": (
        lambda t, i, j: t[i, j, i],
        lambda d, n, m: (table(d, n, m, n), places(n, 8, least=-n), places(m, 8)),
    ),
    "rows of a slice": (lambda t, i: t[1:, ::2][i], lambda d, n, m: (table(d, n + 1, m), places(n, 8))),
    "embedding": (lambda t, i: F.embedding(i, t), lambda d, n, m: (table(d, n, m), places(n, 3, 4))),
}


def check(remote, function: Callable, given: tuple, exact: bool = True) -> None:
    want, got = function(*given), function(*[x.to(remote) for x in given])
    for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (want, got)), strict=True):
        assert b.dtype == a.dtype
        assert b.stride() == a.stride()
        if exact:
            assert torch.equal(b.cpu(), a)
        else:
            torch.testing.assert_close(b.cpu(), a, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", READS)
def test_reads(remote, counted, name, dtype):
    reads, operands = READS[name]

    def function(*given):
        return near(reads(*given))

    with counted() as c:
        check(remote, function, operands(dtype, 37, 130))
        torch.remote.synchronize()
    assert c["kernels_compiled"] <= 1
    with counted() as c:  # other sizes use the same kernel
        check(remote, function, operands(dtype, 64, 1000))
        check(remote, function, operands(dtype, 3, 17))
        torch.remote.synchronize()
    assert c["kernels_compiled"] == 0
    check(remote, function, operands(dtype, 1, 16))
    check(remote, function, operands(dtype, 2, 1))


def test_reads_are_kernels(remote, counted):
    t, i = torch.randn(50, 64).to(remote), places(50, 20).to(remote)
    torch.remote.synchronize()
    for function in (lambda: t[i].sin(), lambda: t.index_select(0, i).sin() + 2, lambda: t.cos()[i] + t[i]):
        with counted() as c:
            function().cpu()
            torch.remote.synchronize()
        assert c["kernels_compiled"] == 1


WRITES: dict[str, tuple[Callable, Callable]] = {
    "index_add_ rows": (
        lambda t, i, s: t.index_add_(0, i, near(s)),
        lambda d, n, m: (table(d, n, m), places(n, 3 * n), table(d, 3 * n, m)),
    ),
    "index_add_ columns": (
        lambda t, i, s: t.index_add_(1, i, near(s)),
        lambda d, n, m: (table(d, n, m), places(m, 40), table(d, n, 40)),
    ),
    "index_add_ times a number": (
        lambda t, i, s: t.index_add_(1, i, near(s), alpha=2),
        lambda d, n, m: (table(d, 3, n, m), places(n, 40, dtype=torch.int32), table(d, 3, 40, m)),
    ),
    "index_copy_": (
        lambda t, i, s: t.index_copy_(0, i, near(s)),
        lambda d, n, m: (table(d, n, m), torch.randperm(n)[: n // 2], table(d, n // 2, m)),
    ),
    "index_copy_ into a cache": (
        lambda t, i, s: t.index_copy_(2, i, near(s)),
        lambda d, n, m: (table(d, 2, 3, n, m), places(n, 1), table(d, 2, 3, 1, m)),
    ),
    "scatter_add_ columns": (
        lambda t, i, s: t.scatter_add_(1, i, near(s)),
        lambda d, n, m: (table(d, n, m), places(m, n, 50), table(d, n, 50)),
    ),
    "scatter_add_ rows": (
        lambda t, i, s: t.scatter_add_(0, i, near(s)),
        lambda d, n, m: (table(d, n, m), places(n, 50, m), table(d, 60, m)),
    ),
    "scatter_add_ some": (
        lambda t, i, s: t.scatter_add_(1, i, near(s)),
        lambda d, n, m: (table(d, n + 1, 9, m + 2), places(9, n, 5, m), table(d, n + 3, 7, m + 1)),
    ),
    "scatter_": (
        lambda t, i, s: t.scatter_(1, i, near(s)),
        lambda d, n, m: (table(d, n, m), places(m, n, 1), table(d, n, 1)),
    ),
    "scatter_ of a number": (
        lambda t, i: t.scatter_(0, near(i), 1),
        lambda d, n, m: (table(d, n, m), places(n, 5, m)),
    ),
    "put adds rows": (
        lambda t, i, s: t.index_put_((i,), near(s), accumulate=True),
        lambda d, n, m: (table(d, n, m), places(n, 40, least=-n), table(d, 40, m)),
    ),
    "put adds elements": (
        lambda t, i, j, s: t.index_put_((i, j), near(s), accumulate=True),
        lambda d, n, m: (table(d, n, m), places(n, 90, least=-n), places(m, 90), table(d, 90)),
    ),
    "put adds to a batch": (
        lambda t, i, j, s: torch.ops.aten.index_put_(t, [None, i, j], near(s), True),
        lambda d, n, m: (table(d, 20, n, m), places(n, 30), places(m, 30), table(d, 20, 30)),
    ),
    "put": (
        lambda t, i, s: t.index_put_((i,), near(s)),
        lambda d, n, m: (table(d, n, m), torch.randperm(n)[: n // 2] - n, table(d, n // 2, m)),
    ),
    "put rows and columns": (
        lambda t, i, j, s: t.index_put_((i[:, None], j), near(s)),
        lambda d, n, m: (
            table(d, n, m),
            torch.randperm(n)[: n // 2],
            torch.randperm(m)[: m // 2],
            table(d, n // 2, m // 2),
        ),
    ),
    "put a row for all": (
        lambda t, i, s: t.index_put_((i,), near(s), accumulate=True),
        lambda d, n, m: (table(d, n, m), places(n, 40), table(d, 1, m)),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_writes(remote, counted, name, dtype):
    writes, operands = WRITES[name]
    if dtype == torch.bool and ("add" in name or "all" in name):
        pytest.skip("bools are not added")

    def function(t, *given):
        t = t.clone()
        writes(t, *given)
        return t

    check(remote, function, operands(dtype, 37, 130))
    torch.remote.synchronize()
    with counted() as c:
        check(remote, function, operands(dtype, 64, 1000))
        check(remote, function, operands(dtype, 4, 17))
        torch.remote.synchronize()
    assert c["kernels_compiled"] == 0
    check(remote, function, operands(dtype, 2, 2))


def gradients(function: Callable, *given: torch.Tensor) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
    y = function(*leaves)
    (y * y.detach()).sum().backward()
    return [x.grad for x in leaves if x.requires_grad]


@pytest.mark.parametrize("name", [name for name in READS if "slice" not in name])
def test_gradients_of_reads(remote, name):
    reads, operands = READS[name]
    for n, m in ((37, 130), (64, 300), (5, 17)):
        given = operands(torch.float32, n, m)
        ours = [gradients(lambda *a: reads(*a).tanh(), *[x.to(remote) for x in given]) for _ in range(2)]
        want = gradients(lambda *a: reads(*a).tanh(), *given)
        for again, got, exact in zip(*ours, want, strict=True):
            assert torch.equal(again.cpu(), got.cpu())
            torch.testing.assert_close(got.cpu(), exact, rtol=1e-5, atol=1e-5)


def test_rotary_embedding_by_index(remote, counted):
    def rotary(x, cos, sin, at):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos[at][:, None] + turned * sin[at][:, None]

    for b, n in ((2, 30), (3, 17)):
        x, cos, sin, at = torch.randn(b, 4, n, 16), torch.randn(64, 16), torch.randn(64, 16), places(64, b, n)
        check(remote, rotary, (x, cos, sin, at), exact=False)


def test_an_index_that_the_group_makes(remote):
    t, x = torch.randn(40, 8), torch.randn(20, 8)

    def function(t, x):
        return near(t.gather(0, ((x * 10).long() % 40).abs()))

    check(remote, function, (t, x))
    y = (x * 10).to(remote)
    with pytest.raises(RuntimeError, match="is out of bounds for dimension 0 with size 40"):
        print(near(t.to(remote).gather(0, y.long() + 100)))


ERRORS = {
    "index": lambda t, i, s: t[i].tanh(),
    "index_select": lambda t, i, s: t.index_select(0, i).tanh(),
    "gather": lambda t, i, s: t.gather(0, i[:, None].expand(-1, t.shape[1])).tanh(),
    "take": lambda t, i, s: t.view(-1)[:50].take(i).tanh(),
    "take of a transposed": lambda t, i, s: t[:10, :5].t().take(i).tanh(),
    "index_add_": lambda t, i, s: t.index_add_(0, i, s * 2),
    "index_copy_": lambda t, i, s: t.index_copy_(0, i, s * 2),
    "index_put_": lambda t, i, s: t.index_put_((i,), s * 2, accumulate=True),
    "scatter_add_": lambda t, i, s: t.scatter_add_(0, i[:, None].expand(-1, t.shape[1]), s * 2),
    "in place": lambda t, i, s: s.add_(t[i]),
}


@pytest.mark.parametrize("bad", (50, 1 << 40, -51), ids=str)
@pytest.mark.parametrize("name", ERRORS)
def test_a_bad_index_is_torchs_error_and_changes_nothing(remote, name, bad):
    t, i, s = torch.randn(50, 64), places(50, 30), torch.randn(30, 64)
    on = [x.to(remote) for x in (t, i, s)]
    print(ERRORS[name](*[x.clone() for x in on]).sum())  # compiles its kernel
    i[17] = bad
    on[1] = i.to(remote)
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        ERRORS[name](t.clone(), i, s.clone())
    with pytest.raises(type(theirs.value)) as ours:
        print(ERRORS[name](*on).sum())
    said = str(theirs.value).splitlines()[0]
    assert said in str(ours.value), (said, str(ours.value))
    torch.remote.synchronize()
    assert torch.equal(on[0].cpu(), t)
    assert torch.equal(on[2].cpu(), s)


def test_a_bad_index_spoils_no_result_of_its_group(remote):
    """The group's result is stored in the memory of an operand that is no longer needed."""
    t, i, x = torch.randn(50, 64), places(50, 300), torch.randn(300, 64)
    for bad in (False, True):
        i[299] = 1000 if bad else 3
        on = [a.to(remote) for a in (t, i, x)]
        y = on[2] * 3
        torch.remote.synchronize()
        z = y.tanh()
        rows = z + on[0][on[1]]
        del y
        if bad:
            with pytest.raises(IndexError):
                print(rows)
        else:
            torch.testing.assert_close(rows.cpu(), (x * 3).tanh() + t[i])
        torch.testing.assert_close(z.cpu(), (x * 3).tanh())


def test_sums_at_indices_are_the_same_in_each_run(remote):
    t, i, s = torch.randn(70, 40, device=remote), places(70, 5000).to(remote), torch.randn(5000, 40, device=remote)
    results = [t.clone().index_add_(0, i, s * k).cpu() for k in (2, 2, 2)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    flat = [torch.zeros(70, device=remote).scatter_add_(0, i, s[:, 0] * 2).cpu() for _ in range(3)]
    assert torch.equal(flat[0], flat[1])
    assert torch.equal(flat[0], flat[2])


@pytest.mark.parametrize("name", ("index_add_", "scatter_add_", "index_put_"))
def test_what_is_added_up_beside_a_reduction(remote, name):
    """Threads partition the columns of one output and the rows of the other."""
    t, i, s = torch.randn(70, 40), places(70, 500), torch.randn(500, 40)

    def function(t, i, s):
        t, y = t.clone(), torch.softmax(s * 2, -1)
        if name == "index_add_":
            t.index_add_(0, i, y)
        elif name == "scatter_add_":
            t.scatter_add_(0, i[:, None].expand(-1, 40), y)
        else:
            t.index_put_((i,), y, accumulate=True)
        return t, y.sum(), y.sum(0), y.amax(-1)

    check(remote, function, (t, i, s), exact=False)


def test_views_of_one_tensor(remote):
    t, i = torch.randn(40, 40), places(20, 20)

    def function(t, i):
        t = t.clone()
        t[:20].index_add_(0, i, t[20:] * 2)
        t[:, :20].copy_(t[:, 20:].index_select(1, i) + 1)
        t[i] += t[i + 20] * 2
        u = t.t()
        u[i] = (u[i + 20] * 3).cos()
        return t

    i = torch.randperm(20)
    check(remote, function, (t, i), exact=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_routing_to_experts(remote, dtype):
    """How a mixture of experts applies a token's weights."""
    x, weights = table(dtype, 24, 32), torch.rand(24, 2).to(dtype)
    token, which = places(24, 30), places(2, 30)

    def function(x, weights, token, which):
        chosen = x[token] * weights[token, which, None]
        return torch.zeros_like(x).index_add_(0, token, chosen * 2)

    check(remote, function, (x, weights, token, which), exact=dtype in (torch.float32, torch.float64))


def test_rows_that_meet_are_one_threads(remote):
    """There are enough rows for several threads, which would lose each other's additions."""
    t, i, s = torch.zeros(70, 64, dtype=torch.int64), places(70, 60000), torch.randint(-9, 9, (60000, 64))
    want = t.clone().index_add_(0, i, s * 2)
    i, s = i.to(remote), s.to(remote)
    for _ in range(10):
        assert torch.equal(t.to(remote).index_add_(0, i, s * 2).cpu(), want)
