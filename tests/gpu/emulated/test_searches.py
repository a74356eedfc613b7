"""Searches, counts, medians, weighted sampling and special functions on an emulated GPU, compared with CPU. The tests
cover dtypes, layouts, sizes 0 and 1, changing sizes, and data-dependent errors."""

import math
import os

import pytest
import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
CHECKED = os.environ.get("TORCH_REMOTE_TEST_CHECKED") == "1"
if CHECKED:  # every access is examined, so one dtype of each kind must do
    FLOATS, INTEGERS = [torch.bfloat16], [torch.int64]
ALL = [*FLOATS, *INTEGERS]


def same(there, expected, **tolerance):
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    assert there.stride() == expected.stride()
    torch.testing.assert_close(there.cpu(), expected, equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sorted_rows(remote, dtype):
    bounds = torch.tensor([1, 2, 2, 2, 5, 9]).to(dtype)
    x = torch.tensor([[0, 1, 2], [3, 5, 9], [10, 2, 4]]).to(dtype)
    if dtype.is_floating_point:
        x[0, 0] = math.nan
    for right, small, view in ((a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)):
        of = x.t()[1:] if view else x
        there = x.to(remote).t()[1:] if view else x.to(remote)
        how = {"right": right, "out_int32": small}
        same(torch.bucketize(there, bounds.to(remote), **how), torch.bucketize(of, bounds, **how))
        rows, other = bounds.expand(2, 6).contiguous(), of[:2]
        rows[1, 3:] = 7
        same(
            torch.searchsorted(rows.to(remote), there[:2].contiguous(), **how),
            torch.searchsorted(rows, other.contiguous(), **how),
        )
    same(torch.searchsorted(bounds.to(remote), 2), torch.searchsorted(bounds, 2))
    same(torch.searchsorted(bounds.to(remote), 2.5), torch.searchsorted(bounds, 2.5))
    same(torch.bucketize(2, bounds.to(remote), right=True), torch.bucketize(2, bounds, right=True))
    same(torch.searchsorted(bounds[:0].to(remote), x.to(remote)), torch.searchsorted(bounds[:0], x))
    same(torch.searchsorted(bounds.to(remote), x[:0].to(remote)), torch.searchsorted(bounds, x[:0]))


def test_sorted_by_another_order(remote):
    rows = torch.randn(3, 7)
    order = rows.argsort(1)
    x = torch.randn(3, 4)
    there = torch.searchsorted(rows.to(remote), x.to(remote), sorter=order.to(remote), side="right")
    same(there, torch.searchsorted(rows, x, sorter=order, side="right"))
    with pytest.raises((RuntimeError, IndexError)):
        torch.searchsorted(rows.to(remote), x.to(remote), sorter=order.add(7).to(remote)).cpu()
    ages, bounds = torch.tensor([3, 18, 40]), torch.tensor([2.5, 18.0, 39.5])
    same(torch.bucketize(ages.to(remote), bounds.to(remote)), torch.bucketize(ages, bounds))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bins(remote, dtype):
    for size in (0, 1, 9, 3000 if dtype == torch.int64 else 30):
        x = torch.randint(0, 7, (size,)).to(dtype)
        for least in (0, 3, 12):
            same(torch.bincount(x.to(remote), minlength=least), torch.bincount(x, minlength=least))
        for weights in (torch.randn(size), torch.randn(size).double(), torch.randint(0, 5, (size,))):
            same(torch.bincount(x.to(remote), weights.to(remote)), torch.bincount(x, weights))
    two = torch.tensor([[3, 0], [3, 1]]).to(dtype)
    same(torch.bincount(two.to(remote)[:, 0]), torch.bincount(two[:, 0]))
    if dtype != torch.uint8:
        with pytest.raises(RuntimeError, match="non-negative integral"):
            torch.bincount(torch.tensor([1, -1]).to(dtype).to(remote)).cpu()
    if dtype == torch.int64:  # so many bins that their bytes do not fit into 64 bits
        with pytest.raises(RuntimeError):
            torch.bincount(torch.tensor([2**61]).to(remote)).cpu()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_medians_and_modes(remote, dtype):
    shapes = ((3, 4, 5), (1, 1, 1), (2, 6, 3), (2, 1, 2500))
    views = (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[:, :1])
    for number, shape in enumerate(shapes[: 3 if ALL.index(dtype) else 4]):
        x = torch.randint(0, 6, shape).to(dtype)
        if dtype.is_floating_point and x.numel() > 9:
            x.view(-1)[4] = x.view(-1)[-1] = math.nan
            x[0, :, 0] = math.nan
        view = views[(number + ALL.index(dtype)) % 3]
        there, here = view(x.to(remote)), view(x)
        for function in (torch.median, torch.nanmedian):
            same(function(there), function(here))
            for dim, keep in ((0, True), (1, False), (-1, False)):
                values, places = function(there, dim, keep)
                expected = function(here, dim, keep).values
                same(values, expected)
                found = here.gather(dim, (places if keep else places.unsqueeze(dim)).cpu())
                same(found if keep else found.squeeze(dim), expected.contiguous())
        if dtype.is_floating_point:  # with NaN, CPU's result depends on the order
            there, here = there.nan_to_num(), here.nan_to_num()
        for dim, keep in ((0, True), (1, False), (-1, False)):
            values, places = torch.mode(there, dim, keep)
            expected = torch.mode(here, dim, keep).values
            same(values, expected)
            found = here.gather(dim, (places if keep else places.unsqueeze(dim)).cpu())
            same(found if keep else found.squeeze(dim), expected.contiguous())
    for nothing in (torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.bool)):
        same(nothing.to(remote).median(), nothing.median())
        same(nothing.to(remote).nanmedian(), nothing.nanmedian())
    one = torch.tensor(3).to(dtype)
    same(one.to(remote).median(), one.median())
    same(one.to(remote).median(0).indices, one.median(0).indices)


