"""Ops with hand-written kernels on an emulated GPU, compared with CPU: all dtypes, edge sizes, views, errors."""

import os
import sys
from itertools import product
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from python_processes import run_python

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
if os.environ.get("TORCH_REMOTE_TEST_CHECKED") == "1":  # every access is examined, so one dtype of each size must do
    FLOATS, INTEGERS = [torch.float32, torch.bfloat16], [torch.int64, torch.uint8]
ALL = [*FLOATS, *INTEGERS, torch.bool]
SHAPES = [(), (1,), (7,), (0,), (3, 5), (2, 0, 3), (4, 1, 6), (2, 3, 40)]


def made(shape, dtype):
    """Few distinct values, so that some are equal."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.bool)
    if dtype.is_floating_point:
        return torch.randn(shape).mul(2).round().div(2).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape).to(dtype)


def special(x):
    """Adds the special values of floats."""
    x = x.clone()
    if x.is_floating_point() and x.numel() > 4:
        x.view(-1)[1] = float("nan")
        x.view(-1)[2] = float("inf")
        x.view(-1)[3] = -float("inf")
        x.view(-1)[4] = -0.0
    return x


def same(there, expected, **kwargs):
    there = there.cpu()
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    torch.testing.assert_close(there, expected, equal_nan=True, **kwargs)


def equal(there, expected):
    same(there, expected, rtol=0, atol=0)


# -- random numbers: equal to those of a worker on the CPU


def draws(device):
    torch.manual_seed(11)
    every = []
    for dtype in FLOATS:
        every += [
            torch.rand(37, 5, dtype=dtype, device=device),
            torch.empty(9, dtype=dtype, device=device).uniform_(-2, 7),
        ]
    every += [torch.randint(-5, 100, (7, 3), device=device), torch.randint(0, 2**40, (9,), device=device)]
    every += [torch.empty(11, dtype=dtype, device=device).random_() for dtype in ALL]
    every += [
        torch.empty(6, 7, device=device).t().uniform_(),
        torch.zeros(8, 8, device=device)[1:5, ::2].bernoulli_(0.3),
    ]
    every += [torch.bernoulli(torch.full((50,), 0.4, device=device)), torch.empty(50, device=device).bernoulli_(0.7)]
    every += [torch.randperm(n, device=device) for n in (0, 1, 2, 300)]
    every += [torch.randperm(20, device=device, dtype=torch.int32), torch.rand(5, dtype=torch.complex64, device=device)]
    every += [
        F.dropout(torch.ones(40, 3, device=device), 0.25),
        torch.rand(0, device=device),
        torch.rand((), device=device),
    ]
    near = [torch.randn(101, dtype=dtype, device=device) for dtype in FLOATS]
    near += [torch.empty(33, dtype=dtype, device=device).normal_(2, 0.5) for dtype in FLOATS]
    near += [torch.empty(33, dtype=dtype, device=device).exponential_(3) for dtype in FLOATS]
    near += [torch.randn(7, dtype=torch.complex128, device=device)]
    return [x.cpu() for x in every], [x.cpu() for x in near]


def test_random_numbers_are_those_of_the_cpu_worker(remote, tmp_path):
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, torch_remote
from test_hand_written_kernels import draws
torch.save(draws(torch.device("remote")), {str(tmp_path / "draws.pt")!r})
"""
    env = {k: v for k, v in os.environ.items() if k != "TORCH_REMOTE_WORKER_BINARY"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    run_python("-c", script, env=env, check=True, timeout=100)
    every, near = torch.load(tmp_path / "draws.pt")
    here, here_near = draws(remote)
    for i, (there, expected) in enumerate(zip(here, every, strict=True)):
        assert torch.equal(there, expected), (i, there, expected)
    for there, expected in zip(here_near, near, strict=True):
        same(there, expected)
    assert torch.equal(here[0] < 0.5, every[0] < 0.5)


def test_random_numbers_depend_on_the_seed_alone(remote):
    torch.manual_seed(5)
    x, y = torch.rand(1000, device=remote), torch.rand(1000, device=remote)
    torch.manual_seed(5)
    equal(torch.rand(1000, device=remote), x.cpu())
    assert not torch.equal(x.cpu(), y.cpu())
    torch.manual_seed(6)
    for _ in range(4):  # the same program, captured as a graph, with different seeds
        z = torch.rand(1000, device=remote) + 0
        assert not torch.equal(z.cpu(), y.cpu())
        y = z
    assert abs(torch.randn(20_000, device=remote).std().item() - 1) < 0.02


def test_bernoulli_of_what_is_no_probability(remote):
    with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1"):
        torch.bernoulli(torch.full((5,), 1.5).to(remote)).cpu()
    torch.remote.synchronize()


# -- along a dim


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scans(remote, dtype):
    for shape in [*SHAPES, (3, 1100)]:
        x = special(made(shape, dtype))
        there = x.to(remote)
        for dim in {0, -1, len(shape) // 2} if shape else {0}:
            tolerance = {} if dtype in (torch.float32, torch.float64) else {"rtol": 0.02, "atol": 0.02}
            same(there.cumsum(dim), x.cumsum(dim), **tolerance)
            small = made(shape, dtype)
            same(small.to(remote).cumprod(dim), small.cumprod(dim), **tolerance)
            for op in (torch.cummax, torch.cummin):
                for made_there, expected in zip(op(there, dim), op(x, dim), strict=True):
                    equal(made_there, expected)
            if dtype.is_floating_point:
                same(torch.logcumsumexp(there, dim), torch.logcumsumexp(x, dim), **tolerance)


def test_scans_of_views_and_into_others(remote):
    x = torch.randn(5, 6, 7)
    there = x.to(remote)
    same(there.transpose(0, 2)[1:, ::2].cumsum(1), x.transpose(0, 2)[1:, ::2].cumsum(1))
    same(there.cumsum(0, dtype=torch.float64), x.cumsum(0, dtype=torch.float64))
    same((there > 0).cumsum(-1), (x > 0).cumsum(-1))
    for t in (x, there):
        t.cumsum_(1)
        t[0].cumprod_(0)
    same(there, x)
    long = torch.randn(100_000)
    same(long.to(remote).cumsum(0), long.cumsum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_sort_and_topk(remote, dtype):
    for shape in [*SHAPES, (2, 5000)]:
        x = special(made(shape, dtype))
        there = x.to(remote)
        for dim in {0, -1} if shape else {0}:
            for descending in (False, True):
                values, indices = there.sort(dim=dim, descending=descending, stable=True)
                expected, places = x.sort(dim=dim, descending=descending, stable=True)
                equal(values, expected)
                equal(indices, places)
        if not shape or x.numel() == 0 or dtype == torch.bool:
            continue
        for k, largest in product({1, min(3, shape[-1])}, (True, False)):
            values, indices = there.topk(k, largest=largest)
            equal(values, x.topk(k, largest=largest).values)
            equal(x.gather(-1, indices.cpu()), values.cpu())
        values, indices = there.kthvalue(1)
        equal(values, x.kthvalue(1).values)
        equal(x.gather(-1, indices.cpu().unsqueeze(-1)).squeeze(-1), values.cpu())


def test_sort_of_views_and_of_long_rows(remote):
    x = torch.randn(40, 33)
    there = x.to(remote)
    equal(there.t()[::2].sort(-1).values, x.t()[::2].sort(-1).values)
    equal(there.argsort(0), x.argsort(0))
    equal(torch.msort(there), torch.msort(x))
    long = torch.randperm(70_001) % 1000
    for made_there, expected in zip(long.to(remote).sort(stable=True), long.sort(stable=True), strict=True):
        equal(made_there, expected)


# -- reads and writes at indices


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_reads_at_indices(remote, dtype):
    x = made((4, 5, 6), dtype)
    there = x.to(remote)
    index = torch.randint(0, 4, (3, 2, 6))
    equal(there.gather(0, index.to(remote)), x.gather(0, index))
    equal(there.transpose(0, 2).gather(-1, index.to(remote)), x.transpose(0, 2).gather(-1, index))
    i, j = torch.tensor([3, -1, 0]), torch.tensor([[1], [-2]])
    for pick in (
        lambda t, i, j: t[i],
        lambda t, i, j: t[:, i],
        lambda t, i, j: t[..., i],
        lambda t, i, j: t[i, j],
        lambda t, i, j: t[i, :, j],
        lambda t, i, j: t[:, i, j],
        lambda t, i, j: t.transpose(0, 2)[j, i, i],
        lambda t, i, j: t[:, None, i],
        lambda t, i, j: t.take(i * 7 + 20),
        lambda t, i, j: t.index_select(1, i.abs()),
        lambda t, i, j: t[:0][:, i],
        lambda t, i, j: t[i.int()],
        lambda t, i, j: t[t != t.flatten()[0]],
        lambda t, i, j: t[:, t[0, :, 0] != t[0, 0, 0]],
        lambda t, i, j: t[t[:, :, 1] != t[0, 0, 0]],
        lambda t, i, j: t[..., t[0, 0] != t[0, 0, 0]],
        lambda t, i, j: t[1, t[1] != t[1, 0, 0]],
    ):
        equal(pick(there, i.to(remote), j.to(remote)), pick(x, i, j))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_writes_at_indices(remote, dtype):
    x, source = made((4, 5, 6), dtype), made((4, 5, 6), dtype)
    index = torch.randint(0, 4, (4, 5, 6))
    rows = torch.tensor([2, 0, 2, 2])

    def check(change, **tolerance):
        there, here = x.to(remote), x.clone()
        made_there = change(there, index.to(remote), rows.to(remote), source.to(remote))
        expected = change(here, index, rows, source)
        same(there, here, **(tolerance or {"rtol": 0, "atol": 0}))
        if isinstance(expected, torch.Tensor):
            same(made_there, expected, **(tolerance or {"rtol": 0, "atol": 0}))

    half = {"rtol": 0.02, "atol": 0.02} if dtype in (torch.bfloat16, torch.float16) else {}
    check(lambda t, i, r, s: t.scatter_(0, i, s))
    check(lambda t, i, r, s: t.scatter(0, i[:2, :3], s))
    check(lambda t, i, r, s: t.scatter_(0, i, 3))
    check(lambda t, i, r, s: t.transpose(0, 2).scatter_(2, i.transpose(0, 2), s.transpose(0, 2)))
    check(lambda t, i, r, s: t.index_copy_(0, r.unique(), s[: r.unique().numel()]))
    check(lambda t, i, r, s: t.index_fill_(1, r, 1))
    check(lambda t, i, r, s: t.index_put_((r.unique(),), s[0]))
    check(lambda t, i, r, s: t.__setitem__((slice(None), r), 2))
    check(lambda t, i, r, s: t.__setitem__((r.unique(), slice(1, 3), r.unique()), s[:2, 0, :2]))
    check(lambda t, i, r, s: t.masked_fill_(s > 0, 1))
    check(lambda t, i, r, s: t.__setitem__(s > 0, 1))
    if dtype == torch.bool:
        return
    check(lambda t, i, r, s: t.scatter_add_(0, i, s), **half)
    check(lambda t, i, r, s: t.index_add_(1, r, s[:, :4], alpha=2), **half)
    check(lambda t, i, r, s: t.index_put_((r,), s[0], accumulate=True), **half)
    check(lambda t, i, r, s: t.index_put((r, r), s[:, 0], accumulate=True), **half)
    for reduce, with_self in product(("sum", "prod", "amax", "amin", "mean"), (True, False)):
        rounded = {"rtol": 1e-5, "atol": 1e-5} if dtype.is_floating_point else {}
        check(
            lambda t, i, r, s, reduce=reduce, with_self=with_self: t.scatter_reduce(
                0, i, s, reduce, include_self=with_self
            ),
            **(half or rounded),
        )


def test_sums_at_indices_are_the_same_each_time(remote):
    index, source = torch.randint(0, 3, (3000,)), torch.randn(3000)
    expected = torch.zeros(3).scatter_add_(0, index, source)
    for _ in range(3):
        equal(torch.zeros(3).to(remote).scatter_add_(0, index.to(remote), source.to(remote)), expected)
    rows, many = torch.randint(0, 5, (200,)), torch.randn(200, 9)
    equal(
        torch.zeros(5, 9).to(remote).index_add_(0, rows.to(remote), many.to(remote)),
        torch.zeros(5, 9).index_add_(0, rows, many),
    )


ERRORS = [
    lambda t, i: t.gather(1, i[None]),
    lambda t, i: t[:, i],
    lambda t, i: t.index_select(1, i),
    lambda t, i: t.scatter(1, i[None], t),
    lambda t, i: t.scatter(1, i[None], 1.0),
    lambda t, i: t.index_put((i,), t[0, 0]),
    lambda t, i: t.index_add(1, i, t[:, :2]),
    lambda t, i: t.take(i * 100),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_an_index_out_of_range_is_told_and_the_session_lives(remote, number):
    x, bad = torch.randn(4, 3), torch.tensor([1, 7])
    with pytest.raises((IndexError, RuntimeError)) as expected:
        ERRORS[number](x, bad)
    there = x.to(remote)
    with pytest.raises(IndexError) as raised:
        ERRORS[number](there, bad.to(remote)).cpu()
    words = str(expected.value).split("\n")[0]
    assert words in str(raised.value) or "out of" in str(raised.value)
    assert "test_hand_written_kernels.py" in str(raised.value)
    same(there + 1, x + 1)
    torch.remote.synchronize()


def test_cross_entropy_and_embeddings(remote):
    torch.manual_seed(2)
    for reduction, ignored in product(("mean", "sum", "none"), (-100, 3)):
        scores, target = torch.randn(6, 5), torch.tensor([0, 3, 4, 3, 1, 2])
        weight = torch.rand(5)
        results = []
        for device in (torch.device("cpu"), remote):
            x = scores.to(device).clone().requires_grad_()
            loss = F.cross_entropy(x, target.to(device), weight.to(device), reduction=reduction, ignore_index=ignored)
            loss.sum().backward()
            results.append((loss.detach(), x.grad))
            results.append((F.nll_loss(x.detach(), target.to(device), reduction=reduction, ignore_index=ignored),))
        for there, expected in zip(results[2] + results[3], results[0] + results[1], strict=True):
            same(there, expected)
    grads = []
    for device in (torch.device("cpu"), remote):
        table = torch.arange(40.0).reshape(10, 4).to(device).requires_grad_()
        found = F.embedding(torch.tensor([[1, 9, 1], [0, 1, 2]]).to(device), table, padding_idx=2)
        (found * found).sum().backward()
        grads.append(table.grad)
    same(grads[1], grads[0])


# -- data-dependent sizes


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_nonzero_and_unique(remote, dtype):
    for shape in [*SHAPES, (3, 1500)]:
        x = made(shape, dtype)
        there = x.to(remote)
        equal(there.nonzero(), x.nonzero())
        equal(there.masked_select(there != 0), x.masked_select(x != 0))
        for made_there, expected in zip(
            torch.unique(there, return_inverse=True, return_counts=True),
            torch.unique(x, return_inverse=True, return_counts=True),
            strict=True,
        ):
            equal(made_there, expected)
        for made_there, expected in zip(
            torch.unique_consecutive(there.flatten(), return_inverse=True, return_counts=True),
            torch.unique_consecutive(x.flatten(), return_inverse=True, return_counts=True),
            strict=True,
        ):
            equal(made_there, expected)
        equal(torch.unique(there), torch.unique(x))


def test_selections_are_used_again(remote):
    x = torch.randn(6, 7)
    there = x.to(remote)
    for threshold in (-9, 0, 0.5, 9):
        equal((there[there > threshold] * 2).sum().unsqueeze(0) > 0, (x[x > threshold] * 2).sum().unsqueeze(0) > 0)
        equal(there.masked_select(there[0] > threshold), x.masked_select(x[0] > threshold))
        equal(torch.nonzero(there > threshold)[:, 1], torch.nonzero(x > threshold)[:, 1])
        assert torch.nonzero(there > threshold).stride() == torch.nonzero(x > threshold).stride()


# -- copies and fills


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_joins_and_parts(remote, dtype):
    x, y = made((3, 4, 5), dtype), made((3, 4, 5), dtype)
    for do in (
        lambda x, y: torch.cat([x, y], 1),
        lambda x, y: torch.cat(
            [x[..., :0], y.transpose(0, 1).contiguous().transpose(0, 1), x[:1].expand(3, -1, -1)], -1
        ),
        lambda x, y: torch.stack([x, y, x], 2),
        lambda x, y: torch.stack([x[0, 0, 0], y[0, 0, 0]]),
        lambda x, y: x.flip(0, 2),
        lambda x, y: x.roll((1, -7), (0, 2)),
        lambda x, y: x.roll(3),
        lambda x, y: F.pad(x, (1, 2, -1, 1), value=3),
        lambda x, y: x.tril(1),
        lambda x, y: x.triu(-1),
        lambda x, y: x.transpose(1, 2).triu(2),
        lambda x, y: torch.slice_scatter(x, y[:, ::2], 1, 0, 4, 2),
        lambda x, y: torch.select_scatter(x, y[:, 1], 1, -1),
        lambda x, y: x.repeat(2, 1, 3),
    ):
        equal(do(x.to(remote), y.to(remote)), do(x, y))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_elements_are_moved_or_refused(remote, dtype):
    x = torch.randn(3, 4, dtype=dtype)
    there, places = x.to(remote), torch.tensor([2, 0, 2])
    for do in (
        lambda x, i: torch.cat([x, x[:, :1]], 1),
        lambda x, i: torch.stack([x, x], 1),
        lambda x, i: x.flip(0),
        lambda x, i: x.roll(2, 1),
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: x.index_put((i[:2],), x[1]),
        lambda x, i: x.index_fill(0, i[:1], 2 - 3j),
        lambda x, i: x.scatter(0, i[:, None], 4j),
        lambda x, i: x.masked_fill(x.real > 0, 1 + 2j),
        lambda x, i: x.masked_fill(x.real[0] > 0, x[1, 1]),
        lambda x, i: F.pad(x, (1, -1, 0, 2), value=3.0),
        lambda x, i: x.tril(-1),
        lambda x, i: x.triu(1),
        lambda x, i: torch.eye(3, 4, dtype=dtype, device=x.device) * x,
        lambda x, i: F.pixel_shuffle(x.reshape(4, 1, 3), 2),
        lambda x, i: F.channel_shuffle(x.reshape(1, 4, 3, 1), 2),
    ):
        equal(do(there, places.to(remote)), do(x, places))
    for refused in (lambda x: x.logaddexp(x), lambda x: x.logcumsumexp(0), lambda x: x.logsumexp(0)):
        with pytest.raises(NotImplementedError, match="complex"):
            refused(there).cpu()
    equal(there[0], x[0])


def parts_of_numbers(dtype):
    """Complex numbers of all magnitudes, and zero."""
    torch.manual_seed(5)
    x = torch.randn(3, 4, 5, dtype=dtype) * torch.tensor([1e-6, 0.3, 1, 3, 9])
    x[0, 0, :3] = torch.tensor([0, 1, -2j], dtype=dtype)
    return x


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_functions_of_complex_numbers(remote, dtype):
    x, y, z = parts_of_numbers(dtype), parts_of_numbers(dtype).flip(1), parts_of_numbers(dtype).flip(0) + 1
    there = [t.to(remote) for t in (x, y, z)]
    for name in ("tan", "sinh", "cosh", "tanh", "sin", "cos", "exp2", "expm1", "log2", "log10", "rsqrt", "sigmoid"):
        of = (there[2], z) if name in ("log2", "log10", "rsqrt") else (there[0], x)
        got, expected = (getattr(torch, name)(t) for t in of)
        error = ((got.cpu() - expected).abs() / expected.abs()).nan_to_num(0)
        assert error.max() < (3e-6 if dtype == torch.complex64 else 1e-12), (name, error.max())
    for do in (
        lambda x, y, z: torch.addcmul(x, y, z, value=2 - 1j),
        lambda x, y, z: torch.addcmul(x, y[0], z),
        lambda x, y, z: torch.addcdiv(x, y, z, value=0.5),
        lambda x, y, z: torch.addcdiv(x.clone(), y, z[0, 0], value=1j),
        lambda x, y, z: torch.lerp(x, y, 0.25),
        lambda x, y, z: torch.lerp(x, y, 0.75),
        lambda x, y, z: torch.lerp(x, y, z),
        lambda x, y, z: torch.rsub(x, y, alpha=2j),
        lambda x, y, z: torch.log1p(z / 100),
        lambda x, y, z: F.silu(z),
        lambda x, y, z: torch.sinc(z / 3),
    ):
        same(do(*there), do(x, y, z), rtol=1e-4 if dtype == torch.complex64 else 1e-11, atol=1e-6)
    odd = x.clone()
    nan, inf = float("nan"), float("inf")
    odd[0, 1, :4] = torch.tensor([nan, complex(0, nan), complex(inf, 0), complex(1, -inf)])
    for do in (
        torch.isnan,
        torch.isinf,
        torch.isfinite,
        torch.logical_not,
        lambda x: torch.logical_and(x, x.flip(0)),
        lambda x: torch.logical_or(x, x.real),
        lambda x: torch.logical_xor(x, x[0]),
        lambda x: x.bool(),
        lambda x: x.transpose(0, 2).bool(),
        lambda x: x.any(),
        lambda x: x.all(0),
        lambda x: x.any(1, keepdim=True),
        lambda x: x.count_nonzero(2),
        lambda x: x.nonzero(),
    ):
        equal(do(odd.to(remote)), do(odd))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_inverse_functions_of_complex_numbers(remote, dtype):
    inf, nan = float("inf"), float("nan")
    parts = torch.tensor([0.0, -0.0, 1e-9, -3e-4, 0.7, 1.0, -1.0, 1 + 1e-6, -2.5, 40.0, 1e6, -1e19, inf, -inf, nan])
    x = torch.complex(*torch.meshgrid(parts.double(), parts.double(), indexing="ij")).to(dtype)
    wide = x.to(torch.complex128).numpy()
    with numpy.errstate(all="ignore"):  # numpy uses the C library's functions
        for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
            right = torch.from_numpy(getattr(numpy, "arc" + name[1:])(wide))
            got = getattr(torch, name)(x.to(remote)).cpu().to(torch.complex128)
            known = ~(right.real.isnan() | right.imag.isnan())
            assert torch.equal(got[known].real.isinf(), right[known].real.isinf()), name
            for mine, its in ((got.real, right.real), (got.imag, right.imag)):
                finite = known & its.isfinite()
                assert torch.equal(mine[finite].signbit(), its[finite].signbit()), name
                tolerance = {"rtol": 1e-5 if dtype == torch.complex64 else 1e-11, "atol": 1e-18}
                torch.testing.assert_close(mine[finite], its[finite], **tolerance)
            assert (got.real.isnan() | got.imag.isnan())[(right.real.isnan() & right.imag.isnan())].all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_sums_and_products_of_complex_numbers(remote, dtype):
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.complex64 else {"rtol": 1e-11, "atol": 1e-11}
    for shape in [(3, 4, 5), (40, 2), (2, 70), (7,), (), (0,), (2, 0, 3), (300, 3)]:
        x = torch.randn(shape, dtype=dtype)
        there = x.to(remote)
        for do in (
            lambda x: x.cumsum(0),
            lambda x: x.cumsum(-1),
            lambda x: x.mT.cumsum(-1) if x.dim() > 1 else x.cumsum(0),
            lambda x: x.cumprod(0),
            lambda x: x.cumprod(-1),
            lambda x: x.prod(),
            lambda x: x.prod(-1),
            lambda x: x.prod(0, keepdim=True),
            lambda x: x.var(),
            lambda x: x.std(-1, correction=0),
            lambda x: torch.var_mean(x, 0)[0],
            lambda x: torch.std_mean(x, -1)[1],
            lambda x: torch.linalg.vector_norm(x, 3),
            lambda x: x.norm(p=1, dim=-1),
            lambda x: x.norm(),
        ):
            same(do(there), do(x), **near)
    x, index = torch.randn(4, 6, dtype=dtype), torch.tensor([1, 0, 1, 3, 3])
    there, at = x.to(remote), index.to(remote)
    for do in (
        lambda x, i: x.index_add(0, i, x[:1].expand(5, 6), alpha=2),
        lambda x, i: x.t().index_add(1, i, x.t()[:, :1].expand(6, 5)),
        lambda x, i: x.scatter_add(0, i[:, None].expand(5, 4)[:4], x.t()[:4]),
        lambda x, i: x.index_put((i,), x[:1], accumulate=True),
        lambda x, i: x.clone().put_(i, x.view(-1)[:5], accumulate=True),
        lambda x, i: torch.trace(x),
        lambda x, i: torch.ops.aten.unfold_backward(x.unfold(1, 3, 2), [4, 6], 1, 3, 2),
    ):
        same(do(there, at), do(x, index), **near)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_neighbours_parts_and_decimals_of_floats(remote, dtype):
    x = special(made((3, 40), dtype)) * 1.25
    x[1, :6] = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max])
    y = x.flip(1).contiguous()
    there, other = x.to(remote), y.to(remote)
    equal(torch.nextafter(there, other), torch.nextafter(x, y))
    equal(torch.nextafter(there, other[0]), torch.nextafter(x, y[0]))
    for got, expected in zip(torch.frexp(there), torch.frexp(x), strict=True):
        equal(got, expected)
    numbers = made((4, 30), dtype) * 7.31
    for decimals in (0, 1, 2, -1):
        equal(numbers.to(remote).round(decimals=decimals), numbers.round(decimals=decimals))
    same(torch.sinc(numbers.to(remote)), torch.sinc(numbers), rtol=1e-2 if numbers.itemsize == 2 else 1e-5, atol=1e-3)
    same(torch.special.entr(there.abs()[:, 6:]), torch.special.entr(x.abs()[:, 6:]))
    same(torch.special.entr(there), torch.special.entr(x))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_divisors_and_multiples(remote, dtype):
    x, y = made((5, 60), dtype), made((5, 60), dtype).mul(3)
    y[0, :3] = 0
    x[0, 1] = 0
    for do in (torch.gcd, torch.lcm):
        equal(do(x.to(remote), y.to(remote)), do(x, y))
        equal(do(x.to(remote), y[0].to(remote)), do(x, y[0]))
    for ends in ((0, 100, 7), (90, 3, 12), (5, 9, 1), (0.9, 7.7, 5), (1, 2, 0)):
        equal(torch.linspace(*ends, dtype=dtype, device=remote), torch.linspace(*ends, dtype=dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8, torch.complex64], ids=str)
def test_cross_products_and_limited_norms(remote, dtype):
    x, y = torch.randn(4, 3, 5).mul(3), torch.randn(4, 3, 5).mul(3)
    x, y = (t.abs().to(dtype) if dtype == torch.uint8 else t.to(dtype) for t in (x, y))
    near = {"rtol": 2e-2, "atol": 0.1} if x.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
    there, other = x.to(remote), y.to(remote)
    same(torch.linalg.cross(there, other, dim=1), torch.linalg.cross(x, y, dim=1), **near)
    same(torch.linalg.cross(there.mT, other.mT[:1]), torch.linalg.cross(x.mT, y.mT[:1]), **near)
    if not (dtype.is_floating_point or dtype.is_complex):
        return
    for dim, p, most in ((0, 2, 5), (1, 1, 20), (-1, 3, 0.5), (2, float("inf"), 4)):
        same(there.renorm(p, dim, most), x.renorm(p, dim, most), **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool], ids=str)
def test_fills_of_elements_that_lie_anywhere(remote, dtype):
    for place in (
        lambda x: x[::2, 1::3],
        lambda x: x.as_strided((16, 5, 7), (1, 3, 2)),
        lambda x: x.as_strided((2, 3, 4), (40, 0, 1)),
        lambda x: x.t()[3:],
    ):
        x = made((20, 30), dtype)
        there = x.to(remote)
        for on in (x, there):
            with torch.no_grad():
                torch.ops.aten.fill_(place(on), 1)
        equal(there, x)


def test_parts_of_memory_that_are_replaced(remote):
    x, y = torch.randn(4, 5), torch.randn(2, 3)
    for do in (
        lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (5, 1), 6),
        lambda x, y: torch.as_strided_scatter(x, y, (2, 3), (1, 2)),
    ):
        equal(do(x.to(remote), y.to(remote)), do(x, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(5, 1, 1, 1), (3, 5, 1), (2, 7, 4, 3)], ids=str)
