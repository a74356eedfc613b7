"""Compiled kernels compute groups of ops as exactly as torch does, for all sizes, without being compiled again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

EPS = {torch.float64: 2.3e-16, torch.float32: 1.2e-7, torch.bfloat16: 7.9e-3, torch.float16: 9.8e-4}


def cross_entropy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1])
    loss.backward()
    return loss.detach(), x.grad


def layer_norm_backward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    (F.layer_norm(x * 2, w.shape, w, w) * x).sum().backward()
    return x.grad, w.grad


def gelu_backward(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (F.gelu(x * 1.5) + F.gelu(x, approximate="tanh")).sum().backward()
    return x.grad


def rope(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)


def rotary(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * angles.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * angles.sin()


def rotary_of_pairs(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * angles.cos() + turned * angles.sin()


def gradients(function: Callable) -> Callable:
    def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in operands]
        result = function(*leaves)
        (result * result.detach()).sum().backward()
        return tuple(x.grad for x in leaves)

    return run


# By name: a function, and the shapes of its operands for sizes n and m.
CASES: dict[str, tuple[Callable, list[Callable]]] = {
    "chain": (lambda x, y: F.gelu(torch.sigmoid(x) * torch.tanh(y)), [lambda n, m: (n, m)] * 2),
    "swiglu": (lambda x, y: F.silu(x) * y, [lambda n, m: (n, m)] * 2),
    "broadcast": (lambda x, b, c: (x + b) * c - 1, [lambda n, m: (n, m), lambda n, m: (m,), lambda n, m: (n, 1)]),
    "four dims": (lambda x, b: (x * b).exp().sqrt(), [lambda n, m: (3, n, m, 5), lambda n, m: (1, n, 1, 5)]),
    "transposed": (lambda x, y: (x.t() * 2 + 1) * y, [lambda n, m: (5, n), lambda n, m: (n, 5)]),
    "strided": (lambda x, y: (x[:, ::2] * y[:, ::2]).relu() - 1, [lambda n, m: (n, 2 * m)] * 2),
    "reshaped": (lambda x: (x.cos().reshape(-1, x.shape[-1]) * 2).abs(), [lambda n, m: (2, n, m)]),
    "softmax": (lambda x: torch.softmax(x * 2, -1) * 3, [lambda n, m: (n, m)]),
    "log_softmax": (lambda x: torch.log_softmax(x + 1, -1).neg(), [lambda n, m: (n, m)]),
    "layer_norm": (lambda x, w: F.layer_norm(x + 1, w.shape, w, w), [lambda n, m: (2, n, m), lambda n, m: (m,)]),
    "layer_norm backward": (layer_norm_backward, [lambda n, m: (n, m), lambda n, m: (m,)]),
    "rms_norm": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        [lambda n, m: (n, m), lambda n, m: (m,)],
    ),
    "cross_entropy": (cross_entropy, [lambda n, m: (n, m)]),
    "gelu backward": (gelu_backward, [lambda n, m: (n, m)]),
    "row times matrix": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)) + x.sum(),
        [lambda n, m: (1, m), lambda n, m: (n, m), lambda n, m: (n,)],
    ),
    "column sums": (lambda x: (x * 2 + 1).sum(0), [lambda n, m: (n, m)]),
    "row means": (lambda x: (x * x).mean(-1).sqrt(), [lambda n, m: (n, m)]),
    "sum of all": (lambda x: (x * x).sum(), [lambda n, m: (n, m)]),
    "largest": (lambda x: (x * 2).amax(-1) - (x + 1).amin(), [lambda n, m: (n, m)]),
    "mse": (lambda x, y: F.mse_loss(x.tanh(), y), [lambda n, m: (n, m)] * 2),
    "rope": (rope, [lambda n, m: (n, 2 * m), lambda n, m: (n, m)]),
    "rotary": (rotary, [lambda n, m: (3, n, 2 * m), lambda n, m: (n, 2 * m)]),
    "rotary, gradients": (gradients(rotary), [lambda n, m: (n, 2 * m)] * 2),
    "rotary of pairs": (rotary_of_pairs, [lambda n, m: (3, n, 2 * m), lambda n, m: (n, 2 * m)]),
    "rotary of pairs, gradients": (gradients(rotary_of_pairs), [lambda n, m: (n, 2 * m)] * 2),
    "joined rows": (lambda x, y: torch.softmax(torch.cat((x * 2, y, -x)), -1) + 1, [lambda n, m: (n, m)] * 2),
    "joined twice": (
        lambda x, y: torch.cat((x.neg(), torch.cat((x * 2, y), 0) + 1, y.abs()), 0).tanh(),
        [lambda n, m: (n, m), lambda n, m: (2 * n, m)],
    ),
    "joined crosswise": (
        lambda x, y: torch.cat((torch.cat((x.neg(), y), 0), torch.cat((y * 2, x), 0)), 1) + 1,
        [lambda n, m: (n, m)] * 2,
    ),
    "stacked": (lambda x, y: torch.stack((x * 2, y + 1)).tanh(), [lambda n, m: (n, m)] * 2),
}


def operands(shapes: list[Callable], n: int, m: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(shape(n, m), dtype=torch.float64).to(dtype) for shape in shapes]


def listed(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def check_against_f64(function: Callable, given: list[torch.Tensor], remote: torch.device, units: int = 4) -> None:
    """The error may exceed eager's by some units in the last place of the largest result."""
    wanted = listed(function(*[x.double() for x in given]))
    eager = listed(function(*given))
    got = listed(function(*[x.to(remote) for x in given]))
    for want, plain, ours in zip(wanted, eager, got, strict=True):
        assert ours.dtype == plain.dtype
        assert ours.stride() == plain.stride()
        scale = want.abs().max().item()
        error = (ours.cpu().double() - want).abs().max().item()
        of_eager = (plain.double() - want).abs().max().item()
        assert error <= 1.5 * of_eager + units * EPS[plain.dtype] * scale, (error, of_eager, scale)