def test_masked_scatter(remote):
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
        for rows, columns in ((3, 5), (1, 1), (40, 70), (0, 4))[:: 3 if CHECKED else 1]:
            x = torch.randint(0, 9, (rows, columns)).to(dtype)
            source = torch.randint(0, 9, (rows * columns + 2,)).to(dtype)
            mask = torch.rand(rows, columns) < 0.4
            for chosen in (mask, mask[:1], mask[:, :1], torch.ones_like(mask)):
                there = x.to(remote).masked_scatter(chosen.to(remote), source.to(remote))
                same(there, x.masked_scatter(chosen, source))
            there, here = x.to(remote), x.clone()
            there.t().masked_scatter_(mask.t().to(remote), source.to(remote))
            same(there, here.t().masked_scatter_(mask.t(), source).t())
    x, mask = torch.zeros(4).to(remote), torch.tensor([True, True, False, True]).to(remote)
    same(x.masked_scatter(mask, torch.ones(3).to(remote)), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    with pytest.raises(RuntimeError, match="source < number of ones in mask"):
        x.masked_scatter(mask, torch.ones(2).to(remote)).cpu()


def test_gradients_of_masked_scatter(remote):
    results = []
    for device in (torch.device("cpu"), remote):
        x = torch.arange(6.0).reshape(2, 3).to(device).requires_grad_()
        source = torch.arange(10.0, 15.0).to(device).requires_grad_()
        mask = torch.tensor([[True, False, True], [False, True, False]]).to(device)
        x.masked_scatter(mask, source).square().sum().backward()
        results.append((x.grad, source.grad))
    for there, expected in zip(results[1], results[0], strict=True):
        same(there, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_draws_by_weight(remote, dtype):
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]]).to(dtype).to(remote)
    torch.manual_seed(3)
    drawn = torch.multinomial(weights, 4000, replacement=True)
    share = torch.nn.functional.one_hot(drawn.cpu(), 4).double().mean(1)
    expected = torch.tensor([[0, 0.25, 0.75, 0], [0.5, 0, 0, 0.5]], dtype=torch.float64)
    assert (share - expected).abs().max() < 0.04 and (share[expected == 0] == 0).all()
    torch.manual_seed(3)
    same(torch.multinomial(weights, 4000, replacement=True), drawn.cpu())
    assert not torch.equal(torch.multinomial(weights, 4000, replacement=True).cpu(), drawn.cpu())
    # Without replacement, each is drawn at most once, and the first one is distributed as if drawn alone.
    many = torch.tensor([1.0, 3.0]).to(dtype).to(remote).expand(400, 2)
    both = torch.multinomial(many, 2).cpu()
    assert (both.sort(1).values == torch.arange(2)).all()
    assert abs(both[:, 0].double().mean() - 0.75) < 0.1
    assert abs(torch.multinomial(many, 1).double().cpu().mean() - 0.75) < 0.1
    assert sorted(torch.multinomial(torch.ones(50, dtype=dtype, device=remote), 50).tolist()) == list(range(50))
    assert torch.multinomial(torch.tensor([0.0, 0.0, 5.0], dtype=dtype).to(remote)[1:], 1).tolist() == [1]
    assert torch.multinomial(torch.ones(0, 3, dtype=dtype, device=remote), 2).shape == (0, 2)