def test_group_norm_of_channels(remote, shape, dtype):
    """A group has one channel, which has a single element or is interleaved with others."""
    x, weight, bias = (torch.randn(sizes).to(dtype) for sizes in (shape, shape[1:2], shape[1:2]))
    if len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    near = {"rtol": 2e-2, "atol": 2e-2} if x.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}
    for weights in ((weight, bias), (weight, None), (None, None)):
        moved = [w if w is None else w.to(remote) for w in weights]
        there, here = F.group_norm(x.to(remote), shape[1], *moved), F.group_norm(x, shape[1], *weights)
        assert there.stride() == here.stride()
        # The norm of a single element is 0, except for the CPU's float32 rounding.
        exact = F.group_norm(x.double(), shape[1], *[w if w is None else w.double() for w in weights])
        same(there, exact.to(dtype), **near)


@pytest.mark.parametrize("shape", [(2, 4, 0), (0, 4, 3), (3, 4, 2, 0)], ids=str)
def test_group_norm_of_nothing(remote, shape):
    x = torch.empty(shape)
    count = x[0, 0].numel() if shape[0] else 3
    there = torch.native_group_norm(x.to(remote), None, None, shape[0], 4, count, 2, 1e-5)
    for got, expected in zip(there, torch.native_group_norm(x, None, None, shape[0], 4, count, 2, 1e-5), strict=True):
        equal(got, expected)