def test_what_is_joined_beside_another_join_is_added_once(remote):
    """The gradients of an LSTM cell: gates are concatenated, and states are stacked and summed, from the same
    operands."""

    def step(x, y, total):
        product = x * y
        gates = torch.cat([product.sin(), product.cos()], 1)
        total.add_(torch.stack([x * product, y], 0))
        return gates

    x, y, total = torch.randn(3, 5), torch.randn(3, 5), torch.zeros(2, 3, 5)
    there = [t.to(remote) for t in (x, y, total)]
    for _ in range(2):
        gates, gates_there = step(x, y, total), step(*there)
        torch.testing.assert_close(there[2].cpu(), total)
        torch.testing.assert_close(gates_there.cpu(), gates)


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_as_exact_as_torch(remote, counted, name, dtype):
    function, shapes = CASES[name]
    # In float64, eager itself is the reference, and the error of its library's matmuls is unknown.
    units = 16 if name == "row times matrix" and dtype == torch.float64 else 4
    given = operands(shapes, 37, 130, dtype)
    with counted() as c:
        check_against_f64(function, given, remote, units)
    assert c["kernels_compiled"] >= 1
    with counted() as c:  # other sizes use the same kernel
        check_against_f64(function, operands(shapes, 64, 1000, dtype), remote, units)
        check_against_f64(function, operands(shapes, 3, 17, dtype), remote, units)
    assert c["kernels_compiled"] == 0
    assert c["programs_built"] == 0