def test_a_thousand_categories(remote):
    logits = torch.randn(3, 5000)
    p = logits.softmax(1)
    drawn = torch.multinomial(p.to(remote), 300, replacement=True).cpu()
    assert drawn.min() >= 0 and drawn.max() < 5000
    p[:, ::2] = 0
    assert (torch.multinomial(p.to(remote), 100).cpu() % 2 == 1).all()


def test_weights_that_are_none(remote):
    for bad, samples, replacement, message in (
        ([1.0, -1.0], 1, False, "contains either `inf`, `nan` or element < 0"),
        ([1.0, math.nan], 2, False, "contains either `inf`, `nan` or element < 0"),
        ([1.0, math.inf], 1, True, "contains either `inf`, `nan` or element < 0"),
        ([0.0, 0.0], 1, False, "sum of probabilities <= 0"),
        ([1.0, -1.0], 3, True, "probability entry < 0"),
        ([1.0, math.inf], 3, True, "probability entry = infinity or NaN"),
        ([0.0, 0.0], 3, True, "sum of probabilities <= 0"),
    ):
        weights = torch.tensor([[1.0, 1.0], bad])
        with pytest.raises(RuntimeError, match=message):
            torch.multinomial(weights, samples, replacement=replacement)
        with pytest.raises(RuntimeError, match=message):
            torch.multinomial(weights.to(remote), samples, replacement=replacement).cpu()
    torch.remote.synchronize()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.bool], ids=str)
