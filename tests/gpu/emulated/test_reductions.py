"""Reductions, softmax along any dim, and elementwise ops that compiled kernels do not support, on an emulated GPU,
compared with CPU. The tests cover all dtypes, layouts, sizes 0 and 1, changing sizes, and writes to an operand's own
memory."""

import math
import os
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from commit import commit_number

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
if os.environ.get("TORCH_REMOTE_TEST_CHECKED") == "1":  # every access is examined, so one dtype of each size must do
    FLOATS, INTEGERS = [torch.float32, torch.bfloat16], [torch.int64, torch.uint8]
ALL = [*FLOATS, *INTEGERS, torch.bool]
HALVES = (torch.bfloat16, torch.float16)
# Each commit and dtype runs a different part of the large tables; TORCH_REMOTE_TEST_ALL=1 runs all of them.
PARTS = 1 if os.environ.get("TORCH_REMOTE_TEST_ALL") == "1" else 7
TURN = commit_number()


def part_of(cases, dtype):
    """Cases with their indices in the whole list."""
    turn = TURN + ALL.index(dtype)
    return [(i, case) for i, case in enumerate(cases) if (i + turn) % PARTS == 0]


def made(shape, dtype):
    """Few distinct values, so that some are equal."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.bool)
    if dtype.is_floating_point:
        return torch.randn(shape).mul(2).round().div(2).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape).to(dtype)


def special(x):
    """Adds the special values of floats."""
    x = x.clone(memory_format=torch.contiguous_format)
    if x.is_floating_point() and x.numel() > 4:
        for i, value in enumerate((math.nan, math.inf, -math.inf, -0.0)):
            x.view(-1)[i + 1] = value
    return x


def same(there, expected):
    if isinstance(expected, tuple):
        assert len(there) == len(expected)
        for one, right in zip(there, expected, strict=True):
            same(one, right)
        return
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    assert there.stride() == expected.stride()
    there = there.cpu()
    exact = expected.dtype not in (torch.float32, torch.float64, *HALVES)
    rtol, atol = (0, 0) if exact else (0.02, 0.02) if expected.dtype in HALVES else (1e-5, 1e-6)
    torch.testing.assert_close(there, expected, equal_nan=True, rtol=rtol, atol=atol)


def layouts(dtype, values=made):
    """Tensors and views of them with unusual layouts: unchanged, transposed, slices, with size 0 and 1."""
    x = values((3, 4, 5), dtype)
    return [
        (x, lambda t: t),
        (x, lambda t: t.transpose(0, 2)),
        (x, lambda t: t[1:, ::2, 1:4]),
        (x, lambda t: t[:1, :, 2:3].expand(2, 4, 3)),
        (x, lambda t: t[:1, 1:2, 3:4]),
        (x, lambda t: t[:, 2:2]),
    ]


REDUCTIONS = {
    "sum": lambda t, d, k: t.sum(d, keepdim=k),
    "mean": lambda t, d, k: t.mean(d, keepdim=k),
    "nansum": lambda t, d, k: t.nansum(d, keepdim=k),
    "amax": lambda t, d, k: t.amax(d, keepdim=k),
    "amin": lambda t, d, k: t.amin(d, keepdim=k),
    "var": lambda t, d, k: t.var(d, keepdim=k),
    "std_of_all": lambda t, d, k: t.std(d, correction=0, keepdim=k),
    # The mean of infinities may be NaN, depending on their order.
    "var_mean": lambda t, d, k: torch.var_mean(t.nan_to_num(posinf=1, neginf=1), d, keepdim=k),
    "norm": lambda t, d, k: torch.linalg.vector_norm(t, 2, d, k),
    "norm_1": lambda t, d, k: torch.linalg.vector_norm(t, 1, d, k),
    "norm_3": lambda t, d, k: torch.linalg.vector_norm(t, 3, d, k),
    "norm_0": lambda t, d, k: torch.linalg.vector_norm(t, 0, d, k),
    "norm_inf": lambda t, d, k: torch.linalg.vector_norm(t, math.inf, d, k),
    "norm_less": lambda t, d, k: torch.linalg.vector_norm(t, -math.inf, d, k),
    "logsumexp": lambda t, d, k: t.logsumexp(d, keepdim=k),
    "any": lambda t, d, k: t.any(d, keepdim=k),
    "all": lambda t, d, k: t.all(d, keepdim=k),
    "count_nonzero": lambda t, d, k: t.count_nonzero(d),
}
ONE_DIM = {
    "argmax": lambda t, d, k: t.argmax(d, keepdim=k),
    "argmin": lambda t, d, k: t.argmin(d, keepdim=k),
    "max": lambda t, d, k: tuple(t.max(d, keepdim=k)),
    "min": lambda t, d, k: tuple(t.min(d, keepdim=k)),
    "prod": lambda t, d, k: t.prod(d, keepdim=k),
    "aminmax": lambda t, d, k: tuple(t.aminmax(dim=d, keepdim=k)),
    "softmax": lambda t, d, k: t.softmax(d),
    "log_softmax": lambda t, d, k: t.log_softmax(d),
}


def attempt(function, *args):
    """The result; None if torch refuses the call."""
    try:
        return function(*args)
    except (RuntimeError, IndexError, TypeError):
        return None


def check(function, x, view, remote, *args):
    expected = attempt(function, view(x), *args)
    if expected is not None:
        same(function(view(x.to(remote)), *args), expected)
    return expected is not None


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_reductions(remote, dtype):
    done = 0
    for values in (made, lambda shape, of: special(made(shape, of)))[: 1 + dtype.is_floating_point]:
        every = layouts(dtype, values)
        for i, (dims, function) in part_of(product((1, (0, 2), None, -1), REDUCTIONS.values()), dtype):
            x, view = every[i % len(every)]
            done += check(function, x, view, remote, dims, i % 2 == 0)
        for i, (dim, function) in part_of(product((0, 1, -1), ONE_DIM.values()), dtype):
            for x, view in (every[i % len(every)], every[(i + 3) % len(every)]):
                done += check(function, x, view, remote, dim, i % 2 == 0)
    assert done > (50 if PARTS == 1 else 2)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_of_all_and_of_numbers(remote, dtype):
    wholes = [torch.sum, torch.prod, torch.max, torch.min, torch.argmax, torch.argmin, torch.any, torch.all]
    wholes += [torch.count_nonzero, torch.mean, torch.std, torch.norm, torch.aminmax, torch.nansum]
    for _, (shape, function) in part_of(product(((), (1,), (1, 1), (0,), (2, 3)), wholes), dtype):
        x = made(shape, dtype)
        expected = attempt(function, x)
        if expected is not None:
            there = function(x.to(remote))
            same(tuple(there) if isinstance(expected, tuple) else there, expected)


def test_results_in_other_dtypes(remote):
    x = torch.tensor([[0.5, 1.7, -2.9], [300.0, -0.2, 0.0]])
    n = torch.tensor([[100, 100, 100], [0, -1, 1]], dtype=torch.int8)
    for function in (
        lambda t, n: t.sum(1, dtype=torch.int32),
        lambda t, n: t.sum(0, dtype=torch.bool),
        lambda t, n: t.prod(1, dtype=torch.bool),
        lambda t, n: n.sum(1),
        lambda t, n: n.sum(1, dtype=torch.int8),
        lambda t, n: n.sum((0, 1), dtype=torch.float64),
        lambda t, n: n.prod(1, dtype=torch.int16),
        lambda t, n: n.mean(0, dtype=torch.float32),
        lambda t, n: t.half().sum(0, dtype=torch.float32),
        lambda t, n: t.half().softmax(0, dtype=torch.float32),
        lambda t, n: n.softmax(0, dtype=torch.float32),
        lambda t, n: torch.linalg.vector_norm(t.half(), dim=0, dtype=torch.float32),
        lambda t, n: torch.sum(t, 0, out=torch.empty(3, device=t.device)),
        lambda t, n: torch.amax(t, 1, out=torch.empty(2, device=t.device)),
    ):
        same(function(x.to(remote), n.to(remote)), function(x, n))


def test_long_rows_are_cut(remote):
    x = torch.randint(-3, 4, (2, 70_001)).float()
    x[1, 66_000] = 9
    there = x.to(remote).t().contiguous().t()  # transposed
    for function in (
        lambda t: t.sum(1),
        lambda t: t.mean(1),
        lambda t: t.argmax(1),
        lambda t: tuple(t.min(1)),
        lambda t: t.count_nonzero(1),
        lambda t: torch.linalg.vector_norm(t, dim=1),
        lambda t: torch.linalg.vector_norm(t, math.inf, dim=1),
        lambda t: t.var(1),
        lambda t: (t == t).all(1),
        lambda t: t.long().sum(1),
        lambda t: t.double().prod(1),
        lambda t: torch.stack(torch._foreach_norm([t[0], t[1]])),
    ):
        same(function(there), function(x))


def test_sizes_change(remote):
    for rows, columns in ((3, 4), (3, 5), (1, 4), (4, 1), (0, 4), (300, 3), (3, 300), (3, 4)):
        x = torch.randn(2, rows, columns)
        there = x.to(remote)
        if rows:
            same(there.softmax(1), x.softmax(1))
            same(there.amax((0, 1)), x.amax((0, 1)))
        same(there.var(1), x.var(1))
        same(there.nan_to_num(), x.nan_to_num())
        same(there.logsumexp((0, 2)), x.logsumexp((0, 2)))
        same(there.transpose(0, 2).sum(1), x.transpose(0, 2).sum(1))


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, math.inf])
def test_gradients_are_clipped(remote, kind):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)).to(remote)
    here = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    here.load_state_dict({name: t.cpu() for name, t in model.state_dict().items()})
    x = torch.randn(5, 7)
    for scale in (10.0, 0.01, 10.0):
        totals = []
        for net, data in ((model, x.to(remote)), (here, x)):
            net.zero_grad()
            (net(data).square().sum() * scale).backward()
            totals.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.5, norm_type=kind))
        same(totals[0].detach(), totals[1].detach())
        for there, expected in zip(model.parameters(), here.parameters(), strict=True):
            same(there.grad, expected.grad)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_lists(remote, dtype):
    tensors = [
        made((3, 4), dtype),
        made((1,), dtype),
        made((), dtype),
        made((5, 6), dtype).t()[1:],
        special(made(9, dtype)),
    ]
    for order in (2, 1, 3, math.inf):
        expected = torch._foreach_norm(tensors, order)
        for there, right in zip(torch._foreach_norm([t.to(remote) for t in tensors], order), expected, strict=True):
            same(there, right)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_softmax(remote, dtype):
    for dim, view in product((0, 1, -1), (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[1:, :, ::2])):
        for function in (torch.softmax, torch.log_softmax):
            results = []
            for device in (torch.device("cpu"), remote):
                torch.manual_seed(2)
                x = torch.randn(3, 4, 5).to(dtype).to(device).requires_grad_()
                y = function(view(x), dim)
                (y * y.detach().cos()).sum().backward()
                results.append((y.detach(), x.grad))
            same(results[1], results[0])


def test_cross_entropy_of_images(remote):
    x, target, weight = (
        torch.randn(2, 5, 3, 4),
        torch.randint(0, 5, (2, 3, 4)),
        torch.rand(5),
    )
    for reduction, weighted, view in product(("mean", "sum", "none"), (False, True), (False, True)):
        results = []
        for device in (torch.device("cpu"), remote):
            scores = (x.transpose(2, 3) if view else x).clone().to(device).requires_grad_()
            loss = F.cross_entropy(
                scores.transpose(2, 3) if view else scores,
                target.to(device),
                weight.to(device) if weighted else None,
                ignore_index=3,
                reduction=reduction,
            )
            (loss * loss.detach()).sum().backward()
            results.append((loss.detach(), scores.grad))
        same(results[1], results[0])
    there = x.to(remote)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        F.cross_entropy(there, torch.full((2, 3, 4), 9).to(remote)).cpu()


def test_lists_become_zeros(remote):
    tensors = [
        torch.randn(3, 4),
        torch.randn(1).half(),
        torch.arange(6).reshape(2, 3),
        torch.randn(2, dtype=torch.cfloat),
    ]
    there = [t.to(remote) for t in tensors]
    torch._foreach_zero_([there[0].t()[1:], *there[1:], there[1]])
    torch._foreach_zero_([tensors[0].t()[1:], *tensors[1:], tensors[1]])
    for t, expected in zip(there, tensors, strict=True):
        same(t, expected)


def test_lists_of_one_tensor_and_of_tensors_without_elements(remote):
    def run(device):
        x, y = torch.arange(6.0, device=device), torch.ones(2, 3, device=device)
        none, half = torch.empty(3, 0, device=device), x[2:]
        torch._foreach_add_([x, x], [x, x], alpha=0.5)
        torch._foreach_mul_([half, x, half], 2)
        torch._foreach_addcmul_([none, y], [none, y], [none, y], 0.5)
        torch._foreach_lerp_([y, none, y], [y * 3, none, y], 0.25)
        made = torch._foreach_neg([none, y, y])
        parameters = [torch.nn.Parameter(t) for t in (y.clone(), none.clone())]
        for p in parameters:
            p.grad = torch.ones_like(p)
        for options in ({"foreach": True}, {"fused": True}):
            torch.optim.AdamW(parameters, lr=0.1, **options).step()
        return [x, y, *made, *(p.detach() for p in parameters)]

    for there, expected in zip(run(remote), run("cpu"), strict=True):
        same(there, expected)


def test_numbers_of_trials(remote):
    torch.manual_seed(8)
    for dtype in (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
    ):
        trials = torch.empty(4000, dtype=dtype, device=remote).geometric_(0.5).cpu().double()
        assert trials.min() == 1
        assert abs((trials == 1).double().mean() - 0.5) < 0.04
        assert abs(trials.mean() - 2) < 0.15
    assert torch.empty(50, device=remote).geometric_(0.999999).max().item() == 1


def test_layer_norm_of_odd_operands(remote):
    for shape, view in (((1,), lambda t: t), ((4, 3, 5), lambda t: t.transpose(0, 2)), ((2, 6), lambda t: t[:, ::2])):
        x = torch.randn(shape)
        for dims in range(1, len(shape) + 1):
            sizes = view(x).shape[-dims:]
            weight = torch.randn(sizes)
            for args in ((), (weight,), (weight, weight)):
                expected = F.layer_norm(view(x), sizes, *args)
                torch.testing.assert_close(
                    F.layer_norm(view(x.to(remote)), sizes, *(w.to(remote) for w in args)).cpu(), expected
                )


# -- element by element -----------------------------------------------------------------------------------------------

ELEMENTWISE = {
    "clamp": lambda a, b: a.clamp(0, 2),
    "clamp_min": lambda a, b: a.clamp(min=1),
    "clamp_max": lambda a, b: a.clamp(max=1.5) if a.is_floating_point() else a.clamp(max=1),
    "clamp_nothing": lambda a, b: a.clamp(3, -1),
    "clamp_tensors": lambda a, b: a.clamp(b, b + 1),
    "clamp_floats": lambda a, b: a.clamp(-0.5, 1.5),
    "nan_to_num": lambda a, b: a.nan_to_num(),
    "nan_to_numbers": lambda a, b: a.nan_to_num(7.0, 8.0, -9.0),
    "fmod": torch.fmod,
    "fmod_number": lambda a, b: a.fmod(3),
    "remainder": torch.remainder,
    "remainder_number": lambda a, b: a.remainder(-3 if a.dtype != torch.uint8 else 3),
    "number_remainder": lambda a, b: torch.remainder(7, b),
    "floor_divide": torch.floor_divide,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "heaviside": torch.heaviside,
    "signbit": lambda a, b: a.signbit(),
    "angle": lambda a, b: a.angle(),
    "log_sigmoid": lambda a, b: F.logsigmoid(a),
    "ceil": lambda a, b: a.ceil(),
    "round": lambda a, b: a.round(),
    "trunc_of": lambda a, b: a.trunc(),
    **{name: (lambda a, b, name=name: getattr(torch, name)(a, b)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        name + "_number": (lambda a, b, name=name: getattr(a, name)(1)) for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_elementwise(remote, dtype):
    done = 0
    every = layouts(dtype, lambda shape, of: special(made(shape, of)))
    for i, function in part_of(ELEMENTWISE.values(), dtype):
        for x, view in (every[2 * i % len(every)], every[(2 * i + 1) % len(every)]):
            divisor = made((3, 4, 5), dtype)
            divisor = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
            for of in (lambda t: t, lambda t: t[..., :1]):
                expected = attempt(function, view(x), of(view(divisor)))
                if expected is not None:
                    done += 1
                    same(function(view(x.to(remote)), of(view(divisor.to(remote)))), expected)
    assert done > (40 if PARTS == 1 else 2)


def test_mixed_dtypes(remote):
    n, x, h = torch.arange(-6, 6), torch.linspace(-3, 3, 12), torch.linspace(-2, 2, 12).half()
    b = n > 1
    for function in (
        lambda n, x, h, b: torch.remainder(n, x),
        lambda n, x, h, b: torch.fmod(h, 1.5),
        lambda n, x, h, b: torch.floor_divide(n.int(), h),
        lambda n, x, h, b: b == x,
        lambda n, x, h, b: b > True,
        lambda n, x, h, b: n > 0.5,
        lambda n, x, h, b: h == 0.1,
        lambda n, x, h, b: n.clamp(-0.5, 2),
        lambda n, x, h, b: h.clamp(x[3], x[8]),
        lambda n, x, h, b: torch.fmax(n, h),
        lambda n, x, h, b: torch.div(n, 2.5, rounding_mode="floor"),
        lambda n, x, h, b: torch.div(x, torch.tensor(0.7, dtype=torch.float64), rounding_mode="trunc"),
    ):
        args = (n, x, h, b)
        same(function(*(t.to(remote) for t in args)), function(*args))


def test_in_place_and_into_itself(remote):
    results = []
    for device in (torch.device("cpu"), remote):
        x = special(torch.arange(24.0).reshape(4, 6) - 9).to(device)
        n = (torch.arange(24).reshape(4, 6) - 9).to(device)
        x.t()[1:].nan_to_num_(posinf=3)
        n.t().fmod_(n.t() | 1)
        n[:, ::2].clamp_(-2, 5)
        n[1].remainder_(n[2] | 1)
        torch.floor_divide(n, 2, out=n)
        b = n > 0
        b.ge_(b)
        b[0].gt_(b[1])
        torch.clamp(x, -4, 4, out=x)
        x[0].remainder_(x[0] + 0.5)
        x[:, 1].fmod_(2)
        results.append((x, n, b))
    for there, expected in zip(results[1], results[0], strict=True):
        same(there, expected)


def test_exact_remainders(remote):
    a = torch.tensor([1e6, 5.0, -5.0, 1e-310, 3.0, -0.0, math.inf, 7.5], dtype=torch.float64)
    b = torch.tensor([1e-3, 0.1, 0.1, 3e-320, math.inf, 2.0, 1.0, -2.5], dtype=torch.float64)
    for function in (torch.fmod, torch.remainder):
        assert torch.equal(function(a.to(remote), b.to(remote)).cpu().nan_to_num(99), function(a, b).nan_to_num(99))
    low = torch.tensor([-(2**63), 2**63 - 1, -7])
    for by in (3, -3, 2**62):
        for function in (torch.fmod, torch.remainder, torch.floor_divide):
            same(function(low.to(remote), by), function(low, by))


def test_division_by_zero_is_told(remote):
    n = torch.tensor([3, 4])
    for function in (torch.fmod, torch.remainder, torch.floor_divide):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(n, n - 3)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(n.to(remote), n.to(remote) - 3).cpu()
    same(n.to(remote) + 1, n + 1)
    torch.remote.synchronize()


def test_more_dims_than_kernels_have(remote):
    n = torch.arange(1, 1025).reshape((2,) * 10)
    x = n.sqrt()
    for function in (
        lambda n, x: torch.remainder(n.transpose(0, 9), n[..., :1]),
        lambda n, x: torch.hypot(x.transpose(0, 9), x[0]),
        lambda n, x: n.clone().mT.fmod_(n),
        lambda n, x: F.gelu(x.transpose(2, 5)),
    ):
        same(function(n.to(remote), x.to(remote)), function(n, x))


# -- numbers of the host, and results without elements -----------------------------------------------------------------


def test_equal(remote):
    for x in (made((3, 4), torch.float32), made((5,), torch.int64), made((2, 2), torch.bool), torch.empty(0, 3)):
        there = x.to(remote)
        assert torch.equal(there, there.clone())
        if x.numel():
            other = x.clone()
            other.view(-1)[-1] = 1 - other.view(-1)[-1].long()
            assert torch.equal(there, other.to(remote)) == torch.equal(x, other)
        assert not torch.equal(there, there[..., :-1])
    x = torch.randn(4, 6)
    assert torch.equal(x.to(remote).t(), x.t().contiguous().to(remote))
    assert not torch.equal(torch.tensor([math.nan]).to(remote), torch.tensor([math.nan]).to(remote))
    assert torch.equal(torch.tensor([0.0]).to(remote), torch.tensor([-0.0]).to(remote))
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(z.to(remote), z.to(remote).clone())
    assert torch.equal(z.to(remote), z.clone().to(remote))
    assert not torch.equal(z.to(remote), z.conj().resolve_conj().to(remote))


def test_diagonals_and_triangles(remote):
    for dtype in (torch.float32, torch.int16, torch.bool, torch.bfloat16):
        for sizes in ((3,), (2, 4), (4, 2), (0,), (0, 3)):
            same(torch.eye(*sizes, dtype=dtype, device=remote), torch.eye(*sizes, dtype=dtype))
    x, m = torch.randn(2, 3), torch.randn(3, 4, 5)
    for offset in (-2, 0, 1):
        same(torch.diag_embed(x.to(remote), offset), torch.diag_embed(x, offset))
        same(torch.diag_embed(x.to(remote), offset, 0, 2), torch.diag_embed(x, offset, 0, 2))
        same(torch.diag(m.to(remote)[1], offset), torch.diag(m[1], offset))
        same(torch.diagonal_copy(m.to(remote), offset, 0, 2), torch.diagonal_copy(m, offset, 0, 2))
        for function in (torch.tril_indices, torch.triu_indices):
            for rows, columns in ((3, 4), (4, 2), (0, 2)):
                same(function(rows, columns, offset, device=remote), function(rows, columns, offset))


# -- refused ops -------------------------------------------------------------------------------------------------------


def test_a_refused_op_fails_alone(remote):
    x = torch.randn(3, 3)
    there = x.to(remote)
    before = there * 2
    refused = torch.special.bessel_j0(there)
    depends = refused + 1
    after = before + there
    same(after, x * 2 + x)
    for bad in (refused, depends):
        with pytest.raises(NotImplementedError, match=r"aten::special_bessel_j0.*f32\[3, 3\](.|\n)*test_reductions.py"):
            bad.cpu()
    same(before, x * 2)
    torch.remote.synchronize()


def test_asserts_tell_later(remote):
    """The error has the given text, as on the CPU, and the session continues."""
    for good in (torch.tensor(True), torch.tensor([2]), torch.tensor([[-0.5]]), torch.tensor(1j)):
        torch._assert_async(good.to(remote), "is not told")
    torch.remote.synchronize()
    x = torch.arange(4.0).to(remote)
    torch._assert_async((x > 2).all(), "too small")
    with pytest.raises(RuntimeError, match=r"(?s)^too small.*test_reductions.py"):
        (x * 2).sum().item()
    torch._assert_async((x * 0).sum())
    with pytest.raises(RuntimeError, match=r"^Expected Tensor with single nonzero value, but got zero"):
        torch.remote.synchronize()
    torch._assert_async(x > 2)
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        torch.remote.synchronize()
    assert x.sum().item() == 6