def test_gradients_of_parts(remote):
    grads = []
    for device in (torch.device("cpu"), remote):
        x = torch.arange(24.0).reshape(4, 6).to(device).requires_grad_()
        y = torch.cat([x[1:, ::2], x[:3, 3:]], 0)
        (y * y).sum().add(x[2].cumsum(0).square().sum()).add(x.gather(1, (x.detach() % 3).long()).sum()).backward()
        grads.append(x.grad)
    same(grads[1], grads[0])


def test_ranges(remote):
    for dtype in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16):
        equal(torch.arange(7, device=remote, dtype=dtype), torch.arange(7, dtype=dtype))
        equal(torch.arange(2, 30, 3, device=remote, dtype=dtype), torch.arange(2, 30, 3, dtype=dtype))
    equal(torch.arange(5, -5, -2, device=remote), torch.arange(5, -5, -2))
    same(torch.arange(0, 1, 0.1, device=remote), torch.arange(0, 1, 0.1))
    for n in (0, 1, 2, 9):
        same(torch.linspace(-1, 2, n, device=remote), torch.linspace(-1, 2, n))
    equal(torch.linspace(0, 4, 4, device=remote), torch.linspace(0, 4, 4))


# -- attention


def attend(q, k, v, device, **options):
    q, k, v = (x.to(device).detach().clone().requires_grad_() for x in (q, k, v))
    mask = options.pop("attn_mask", None)
    out = F.scaled_dot_product_attention(q, k, v, mask if mask is None else mask.to(device), **options)
    (out * (torch.arange(out.shape[-1], device=device) / out.shape[-1]).to(out.dtype)).sum().backward()
    return out.detach(), q.grad, k.grad, v.grad


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_and_its_gradient(remote, dtype):
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, 0.06)
    for queries, keys, size, options in (
        (5, 5, 8, {}),
        (7, 7, 40, {"is_causal": True}),
        (3, 9, 16, {"scale": 0.3}),
        (4, 6, 8, {"attn_mask": torch.tensor([[1, 0, 1, 1, 0, 1]]).bool()}),
        (4, 6, 8, {"attn_mask": torch.randn(2, 1, 4, 6, dtype=dtype)}),
        (6, 6, 8, {"enable_gqa": True, "is_causal": True}),
    ):
        heads = 2 if "enable_gqa" in options else 4
        q = torch.randn(2, 4, queries, size, dtype=dtype)
        k, v = torch.randn(2, heads, keys, size, dtype=dtype), torch.randn(2, heads, keys, size, dtype=dtype)
        expected = attend(
            q.double(),
            k.double(),
            v.double(),
            torch.device("cpu"),
            **{
                name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for name, x in options.items()
            },
        )
        for there, right in zip(attend(q, k, v, remote, **options), expected, strict=True):
            assert there.dtype == dtype
            torch.testing.assert_close(there.cpu().double(), right, rtol=tolerance, atol=tolerance)