def test_special_functions(remote, dtype):
    inside = torch.cat([torch.linspace(-1, 1, 41), torch.tensor([1e-12, 0.999999, -0.9999999, 1.5, math.nan])])
    wide = torch.cat([torch.linspace(-7.3, 40, 97), torch.tensor([0.0, -0.0, 1e-6, 1, 2, 1e5, -3, math.inf, math.nan])])
    half = dtype in (torch.bfloat16, torch.float16)
    for function, x in ((torch.erfinv, inside), (torch.lgamma, wide), (torch.digamma, wide)):
        of = (x.double() if dtype == torch.float64 else x).nan_to_num(0, 1, 0) if not dtype.is_floating_point else x
        of = of.to(dtype)
        tolerance = {"rtol": 0.02, "atol": 0.02} if half else {"rtol": 2e-5, "atol": 1e-6}
        if dtype == torch.float64:
            tolerance = {"rtol": 1e-11, "atol": 1e-12}
        same(function(of.to(remote)), function(of), **tolerance)
        same(function(of.to(remote)[::3]), function(of[::3]), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
def test_functions_of_statistics(remote, dtype):
    inside = torch.cat([torch.linspace(0, 1, 41), torch.tensor([1e-12, 1e-30, 0.999999, 1.5, math.nan])])
    wide = torch.cat(
        [torch.linspace(-7.3, 40, 97), torch.tensor([0.0, -0.0, 1e-6, 80, -50, -3, -1.5, math.inf, math.nan])]
    )
    for function, x in (
        (torch.i0, wide),
        (torch.special.i0e, wide),
        (torch.special.i1, wide),
        (torch.special.i1e, wide),
        (torch.special.erfcx, wide),
        (torch.special.log_ndtr, wide),
        (torch.special.ndtri, inside),
        (lambda x: torch.polygamma(0, x.abs()), wide),
        (lambda x: torch.polygamma(1, x.abs()).float(), wide),  # CPU's series has too few terms
        (lambda x: torch.polygamma(1, x), torch.tensor([-1, -2.0, -7, -1.25])),  # poles
        (lambda x: torch.polygamma(2, x), wide),
        (lambda x: torch.polygamma(3, x), wide),
        (lambda x: torch.special.zeta(x.abs(), 2.5), wide),
        (lambda x: torch.special.zeta(3, x), wide),
        (lambda x: torch.special.zeta(x[:90, None].abs() + 1, x[:20]), wide),
    ):
        of = (x if dtype.is_floating_point else x.nan_to_num(0, 1, 0)).to(dtype)
        expected = function(of)
        is_double = expected.dtype == torch.float64
        same(function(of.to(remote)), expected, rtol=1e-11 if is_double else 2e-5, atol=1e-12 if is_double else 1e-6)
    made = []
    for device in (remote, "cpu"):
        x = torch.linspace(0.3, 9, 20, device=device, requires_grad=True)
        torch.distributions.Gamma(x, x + 1).entropy().sum().backward()  # uses the derivative of digamma
        made.append(x.grad.cpu())
    torch.testing.assert_close(*made)


def test_weights_begin_truncated_normal(remote):
    x = torch.empty(4000, device=remote)
    torch.nn.init.trunc_normal_(x, std=0.5, a=-1, b=1)
    x = x.cpu()
    assert x.abs().max() <= 1 and abs(x.std() - 0.44) < 0.03 and abs(x.mean()) < 0.04


def test_powers_of_bools(remote):
    x = torch.tensor([True, False, True])
    for exponent in (True, False, 1, 0):
        same(x.to(remote).pow(exponent), x.pow(exponent))
        same(x.to(remote)[::2].pow(exponent), x[::2].pow(exponent))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_repeats_by_a_tensor(remote, dtype):
    for repeats in ([2, 0, 3, 1], [0, 0], [], [5], torch.arange(700).tolist()):
        here = torch.tensor(repeats, dtype=dtype)
        same(torch.repeat_interleave(here.to(remote)), torch.repeat_interleave(here))
        size = int(here.sum())
        there = torch.repeat_interleave(here.to(remote), output_size=size)
        same(there, torch.repeat_interleave(here, output_size=size))
    x, repeats = torch.randn(4, 6, requires_grad=True), torch.tensor([3, 0, 1, 2, 2, 0], dtype=dtype)
    made, grads = [], []
    for device in (torch.device("cpu"), remote):
        leaf = x.detach().to(device).requires_grad_()
        made.append(torch.repeat_interleave(leaf, repeats.to(device), dim=1))
        made[-1].square().sum().backward()
        grads.append(leaf.grad)
    same(made[1].detach(), made[0].detach())
    same(grads[1], grads[0], rtol=1e-6, atol=1e-6)
    negative, another = "repeats can not be negative", "allocated size does not match required size"
    for bad, size, text in (([1, -2, 3], None, negative), ([1, -2, 3], 2, negative), ([1, 2], 4, another)):
        given = torch.tensor(bad, dtype=dtype, device=remote)  # if a size is given, CPU writes out of bounds
        with pytest.raises(RuntimeError, match=text):
            torch.repeat_interleave(given, output_size=size).cpu()


@pytest.mark.parametrize("dtype", [*ALL, torch.bool, torch.complex64], ids=str)
def test_a_known_number_of_places(remote, dtype):
    x = (torch.rand(7, 5, 40) < 0.4).to(dtype)
    for size in (0, 1, 300, 2000):
        for of in (x, x.transpose(0, 2)[1:], x[0, 0, 0], x[:0]):
            same(torch.nonzero_static(of.to(remote), size=size), torch.nonzero_static(of, size=size))
    same(torch.nonzero_static(x.to(remote), size=900, fill_value=7), torch.nonzero_static(x, size=900, fill_value=7))


def test_bins_of_large_integers(remote):
    """Float arithmetic would confuse these bins."""
    x = torch.tensor([2**62, 2**62 + 1, 2**62 + 2, 2**62 + 3, 2**62 + 4, -(2**62), 5]).to(remote)
    assert torch.histc(x, 4, 2**62, 2**62 + 4).tolist() == [1, 1, 1, 2]
    assert torch.histc(x, 2, -(2**62), 2**62 + 4).tolist() == [1, 6]
    ends = torch.tensor([-(2**63), -1, 0, 2**63 - 1]).to(remote)
    assert torch.histc(ends, 2).tolist() == [2, 2]
    many = torch.arange(1000)
    assert torch.histc(many.to(remote), 7, 0, 700).tolist() == [100, 100, 100, 100, 100, 100, 101]