MATMULS: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "mm": (lambda x, w: x @ w.t(), [(150, 400), (130, 400)]),
    "addmm": (lambda x, w, b: F.linear(x, w, b), [(150, 400), (130, 400), (130,)]),
    "bmm": (lambda x, y: x @ y, [(6, 70, 400), (6, 400, 90)]),
    "baddbmm": (torch.baddbmm, [(6, 70, 90), (6, 70, 400), (6, 400, 90)]),
}


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="oneDNN does no float32 then")
@pytest.mark.parametrize("name", MATMULS)
def test_large_products_are_done_by_the_faster_library(remote, name):
    """The test includes their gradients, which read transposed operands. The error may be three times eager's."""
    function, shapes = MATMULS[name]
    given = [torch.randn(shape) for shape in shapes]

    def run(operands: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x.cpu() for x in (function(*operands), *gradients(function)(*operands))]

    got = run([x.to(remote) for x in given])
    eager, wanted = run(given), run([x.double() for x in given])
    for ours, plain, want in zip(got, eager, wanted, strict=True):
        assert ours.stride() == plain.stride()
        error, of_eager = ((x.double() - want).abs().max().item() for x in (ours, plain))
        assert error <= 3 * of_eager + 4 * EPS[torch.float32] * want.abs().max().item(), (error, of_eager)
    assert not torch.equal(got[0], eager[0])  # it sums in another order


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])
    (out * out).sum().backward()
    return out.detach(), q.grad, k.grad, v.grad


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("queries, keys", [(70, 70), (1, 130), (33, 65)])
def test_attention_is_as_exact_as_torch(remote, dtype, queries, keys):
    shapes = [lambda n, m: (2, 3, n, 32)] + [lambda n, m: (2, 3, m, 32)] * 2
    check_against_f64(attend, operands(shapes, queries, keys, dtype), remote)


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_each_time(remote, name):
    function, shapes = CASES[name]
    given = [x.to(remote) for x in operands(shapes, 300, 700, torch.float32)]
    first = listed(function(*given))
    for _ in range(3):
        for a, b in zip(first, listed(function(*given)), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["gelu backward", "layer_norm", "softmax", "rope"])
def test_compiled_graphs_are_fused(remote, counted, name):
    torch._dynamo.reset()
    plain, shapes = CASES[name]

    def function(*given):  # makes a kernel that no other test has made
        return tuple((result * 3).atan() - 1 for result in listed(plain(*given)))

    compiled = torch.compile(function, backend="remote", dynamic=True)
    for sizes, least in (((37, 130), 1), ((64, 1000), 0), ((5, 17), 0)):
        given = operands(shapes, *sizes, torch.float32)
        with counted() as c:
            got = listed(compiled(*[x.to(remote) for x in given]))
            for a, b in zip(listed(function(*given)), got, strict=True):
                torch.testing.assert_close(b.cpu(), a)
            torch.remote.synchronize()
        assert c["kernels_compiled"] >= least
        assert least or (c["kernels_compiled"], c["programs_built"]) == (0, 0)


def peak_of(function: Callable[[], torch.Tensor]) -> int:
    """Bytes in addition to the memory in use before. The kernels are compiled."""
    for _ in range(2):
        function()
        torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    torch.remote.reset_peak_memory_stats()
    result = function()
    torch.remote.synchronize()
    del result
    return torch.remote.max_memory_allocated() - before


def test_groups_keep_no_more_than_their_ops_alone(remote):
    x = torch.randn(256, 1024).to(remote)  # 1 MiB
    sizes = [8, *x.shape]

    def function():
        total = torch.zeros(sizes, device=remote)
        for k in range(8):
            total = total + torch.ops.aten.select_backward(x, sizes, 0, k)
        return total.exp()

    assert peak_of(function) <= 3.5 * 8 * x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_many_slices_are_added_up(remote, dtype):
    def gradient(device):
        torch.manual_seed(0)
        x = torch.randn(64, 12, 60).to(dtype).to(device).requires_grad_()
        y = torch.zeros(64, 60, dtype=dtype, device=device)
        for t in [*range(12), -1, -12, 3, 3]:
            y = y * 0.5 + x[:, t] * (t + 1)  # exact except for the sums
        z = x.sum() + y.sum()
        for begin in range(8):
            z = z + (x[:, begin : begin + 5 : 2] * begin).sum() + x[begin % 4].sum()
        return torch.autograd.grad(z, x)[0].cpu()

    assert torch.equal(gradient(remote), gradient("cpu"))