def test_attention_of_a_decoder(remote):
    """One query with a growing cache: the keys are split into pieces."""
    k, v = torch.randn(1, 2, 700, 64), torch.randn(1, 2, 700, 64)
    there_k, there_v = k.to(remote), v.to(remote)
    for length in (1, 2, 127, 256, 257, 700):
        q = torch.randn(1, 4, 1, 64)
        made_there = F.scaled_dot_product_attention(
            q.to(remote), there_k[:, :, :length], there_v[:, :, :length], enable_gqa=True
        )
        same(made_there, F.scaled_dot_product_attention(q, k[:, :, :length], v[:, :, :length], enable_gqa=True))


def test_attention_that_sees_nothing(remote):
    q, k, v = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]).bool()
    made_there = F.scaled_dot_product_attention(q.to(remote), k.to(remote), v.to(remote), mask.to(remote))
    same(made_there, F.scaled_dot_product_attention(q, k, v, mask))


def test_writes_to_elements_that_share_memory(remote):
    for device in (torch.device("cpu"), remote):
        row = torch.arange(1.0, 4, device=device)
        row.expand(4, 1, 3).tril_()
        one = torch.ones((), device=device)
        torch._foreach_zero_([one.expand(2), row[:1]])
        same = torch.ones(2, 1, device=device)
        same.expand(2, 5).triu_(-1)
        assert (row.tolist(), one.item(), same.tolist()) == ([0.0, 0.0, 0.0], 0.0, [[1.0], [1.0]]), device


