"""Errors that follow from arguments and metadata are raised at the call, in the user's frame, with torch's type and
text."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def floats(d, *sizes):
    return torch.ones(sizes, device=d)


def doubles(d, *sizes):
    return torch.ones(sizes, device=d, dtype=torch.float64)


def halves(d, *sizes):
    return torch.ones(sizes, device=d, dtype=torch.float16)


def longs(d, *sizes):
    return torch.zeros(sizes, device=d, dtype=torch.int64)


def bytes_(d, *sizes):
    return torch.ones(sizes, device=d, dtype=torch.uint8)


def bools(d, *sizes):
    return torch.ones(sizes, device=d, dtype=torch.bool)


def overlapping(d, *sizes):
    return torch.zeros(1, device=d).expand(sizes)


OVERLAP = "unsupported operation: more than one element of the written-to tensor refers to a single memory location"

MATRIX_PRODUCTS = {
    "mm": lambda d: longs(d, 2, 2) @ floats(d, 2, 2),
    "mm, halves": lambda d: halves(d, 2, 2) @ floats(d, 2, 2),
    "mm, out": lambda d: torch.mm(floats(d, 2, 2), floats(d, 2, 2), out=doubles(d, 2, 2)),
    "bmm": lambda d: torch.bmm(longs(d, 1, 2, 2), floats(d, 1, 2, 2)),
    "matmul, folded": lambda d: doubles(d, 3, 2, 2) @ floats(d, 2, 2),
    "matmul, batches": lambda d: doubles(d, 3, 2, 2) @ floats(d, 3, 2, 2),
    "mv": lambda d: doubles(d, 2, 2) @ floats(d, 2),
    "dot": lambda d: doubles(d, 2) @ floats(d, 2),
    "vdot": lambda d: torch.vdot(doubles(d, 2), floats(d, 2)),
    "addmm": lambda d: torch.addmm(floats(d, 2), doubles(d, 2, 2), floats(d, 2, 2)),
    "addmm, self": lambda d: torch.addmm(doubles(d, 2), floats(d, 2, 2), floats(d, 2, 2)),
    "addmm, sizes": lambda d: torch.addmm(floats(d, 3), floats(d, 1, 3), floats(d, 3, 1), beta=0),
    "addmm, dims": lambda d: torch.addmm(floats(d, 1, 2, 2), floats(d, 2, 2), floats(d, 2, 2), beta=0),
    "addmm, dims, empty": lambda d: torch.addmm(floats(d, 1, 0, 3), floats(d, 0, 2), floats(d, 2, 3)),
    "addmm_": lambda d: overlapping(d, 2, 2).addmm_(floats(d, 2, 2), floats(d, 2, 2)),
    "addbmm": lambda d: torch.addbmm(doubles(d, 2, 2), floats(d, 1, 2, 2), floats(d, 1, 2, 2)),
    "baddbmm": lambda d: torch.baddbmm(floats(d, 1, 2, 2), doubles(d, 1, 2, 2), floats(d, 1, 2, 2)),
    "addmv": lambda d: torch.addmv(doubles(d, 2), floats(d, 2, 2), floats(d, 2)),
    "linear": lambda d: F.linear(floats(d, 2, 2), doubles(d, 2, 2)),
    "linear, bias": lambda d: F.linear(floats(d, 2, 2), floats(d, 2, 2), doubles(d, 2)),
    "Linear": lambda d: nn.Linear(2, 2).to(d)(longs(d, 2, 2)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", doubles(d, 2, 2), floats(d, 2, 2)),
}

DTYPES = {
    "and": lambda d: floats(d, 2) & floats(d, 2),
    "and a number": lambda d: floats(d, 2) & 1,
    "or_": lambda d: floats(d, 2).bitwise_or_(1),
    "not": lambda d: ~floats(d, 2),
    "shift": lambda d: floats(d, 2) << 1,
    "gcd": lambda d: torch.gcd(floats(d, 2), floats(d, 2)),
    "less": lambda d: torch.ones(2, dtype=torch.complex64, device=d) < 1,
    "erfinv": lambda d: torch.erfinv(torch.ones(2, dtype=torch.complex64, device=d)),
    "gelu": lambda d: F.gelu(longs(d, 2)),
    "elu_": lambda d: F.elu(longs(d, 2), inplace=True),
    "softmax": lambda d: torch.softmax(longs(d, 2), 0),
    "layer_norm": lambda d: F.layer_norm(longs(d, 3, 4), (4,)),
    "avg_pool": lambda d: F.avg_pool2d(torch.ones(1, 3, 4, 4, dtype=torch.int32, device=d), 2),
    "inv": lambda d: torch.linalg.inv(longs(d, 2, 2)),
    "mean": lambda d: floats(d, 2).mean(dtype=torch.int64),
    "std": lambda d: longs(d, 2).std(),
    "argmax": lambda d: torch.ones(2, dtype=torch.complex64, device=d).argmax(),
    "lerp": lambda d: torch.lerp(floats(d, 2), doubles(d, 2), 0.5),
    "complex": lambda d: torch.complex(floats(d, 2), doubles(d, 2)),
    "sqrt_": lambda d: longs(d, 2).sqrt_(),
    "logit_": lambda d: longs(d, 2).logit_(),
    "cast": lambda d: longs(d, 2).div_(2),
    "complex, foreach": lambda d: torch._foreach_mul_([floats(d, 2)], 1j),
    "complex, foreach of nothing": lambda d: torch._foreach_add_([floats(d, 0)], 1j),
    "and a float": lambda d: longs(d, 2) & 1.5,
    "shift by a float": lambda d: longs(d, 2) << 1.5,
    "or_ a float": lambda d: longs(d, 2).bitwise_or_(1.5),
    "or_ floats": lambda d: longs(d, 2).bitwise_or_(floats(d, 2)),
    "less than a complex number": lambda d: floats(d, 2) < 1j,
    "less_ than a complex number": lambda d: floats(d, 2).lt_(1j),
    "remainder of a complex number": lambda d: floats(d, 2) % 1j,
    "remainder_ of a complex number": lambda d: floats(d, 2).remainder_(1j),
    "hardtanh": lambda d: F.hardtanh(bytes_(d, 2), -1, 1),
    "hardtanh_": lambda d: F.hardtanh(bytes_(d, 2), -1, 1, inplace=True),
    "arange": lambda d: torch.arange(3, dtype=torch.bool, device=d),
    "arange, from": lambda d: torch.arange(1, 3, dtype=torch.complex64, device=d),
    "arange, step": lambda d: torch.arange(1, 3, 1, dtype=torch.bool, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, dtype=torch.bool, device=d),
    "logspace": lambda d: torch.logspace(0, 1, 3, dtype=torch.bool, device=d),
    "tril_indices": lambda d: torch.tril_indices(2, 2, dtype=torch.float32, device=d),
    "foreach_norm": lambda d: torch._foreach_norm([floats(d, 2)], 2, dtype=torch.complex64),
    "foreach_norm, narrower": lambda d: torch._foreach_norm([doubles(d, 2)], 2, dtype=torch.float32),
    "foreach_norm of nothing": lambda d: torch._foreach_norm([floats(d, 0)], float("inf")),
    "repeat_interleave": lambda d: torch.repeat_interleave(floats(d, 2), output_size=2),
    "stack, out": lambda d: torch.stack([floats(d, 2)] * 2, out=longs(d, 2, 2)),
    "stack, transposed, out": lambda d: torch.stack([floats(d, 2, 3).t()] * 2, out=longs(d, 2, 3, 2)),
}

NUMBERS = {
    "uniform_": lambda d: floats(d, 2).uniform_(5, 1),
    "uniform_, too far": lambda d: floats(d, 2).uniform_(-3e38, 3e38),
    "uniform_, halves": lambda d: halves(d, 2).uniform_(0, 1e6),
    "uniform_, integers": lambda d: longs(d, 2).uniform_(),
    "normal_": lambda d: floats(d, 2).normal_(0, -1),
    "normal_, NaN": lambda d: floats(d, 2).normal_(0, float("nan")),
    "normal_, integers": lambda d: longs(d, 2).normal_(),
    "normal": lambda d: torch.normal(floats(d, 2), -1.0),
    "normal, sizes": lambda d: torch.normal(floats(d, 2), floats(d, 3)),
    "random_": lambda d: floats(d, 2).random_(5, 1),
    "random_, zero": lambda d: longs(d, 2).random_(0),
    "random_, bytes": lambda d: torch.ones(2, dtype=torch.uint8, device=d).random_(0, 300),
    "randint": lambda d: torch.randint(5, 1, (2,), device=d),
    "randperm": lambda d: torch.randperm(70000, dtype=torch.float16, device=d),
    "bernoulli_": lambda d: floats(d, 2).bernoulli_(2.0),
    "bernoulli_, sizes": lambda d: floats(d, 2).bernoulli_(floats(d, 3)),
    "bernoulli_, dims": lambda d: floats(d, 2).bernoulli_(floats(d, 2, 2)),
    "bernoulli_, overlap": lambda d: (lambda x: x[1:].bernoulli_(x[:-1]))(floats(d, 3)),
    "bernoulli": lambda d: torch.bernoulli(floats(d, 2), 2.0),
    "bernoulli, sizes": lambda d: torch.ops.aten.bernoulli.Tensor(floats(d, 2), floats(d, 3)),
    "exponential_": lambda d: floats(d, 2).exponential_(-1.0),
    "exponential_, integers": lambda d: longs(d, 2).exponential_(),
    "cauchy_": lambda d: floats(d, 2).cauchy_(0, 0),
    "log_normal_": lambda d: floats(d, 2).log_normal_(0, -1),
    "geometric_": lambda d: floats(d, 2).geometric_(2.0),
    "dropout": lambda d: F.dropout(floats(d, 2), 2.0),
    "multinomial": lambda d: torch.multinomial(floats(d, 2), 5),
    "gelu": lambda d: F.gelu(floats(d, 2), approximate="x"),
    "gelu_": lambda d: torch.ops.aten.gelu_(floats(d, 2), approximate="x"),
    "softshrink": lambda d: F.softshrink(floats(d, 2), -1),
    "celu": lambda d: F.celu(floats(d, 2), 0.0),
    "clamp": lambda d: torch.clamp(floats(d, 2)),
    "div": lambda d: torch.div(floats(d, 2), 2, rounding_mode="x"),
    "kthvalue": lambda d: torch.kthvalue(floats(d, 3), 5),
    "topk": lambda d: torch.topk(floats(d, 3), 5),
    "histc": lambda d: torch.histc(floats(d, 2), min=3, max=1),
    "searchsorted": lambda d: torch.searchsorted(floats(d, 2), floats(d, 2), side="x"),
    "bucketize": lambda d: torch.bucketize(floats(d, 2), floats(d, 2, 2)),
    "svd": lambda d: torch.linalg.svd(floats(d, 2, 3), driver="gesvd"),
    "flip": lambda d: floats(d, 3).flip(0, 0),
    "foreach": lambda d: torch._foreach_add([floats(d, 2)], []),
    "foreach_copy_, sizes": lambda d: torch._foreach_copy_([floats(d, 2), floats(d, 3)], [floats(d, 2), floats(d, 2)]),
    "foreach_copy_, dims": lambda d: torch._foreach_copy_([floats(d, 2)], [floats(d, 2, 2)]),
}

LAYERS = {
    "groups": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), groups=3),
    "no groups": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), groups=0),
    "groups of results": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 3, 2, 3, 3), groups=2),
    "channels": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 3, 3, 3)),
    "padding": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), padding=-1),
    "stride": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), stride=0),
    "dilation": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), dilation=0),
    "too small": lambda d: F.conv2d(floats(d, 1, 4, 2, 2), floats(d, 4, 4, 3, 3)),
    "bias": lambda d: F.conv2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), floats(d, 3)),
    "dtypes": lambda d: F.conv2d(doubles(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3)),
    "transposed, channels": lambda d: F.conv_transpose2d(floats(d, 1, 4, 5, 5), floats(d, 3, 4, 3, 3)),
    "transposed, groups": lambda d: F.conv_transpose2d(floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), groups=3),
    "transposed, padding": lambda d: F.conv_transpose2d(
        floats(d, 1, 4, 5, 5), floats(d, 4, 4, 3, 3), output_padding=-1
    ),
    "embedding": lambda d: F.embedding(longs(d, 3), floats(d, 3)),
    "layer_norm": lambda d: F.layer_norm(floats(d, 3, 4), (5,)),
    "group_norm": lambda d: F.group_norm(floats(d, 3, 4, 5), 2, doubles(d, 4)),
    "batch_norm": lambda d: nn.BatchNorm1d(3).to(d)(floats(d, 2, 4)),
    "max_pool": lambda d: F.max_pool2d(floats(d, 1, 3, 4, 4), 5),
    "adaptive_pool": lambda d: F.adaptive_avg_pool2d(floats(d, 4), 2),
    "grid": lambda d: F.grid_sample(floats(d, 1, 3, 4, 4), floats(d, 2, 2, 2, 2)),
    "grid, dtypes": lambda d: F.grid_sample(floats(d, 1, 3, 4, 4), doubles(d, 1, 2, 2, 2)),
    "pixel_shuffle": lambda d: F.pixel_shuffle(floats(d, 1, 3, 4, 4), 2),
    "fold": lambda d: F.fold(floats(d, 1, 3, 4), (4, 4), (2, 2)),
    "unfold": lambda d: F.unfold(floats(d, 1, 3, 4, 4), (5, 5)),
    "nll_loss": lambda d: F.nll_loss(floats(d, 3, 4), longs(d, 3), weight=doubles(d, 4)),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(floats(d, 3), doubles(d, 3)),
    "multi_margin_loss": lambda d: F.multi_margin_loss(floats(d, 5, 4), longs(d, 4)),
}

INDICES = {
    "masked_select": lambda d: torch.masked_select(floats(d, 3), floats(d, 3)),
    "masked_fill": lambda d: floats(d, 3).masked_fill(floats(d, 3), 1),
    "masked_fill_": lambda d: floats(d, 3).masked_fill_(floats(d, 3), 1),
    "masked_scatter": lambda d: floats(d, 3).masked_scatter(floats(d, 3), floats(d, 3)),
    "masked_scatter, dtypes": lambda d: floats(d, 3).masked_scatter(bools(d, 3), doubles(d, 3)),
    "take": lambda d: torch.take(floats(d, 3), floats(d, 3)),
    "put_": lambda d: floats(d, 3).put_(longs(d, 2), floats(d, 3)),
    "put_, dtypes": lambda d: floats(d, 3).put_(longs(d, 2), doubles(d, 2)),
    "index_fill": lambda d: floats(d, 2, 2).index_fill(0, floats(d, 2), 1),
    "index_select": lambda d: floats(d, 2, 2).index_select(0, floats(d, 2)),
    "index_put_": lambda d: floats(d, 2, 2).index_put_((longs(d, 2),), doubles(d, 2)),
    "index_put_, sizes": lambda d: floats(d, 2, 2).index_put_((longs(d, 2),), floats(d, 3)),
    "index_put_, two": lambda d: floats(d, 2, 3, 4).index_put_((longs(d, 5), longs(d, 5)), floats(d, 5, 3)),
    "index_put_, floats": lambda d: floats(d, 2, 2).index_put_((floats(d, 2),), floats(d, 2)),
    "index_put_, a mask": lambda d: floats(d, 2, 3).index_put_((bools(d, 3),), floats(d, 1)),
    "index_put_, two masks": lambda d: floats(d, 2, 3).index_put_((bools(d, 2), bools(d, 2)), floats(d, 1)),
    "index_put_, too many": lambda d: floats(d, 2, 3).index_put_((longs(d, 1),) * 3, floats(d, 1)),
    "index_put, floats": lambda d: floats(d, 2, 2).index_put((floats(d, 2),), floats(d, 2)),
    "index_put, dtypes": lambda d: floats(d, 2, 2).index_put((longs(d, 2),), doubles(d, 2)),
    "index_put, sizes": lambda d: floats(d, 2, 2).index_put((longs(d, 2),), floats(d, 3)),
    "assignment": lambda d: floats(d, 2, 3).__setitem__(floats(d, 2), 1.0),
    "assignment of a number, no mask": lambda d: floats(d, 3).__setitem__(longs(d, 2), torch.tensor(5)),
    "assignment of a large number": lambda d: halves(d, 3).__setitem__(bools(d, 3), torch.tensor(10**6)),
    "assignment of a complex number": lambda d: floats(d, 3).__setitem__(bools(d, 3), torch.tensor(1j)),
    "assignment, a mask": lambda d: floats(d, 2, 3).__setitem__(bools(d, 2, 4), 1.0),
    "index_fill, dim": lambda d: floats(d, 2, 2).index_fill(5, longs(d, 2), 1),
    "index_fill, complex": lambda d: floats(d, 2, 2).index_fill(0, longs(d, 2), 1j),
    "index_fill, a tensor": lambda d: floats(d, 2, 2).index_fill(0, longs(d, 2), floats(d, 2)),
    "index_add": lambda d: floats(d, 2, 2).index_add(0, longs(d, 2), floats(d, 2, 3)),
    "gather": lambda d: floats(d, 2, 2).gather(0, floats(d, 2, 2)),
    "where": lambda d: torch.where(floats(d, 2), floats(d, 2), floats(d, 2)),
    "take, out": lambda d: torch.take(floats(d, 3), longs(d, 3), out=overlapping(d, 3)),
    "cumsum, out": lambda d: torch.cumsum(floats(d, 3), 0, out=overlapping(d, 3)),
    "index_select, out": lambda d: torch.index_select(floats(d, 3), 0, longs(d, 3), out=overlapping(d, 3)),
    "masked_select, out": lambda d: torch.masked_select(floats(d, 3), bools(d, 3), out=overlapping(d, 3)),
    "masked_select, dtype of out": lambda d: torch.masked_select(floats(d, 3), bools(d, 3), out=doubles(d, 3)),
    "index_select, dtype of out": lambda d: torch.index_select(floats(d, 3), 0, longs(d, 3), out=doubles(d, 3)),
    "nonzero, dtype of out": lambda d: torch.nonzero(floats(d, 3), out=floats(d, 3, 1)),
    "roll, dtype of out": lambda d: torch.ops.aten.roll.out(floats(d, 3), [1], [0], out=doubles(d, 3)),
}


def copy_within(d, to, source):
    x = torch.zeros(2, 2, dtype=torch.complex64, device=d)
    return to(x).copy_(source(x))


COPIES = {
    "shifted": lambda d: copy_within(d, lambda x: x[1:], lambda x: x.flatten()[1:3]),
    "transposed": lambda d: copy_within(d, lambda x: x, lambda x: x.t()),
    "conjugate, shifted": lambda d: copy_within(d, lambda x: x[1:], lambda x: x.conj().flatten()[1:3]),
    "conjugate, transposed": lambda d: copy_within(d, lambda x: x, lambda x: x.t().conj()),
    "to a conjugate": lambda d: copy_within(d, lambda x: x.conj(), lambda x: x.t()),
    "conjugate of another rank": lambda d: copy_within(d, lambda x: x[:1, 0], lambda x: x[0, 0].conj()),
}

GROUPS = {
    "products": MATRIX_PRODUCTS,
    "dtypes": DTYPES,
    "numbers": NUMBERS,
    "layers": LAYERS,
    "indices": INDICES,
    "copies": COPIES,
}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, calls in GROUPS.items() for name in calls])
def test_wrong_calls_raise_as_on_cpu(device, group, name):
    call = GROUPS[group][name]
    with pytest.raises(Exception) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as got:
        call(device)
    text = str(got.value).replace("torch.remote.", "torch.").partition(" [aten::")[0]
    text = text.replace("remoteFloatType", "torch.FloatTensor")  # torch's name of the tensor's type
    assert text.split() == str(expected.value).split()


def test_more_dims_than_a_trace_holds(remote):
    one, many = torch.ones(1, device=remote), [1] * 65
    x = torch.ones([1] * 64, device=remote)
    calls = {
        "a factory": lambda: torch.ones(many, device=remote),
        "a view": lambda: one.reshape(many),
        "expand": lambda: one.expand(many),
        "unsqueeze": lambda: x.unsqueeze(0),
        "None": lambda: x[None],
        "as_strided": lambda: one.as_strided(many, many),
        "resize_": lambda: torch.ones(1, device=remote).resize_(many),
        "a copy": lambda: torch.ones(many).to(remote),
        "a result": lambda: torch.stack([x, x]),
        "view_as_real": lambda: torch.view_as_real(torch.ones([1] * 64, dtype=torch.complex64, device=remote)),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=r"only tensors with up to 64 dims are supported.*got one of 65"):
            call()
            raise AssertionError(name)
    assert (x * 2).sum().item() == 2


def test_operands_stay_their_callers(remote):
    """Calls, including those that fail, neither keep references to operands nor drop references that they do not
    own."""
    x, y = torch.ones(3, 4, device=remote), torch.ones(3, 5, device=remote)
    lazy = torch.ones(3, 4, dtype=torch.complex64, device=remote).conj()
    operands = (x, y, lazy)
    counts = [t._use_count() for t in operands]
    wrong = [lambda: x + y, lambda: x.add_(y), lambda: x @ y, lambda: y.mul_(x), lambda: torch.addmm(y, x, x)]
    for _ in range(5):
        kept = [x * 1.5, x + x, x.relu(), x.softmax(0), x.t() @ y, torch.lerp(x, x, 0.5), x.clamp(0, 1), lazy * 2]
        kept += [x.add_(x), x.mul_(0.5), lazy.clone().add_(lazy), torch.where(x > 0, x, x)]
        for call in wrong:
            with pytest.raises(RuntimeError):
                call()
        del kept
    assert [t._use_count() for t in operands] == counts
    assert [t.sum().item() for t in operands] == [12, 15, 12]


def test_a_generator_of_another_device(remote):
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'remote'"):
        torch.randn(3, generator=torch.Generator(remote))
    with pytest.raises(RuntimeError, match="Expected a 'remote' device type for generator but found 'cpu'"):
        torch.randn(3, generator=torch.Generator("cpu"), device=remote)


def test_mixed_devices_in_torchs_words(remote):
    with pytest.raises(
        RuntimeError,
        match="Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors on "
        "remote:0",
    ):
        torch.ones(2, 2, device=remote) @ torch.ones(2, 2)


def test_new_memory_is_filled_for_deterministic_algorithms(device, equal):
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.uint8, torch.bool):
            for make in (
                lambda d, dtype=dtype: torch.empty(3, 2, device=d, dtype=dtype),
                lambda d, dtype=dtype: torch.empty_strided((2, 3), (1, 2), device=d, dtype=dtype),
                lambda d, dtype=dtype: torch.ones(2, device=d, dtype=dtype).new_empty(3),
                lambda d, dtype=dtype: torch.empty_like(torch.ones(2, device=d, dtype=dtype)),
                lambda d, dtype=dtype: torch.ones(2, device=d, dtype=dtype).resize_(5),
            ):
                equal(make(device), make("cpu"))
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.empty(3, device=device)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


def test_compiled_graphs_raise_what_eager_code_does(remote):
    compiled = torch.compile(lambda a, b: a @ b, backend="remote", fullgraph=True)
    with pytest.raises(Exception, match="expected m1 and m2 to have the same dtype"):
        compiled(floats(remote, 2, 2), doubles(remote, 2, 2)).cpu()  # torch's fake tensors do not check this
    assert compiled(floats(remote, 2, 2), floats(remote, 2, 2)).sum().item() == 8


def test_an_exported_program_names_the_argument(remote):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, features, scale):
            return self.layer(features) * scale

    program = torch.export.export(Model(), (torch.ones(2, 3), torch.ones(2, 3)))
    module = torch.remote.load_exported(program)
    with pytest.raises(RuntimeError, match="argument 'scale' of a compiled graph must be on remote:0, got one on cpu"):
        module(torch.ones(2, 3, device=remote), torch.ones(2, 3))


@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod])
def test_an_out_of_another_size_is_resized_before_it_is_looked_at(remote, function):
    out = overlapping("remote", 2, 2)
    expected = function(torch.arange(1.0, 7).view(2, 3), 1)
    function(expected.new_tensor([[1.0, 2, 3], [4, 5, 6]]).to("remote"), 1, out=out)
    assert torch.equal(out.cpu(), expected)


# Each makes a result of shape [3, 3], or a pair of such results.
RESULTS = {
    "sum": lambda x, out: torch.sum(x.expand(2, 3, 3), 0, out=out),
    "amax": lambda x, out: torch.amax(x.expand(2, 3, 3), 0, out=out),
    "mean": lambda x, out: torch.mean(x.expand(2, 3, 3), 0, out=out),
    "prod": lambda x, out: torch.prod(x.expand(2, 3, 3), 0, out=out),
    "norm": lambda x, out: torch.linalg.vector_norm(x.expand(2, 3, 3), dim=0, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 1, out=out),
    "cumprod": lambda x, out: torch.cumprod(x, 0, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "addmm": lambda x, out: torch.addmm(x, x, x, out=out),
    "sort": lambda x, out: torch.sort(x, 1, out=(out, torch.zeros(3, 3, device=x.device, dtype=torch.int64))),
    "cat": lambda x, out: torch.cat([x[:1], x[1:]], out=out),
    "softmax": lambda x, out: torch.softmax(x, 1, out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, longs(x.device, 3), out=out),
}
SHARED_STRIDES = [(0, 1), (1, 0), (0, 0), (1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize("strides", SHARED_STRIDES, ids=str)
@pytest.mark.parametrize("name", RESULTS)
def test_an_out_whose_elements_share_memory(remote, name, strides):
    """CPU refuses some of these and writes others. If several values have the same address, any of them may remain."""
    shown = []
    for device in ("cpu", "remote"):
        base = torch.full((20,), -7.0, device=device)
        x = torch.tensor([[4.0, 2, 3], [1, 5, 2], [2, 3, 1]], device=device)
        try:
            RESULTS[name](x, base.as_strided((3, 3), strides, 2))
            shown.append(base.cpu())
        except RuntimeError as error:
            shown.append(str(error).split(" [aten::")[0])
    expected, got = shown
    if isinstance(expected, str) or isinstance(got, str):
        assert got == expected
    elif 0 in strides:
        assert torch.equal(got, expected)
    else:
        assert torch.equal(got == -7, expected == -7)