def test_gradients_of_many_slices_are_no_tensors(remote):
    x = torch.randn(64, 20, 256).to(remote).requires_grad_()

    def gradient():
        y = torch.zeros(64, 256, device=remote)
        for t in range(20):
            y = torch.tanh(y + x[:, t])
        return torch.autograd.grad(y.sum(), x)[0]

    gradient().cpu()
    with torch.remote.profile() as profile:
        gradient().cpu()
    ops = Counter(op.name for worker in profile.recording.workers for op in worker.ops)
    assert ops["remote::add_select_backward"] >= 17 and ops["aten::select_backward"] <= 2, ops


def test_results_take_the_place_of_what_is_dead(remote):
    x, w = torch.randn(1024, 1024).to(remote), torch.randn(1024, 1024).to(remote)  # 4 MiB

    def function():
        t = x @ w
        return (F.gelu(t) * 2 - 1) @ w

    compiled = torch.compile(function, backend="remote")  # a single program, however expensive the matmuls are
    assert peak_of(compiled) <= 2.1 * x.nbytes


def test_what_took_a_place_is_right_when_its_ops_are_done_alone(remote):
    x, w, table = torch.randn(512, 512), torch.randn(512, 512), torch.randn(10, 4)
    on = [a.to(remote) for a in (x, w, table)]
    bad = torch.tensor([3, 10]).to(remote)

    def function(x, w):
        t = x @ w
        u = F.gelu(t)
        return u @ w + (u * t) @ w

    close = {"rtol": 1e-4, "atol": 0.05}
    torch.testing.assert_close(function(*on[:2]).cpu(), function(x, w), **close)  # compiles its kernel
    x, w, table = on
    t = x @ w
    rows = F.embedding(bad, table)
    u = F.gelu(t)
    got = u @ w + (u * t) @ w
    torch.testing.assert_close(got.cpu(), function(x.cpu(), w.cpu()), **close)
    with pytest.raises(IndexError, match="out of range"):
        rows.cpu()


def test_what_lies_across_is_done_by_a_kernel(remote, counted):
    x, y = torch.randn(200, 300), torch.randn(300, 200)
    with counted() as c:
        got = x.to(remote).t() + y.to(remote) * 2
        assert got.stride() == (x.t() + y * 2).stride() == (1, 300)
        torch.testing.assert_close(got.cpu(), x.t() + y * 2)
        torch.remote.synchronize()
    assert c["kernels_compiled"] == 1


def test_integers_are_exact(remote):
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        info = torch.iinfo(dtype)
        x = torch.randint(info.min, info.max, (100, 33), dtype=dtype)
        y = torch.randint(1, 100, (100, 33), dtype=dtype)

        def function(x, y):
            z = (x * y + x).bitwise_xor(y) - (x >> 1)
            return z, (z > x).sum(0), torch.where(x < y, z, x).amax(-1), z.sum()

        for a, b in zip(function(x, y), function(x.to(remote), y.to(remote)), strict=True):
            assert torch.equal(a, b.cpu())