def test_complex_numbers_beside_real_tensors_are_refused(remote):
    x = torch.arange(3.0, device=remote)
    calls = (lambda: x == 1j, lambda: torch.addmm(x.sum(), x[None], x[:, None], beta=1j), lambda: x.long().ne(2 + 0j))
    for call in calls:
        with pytest.raises(NotImplementedError, match="a complex number with real tensors"):
            call().cpu()
    assert (x.to(torch.complex64) == 1).tolist() == [False, True, False]
    assert (x * 1j).tolist() == [0j, 1j, 2j]


UNHELD = {
    "alpha": (torch.uint8, 300, lambda x, k: torch.add(x * 2, x, alpha=k)),
    "alpha of floats": (torch.float32, 1e39, lambda x, k: torch.sub(x * 2, x, alpha=k)),
    "bound": (torch.int8, -129, lambda x, k: (x * 2).clamp(k, 5) + 1),
    "exponent": (torch.uint8, 256, lambda x, k: (x * 2) ** k),
    "addcmul": (torch.int32, 2**31, lambda x, k: torch.addcmul(x, x, x, value=k)),
    "threshold": (torch.float16, 1e5, lambda x, k: F.threshold(x, 1.0, k)),
    "leaky_relu": (torch.float32, -1e39, F.leaky_relu),
    "lerp": (torch.float32, 1e39, lambda x, k: torch.lerp(x, x * 2, k)),
    "pad": (torch.uint8, 300, lambda x, k: F.pad(x, (1, 2), value=k)),
    "index_fill": (torch.int16, 40000, lambda x, k: x.index_fill(0, torch.tensor([1, 2], device=x.device), k)),
    "scatter": (torch.uint8, -256, lambda x, k: x.scatter(0, torch.tensor([1, 2], device=x.device), k)),
    "masked_fill": (torch.float16, 70000, lambda x, k: x.masked_fill(x > 2, k)),
    "addmm": (torch.float32, 1e39, lambda x, k: torch.addmm(x, x.expand(6, 6), x.expand(6, 6), alpha=k)),
}


@pytest.mark.parametrize("name", list(UNHELD))
def test_numbers_that_a_dtype_does_not_hold_are_torchs_error(remote, name):
    dtype, number, function = UNHELD[name]
    x = torch.arange(6).to(dtype)
    inside = x.to(remote)
    good = [1, 2]
    for few in good:
        same(function(inside, few), function(x, few))
    with pytest.raises(RuntimeError, match="without overflow") as expected:
        function(x, number)
    with pytest.raises(RuntimeError, match="without overflow") as raised:
        function(inside, number).cpu()
    assert str(raised.value).startswith(str(expected.value))
    at_the_call = str(raised.value) == str(expected.value)
    assert at_the_call or f"recorded at {__file__}" in str(raised.value).replace("\n", " ")
    same(function(inside, good[0]), function(x, good[0]))


def test_numbers_of_half_types_that_a_float_holds(remote):
    """torch's CUDA kernels compute in float, and refuse numbers that float cannot hold; CPU kernels refuse more."""
    x = torch.arange(6).to(torch.float16).to(remote)
    equal(x.clamp(-1e5, 1e5), x.cpu())
    with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
        x.clamp(-1e39, 1e39).cpu()