def test_division_of_integers_by_zero_is_torchs_error(remote):
    x, zeros = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    for function in (
        lambda x, y: (x * 1) // y + 1,
        lambda x, y: (x * 1) % y + 1,
        lambda x, y: torch.fmod(x * 1, y) + 1,
        lambda x, y: (x * 1) // 0 + 1,
        lambda x, y: (x * 1) % 0 + 1,
    ):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(x, zeros)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            print(function(x.to(remote), zeros.to(remote)))
    # a divisor that is a number is known to be nonzero
    by = {k: ((x.to(remote) * 1) // k + 1).cpu() for k in (2, -3, 1)}
    assert all(torch.equal(got, x // k + 1) for k, got in by.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_numbers_that_a_dtype_does_not_hold_are_torchs_error(remote, dtype):
    x = torch.full((64,), 2.0, dtype=dtype)
    inside = x.to(remote)

    def run(x: torch.Tensor, number: float) -> torch.Tensor:
        return torch.addcmul(x, x, x, value=number) * 0.5

    for number in (2.0, 3.0):
        torch.testing.assert_close(run(inside, number).cpu(), run(x, number))
    for device in (x, inside):
        with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
            run(device, 1e300).cpu()
    for number in (float("inf"), 2.0):
        torch.testing.assert_close(run(inside, number).cpu(), run(x, number))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: torch.add(x * 2, x, alpha=k) * 3,
        lambda x, k: (x * 2) ** k + 1,
        lambda x, k: (x * 2).clamp(1, k) + 1,
    ],
    ids=["alpha", "exponent", "bound"],
)
def test_numbers_that_integers_do_not_hold_are_torchs_error(remote, function):
    x = torch.randint(0, 9, (64,), dtype=torch.uint8)
    inside = x.to(remote)
    for number in (2, 3, 255):
        assert torch.equal(function(inside, number).cpu(), function(x, number))
    for device in (x, inside):
        with pytest.raises(RuntimeError, match="value cannot be converted to type uint8_t without overflow"):
            function(device, 300).cpu()
    assert torch.equal(function(inside, 3).cpu(), function(x, 3))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_of_slices_with_steps(remote, dim):
    x = torch.randn(13, 12, 11)
    items = [slice(None, None, 2), slice(1, None, 2), slice(2, 9, 3), slice(4, -1, 1), slice(None, None, 5), 3]

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        whole = (x * 1.5).movedim(dim, 0)
        loss = sum((whole[item].sigmoid() * (i + 1)).sum() for i, item in enumerate(items))
        even, odd = whole[0:10:2], whole[1:10:2]
        turned = torch.stack((even * 0.5 - odd, odd * 0.5 + even), -1).flatten(-2)
        (loss + turned.square().mean()).backward()
        return x.grad

    expected = step(x)
    for _ in range(2):
        torch.testing.assert_close(step(x.to("remote")).cpu(), expected)


def test_a_conversion_to_a_half_type_rounds(remote):
    """The remainder of splitting a number into two bfloat16 values is exact. This is how bfloat16 sums reach float32
    precision."""
    x = torch.randn(64, 33)

    def parts(x):
        high = x.to(torch.bfloat16)
        rest = x - high.float()
        return high, rest, rest.to(torch.float16).float() * 2

    for want, got in zip(parts(x), parts(x.to(remote)), strict=True):
        assert torch.equal(got.cpu(), want)


def test_lists_behind_a_number_are_whole(remote):
    tensors = [torch.rand(700), torch.rand(100)]
    got = torch._foreach_pow(0.75, [x.to(remote) for x in tensors])
    for x, power in zip(tensors, [y * 1 for y in got], strict=True):
        torch.testing.assert_close(power.cpu(), 0.75**x)


def test_nan_and_infinity_go_through(remote):
    x = torch.tensor([[float("nan"), 1.0, -0.0, 3.0], [float("inf"), -float("inf"), 0.0, 1e-45]])
    for function in (
        lambda x: (x * 2).relu().amax(-1),
        lambda x: torch.maximum(x, -x).clamp(-1, 1),
        lambda x: torch.softmax(x + 1, -1),
        lambda x: (x * 1).isnan() | (x + 1).isinf(),
        lambda x: torch.sign(x * 1.0) / (x + 0.0),
    ):
        torch.testing.assert_close(function(x.to(remote)).cpu(), function(x), equal_nan=True)


@pytest.mark.parametrize("tokens", ((1, 4), (2, 16), (4, 64)), ids=str)
def test_gradients_of_embeddings_beside_a_sum_of_all(remote, tokens):
    """Threads partition the columns of one output and the rows of the other."""
    torch.manual_seed(0)
    tables = [torch.randn(50, 32), torch.randn(2, 32), torch.randn(tokens[1], 32)]
    words = torch.randint(0, 50, tokens)
    places = [words, words % 2, torch.arange(tokens[1])]

    def gradients(device):
        weights = [t.to(device).requires_grad_() for t in tables]
        y = sum(F.embedding(p.to(device), w) for p, w in zip(places, weights, strict=True)).tanh()
        return [y.detach().square().mean(), *torch.autograd.grad((y * y).sum(), weights)]

    for got, want in zip(gradients(remote), gradients("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_gradients_of_embeddings_behind_a_norm(remote):
    """The gradients of the norm's weights are sums over rows."""
    torch.manual_seed(0)
    table, weight, places = torch.randn(50, 32), torch.rand(32), torch.randint(0, 50, (4, 16))

    def gradients(device):
        weights = [t.to(device).requires_grad_() for t in (table, weight)]
        y = F.layer_norm(F.embedding(places.to(device), weights[0]), (32,), weights[1]).tanh()
        return torch.autograd.grad(y, weights, torch.linspace(0, 1, y.numel()).view_as(y).to(device))

    for got, want in zip(gradients(remote), gradients("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_an_embedding_is_part_of_a_kernel(remote, counted):
    table, places = torch.randn(50, 64), torch.randint(0, 50, (7, 9))
    with counted() as c:
        got = F.embedding(places.to(remote), table.to(remote)) * 2 + 1
        assert torch.equal(got.cpu(), F.embedding(places, table) * 2 + 1)
        torch.remote.synchronize()
    assert c["kernels_compiled"] == 1


def test_a_bad_index_is_an_error_and_changes_nothing(remote):
    table = torch.randn(50, 64, device=remote)
    places = torch.zeros(100, dtype=torch.int64)
    places[99] = 1000
    sums = torch.ones(100, 64, device=remote)
    torch.remote.synchronize()
    with pytest.raises(IndexError, match="index out of range in self"):
        print(F.embedding(places.to(remote), table) * 2 + 1)
    sums.add_(F.embedding(places.to(remote), table))
    with pytest.raises(IndexError, match="index out of range in self"):
        torch.remote.synchronize()
    assert torch.equal(sums.cpu(), torch.ones(100, 64))


STEPS = {
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw, amsgrad": (torch.optim.AdamW, {"amsgrad": True, "betas": (0.3, 0.95)}),
    "adam": (torch.optim.Adam, {}),
    "adam, maximize": (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "sgd, nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
}


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_fused_optimizers_are_kernels(remote, counted, name, dtype):
    kind, options = STEPS[name]
    half = dtype in (torch.bfloat16, torch.float16)
    if half and kind is torch.optim.SGD:
        pytest.skip("torch's kernel does no step of SGD's, and another one with other threads")
    shapes = ((300, 40), (1,), (7,), (2, 3, 5), (1000,))
    starts = [torch.randn(shape).to(dtype) for shape in shapes]
    grads = [[torch.randn(shape).to(dtype) for shape in shapes] for _ in range(5)]

    def trained(device):
        parameters = [x.to(device).requires_grad_() for x in starts]
        optimizer = kind(parameters, fused=True, **options)
        for step, some in enumerate(grads):
            for p, g in zip(parameters, some, strict=True):
                p.grad = g.to(device)
            optimizer.param_groups[0]["lr"] *= 0.9 if step else 1
            optimizer.step()
        states = [x for s in optimizer.state.values() for x in s.values() if isinstance(x, torch.Tensor)]
        return [x.detach().cpu() for x in (*parameters, *states)]

    with counted() as c:
        ours = trained(remote)
        torch.remote.synchronize()
    assert c["kernels_compiled"] >= 1
    scale = 1 if half else 4
    for got, want in zip(ours, trained("cpu"), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=scale * EPS[want.dtype], atol=scale * EPS[dtype] * 2)


def test_dropout_draws_what_it_draws_alone(remote):
    x = torch.randn(64, 100, device=remote)
    torch.manual_seed(3)
    fused = F.dropout(x * 2, 0.3)
    torch.manual_seed(3)
    doubled = x * 2
    torch.remote.synchronize()
    assert torch.equal(fused.cpu(), F.dropout(doubled, 0.3).cpu())


def test_optimizer_steps_are_one_kernel(remote, counted):
    def train(device):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(n, 7).to(device)) for n in (3, 50, 400)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
        for step in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            for p in parameters:
                p.grad = torch.full_like(p, 0.5) * p.detach()
            optimizer.step()
        return [p.detach().cpu() for p in parameters]

    with counted() as c:
        got = train(remote)
        torch.remote.synchronize()
    assert c["kernels_compiled"] >= 1
    for a, b in zip(train("cpu"), got, strict=True):
        torch.testing.assert_close(a, b)


def test_profiles_and_explanations_name_kernels(remote):
    x = torch.randn(500, 600, device=remote)
    torch.remote.synchronize()

    def function():
        return (torch.softmax(x.exp() * 0.5, -1) + 1).sum(0).cpu()

    function()
    with torch.remote.profile() as profile:
        function()
    name = "kernel: exp, mul.Tensor, _softmax, 2 more"
    (kernel,) = [op for worker in profile.recording.workers for op in worker.ops if op.end > op.begin]
    assert kernel.name == name
    assert kernel.ops == [f"aten::{op}" for op in ("exp", "mul.Tensor", "_softmax", "add.Tensor", "sum.dim_IntList")]
    assert "test_fusion.py" in kernel.line
    assert name in profile.summary()
    explanation = torch.remote.explain(function)
    assert explanation.kernels == {name: 2}
    assert explanation.ops["aten::_softmax"] == 2
    assert f"fused: 2 {name}" in str(explanation)


GROUP = "\n  group "  # the beginning of a group in a graph's text


def test_graphs_show_their_groups(remote, monkeypatch):
    x = torch.randn(50, 60, device=remote)
    with torch.remote.trace() as trace:
        y = torch.softmax(x.exp() * 0.5, -1) + 1  # noqa: F841 (lives, so that it is computed)
    (graph,) = trace.graphs
    assert GROUP not in str(graph)
    assert str(graph.optimized()).count(GROUP) == 1
    monkeypatch.setenv("TORCH_REMOTE_FUSION", "0")
    assert GROUP not in str(graph.optimized())


def test_a_limit_of_groups_finds_the_wrong_one(remote, monkeypatch):
    """`fuse.limit` is read when a program is built, and counts groups from the first one."""
    x, w = torch.randn(50, 60, device=remote), torch.randn(60, 60, device=remote)
    torch.remote.synchronize()

    def kernels(limit: int) -> list[str]:
        monkeypatch.setenv("TORCH_REMOTE_PASSES", f"fuse.limit={limit}")
        with torch.remote.trace() as trace:
            a = x.exp() * 2
            b = (a @ w).tanh() * 3
            c = (b @ w).sin() * 4  # noqa: F841 (lives, so that it is computed)
        (graph,) = trace.graphs
        groups = str(graph.optimized()).split(GROUP)[1:]
        return [next(op for op in ("exp", "tanh", "sin") if f"aten::{op}(" in group) for group in groups]

    assert [kernels(limit) for limit in range(5)] == [
        [], ["exp"], ["exp", "tanh"], ["exp", "tanh", "sin"], ["exp", "tanh", "sin"]
    ]  # fmt: skip


SWAP = """
    import time, torch, torch_remote
    def f(x):
        return (x.exp() * 0.5).softmax(-1) + 1
    x = torch.randn(64, 100)
    want, y = f(x), x.to("remote")
    deadline = time.time() + 60
    while torch.remote.stats()["kernels_compiled"] == 0:
        torch.testing.assert_close(f(y).cpu(), want)
        torch.remote.synchronize()
        assert time.time() < deadline
    for _ in range(3):
        torch.testing.assert_close(f(y).cpu(), want)
    print("swapped", torch.remote.stats()["kernels_compiled"])
"""


def test_kernels_are_swapped_in_while_the_loop_goes_on(remote, script, tmp_path):
    kernels = tmp_path / "kernels"
    shown = script(SWAP, TORCH_REMOTE_WAIT_COMPILE="0", TORCH_REMOTE_KERNEL_CACHE=str(kernels))
    assert "swapped 1" in shown.stdout, shown.stderr
    assert len(list(kernels.iterdir())) == 1


TUNED = """
    import torch, torch_remote
    def f(x, w):
        return torch.softmax(x * 0.5, -1).mul(w), x.exp() + w
    x, w = torch.randn(1000, 40), torch.randn(40)
    compiled = torch.compile(f, backend="remote", mode=MODE)
    there, wanted = (x.to("remote"), w.to("remote")), f(x, w)
    # So many calls since the last kernel was compiled, and some is to be.
    kernels = calls = 0
    while calls < CALLS or (COMPILES and kernels == 0):
        results = compiled(*there)
        calls += 1
        if calls % 8 == 1:
            for got, want in zip(results, wanted):
                torch.testing.assert_close(got.cpu(), want)
        torch.remote.synchronize()
        if torch.remote.stats()["kernels_compiled"] > kernels:
            kernels, calls = torch.remote.stats()["kernels_compiled"], 0
    print("kernels", kernels)
"""


def test_tuned_programs_choose_and_remember(remote, script, tmp_path):
    """Each group runs with several algorithms. The next process uses the fastest ones without trying again."""
    kernels = tmp_path / "kernels"

    def run(calls: int, compiles: bool, mode: str = "max-autotune-no-cudagraphs") -> tuple[list[str], set[str]]:
        text = TUNED.replace("CALLS", str(calls)).replace("COMPILES", str(compiles)).replace("MODE", repr(mode))
        shown = script(
            text,
            timeout=120,
            TORCH_REMOTE_WAIT_COMPILE="0",
            TORCH_REMOTE_KERNEL_CACHE=str(kernels),
            TORCH_REMOTE_WORKER_LOG="debug",
        )
        told = [line.split("a tuned group ")[1] for line in shown.stderr.splitlines() if "a tuned group " in line]
        return told, {path.name for path in kernels.iterdir()}

    told, plain = run(10, True, "default")
    assert told == []
    told, files = run(150, True)
    assert len(told) >= 1, told
    for line in told:
        assert " took " in line, line
        assert "a kernel for rows of this size took" in line or "node by node took" in line, line
    assert len(files) > len(plain)  # kernels of other variants, and the choices
    chosen = {}
    for line in told:
        ops, way = line.split(") is executed by ")
        if "times vary" not in way:  # on a busy machine, the choice is not stored
            chosen[ops] = way.split(";")[0]
    again, same = run(5, False)
    assert same == files
    assert dict(line.split(") is executed by ") for line in again) == {
        ops: f"{way}, from an earlier choice" for ops, way in chosen.items()
    }


def test_results_of_another_dtype(device):
    """The tensor given to `out` may be wider than the result, which wraps around as on CPU."""

    def full(device, value, dtype):
        return torch.full((70,), value, dtype=dtype, device=device)

    functions = {
        "add": lambda d: torch.add(full(d, 100, torch.int8), full(d, 100, torch.int8), out=full(d, 0.0, torch.float32)),
        "mul": lambda d: torch.mul(full(d, 100, torch.uint8), 100, out=full(d, 0, torch.float32)),
        "bools": lambda d: torch.add(full(d, True, torch.bool), True, out=full(d, 0, torch.int16)),
        "bools that are added": lambda d: (full(d, True, torch.bool) + full(d, True, torch.bool)).to(torch.int16),
        "pow": lambda d: torch.pow(full(d, 3, torch.int8), 5, out=full(d, 0, torch.int64)),
        "a sum, which is not": lambda d: torch.sum(
            full(d, 2.0**24, torch.float32) + torch.arange(70, device=d), 0, out=full(d, 0.0, torch.float64)[0]
        ),
    }
    for name, function in functions.items():
        for _ in range(3):
            assert torch.equal(function(device).cpu(), function("cpu")), name


def test_one_number_of_a_half_type(device, counted):
    """The minimum of two such numbers would be a call of fminf, which kernels do not support."""
    results = []
    for place in (device, torch.device("cpu")):
        x = torch.tensor(-0.7).half().to(place).requires_grad_()
        with counted() as c:
            loss = F.logsigmoid(x)
            (gradient,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
            gradient.float().sum().backward()
            results.append((loss.item(), gradient.item(), x.grad.item()))
        assert c["kernels_compiled"] >= (place == device)
    torch.testing.assert_close(*map(torch.tensor, results), rtol=2e-3, atol=0)
