"""torch's flags for matmuls and convolutions (TF32, deterministic mode) on an emulated GPU."""

import hashlib
import os
import sys
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from python_processes import run_python


@contextmanager
def flags(products=False, convolutions=False, deterministic=False):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
    torch.use_deterministic_algorithms(deterministic)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
        torch.use_deterministic_algorithms(False)


def tf32(x):
    """Rounds to TF32's 10 fraction bits."""
    if x.is_complex():
        return torch.view_as_complex(tf32(torch.view_as_real(x)))
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def error(there, expected):
    return (there.cpu() - expected).abs().max().item()


MATMULS = {
    "mm": lambda x, w: x @ w,
    "bmm": lambda x, w: torch.bmm(x.expand(3, -1, -1), w.expand(3, -1, -1)),
    "linear": lambda x, w: F.linear(x, w.T),
    "relu of linear": lambda x, w: torch.relu(F.linear(x, w.T)),
}


@pytest.mark.parametrize("name", MATMULS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_products_are_tf32_if_allowed(remote, name, dtype):
    if dtype.is_complex and name == "relu of linear":
        pytest.skip("no such op")
    x, w = torch.randn(32, 64, dtype=dtype), torch.randn(64, 16, dtype=dtype)
    product = MATMULS[name]
    exact, low = product(x, w), product(tf32(x), tf32(w))
    inside, weight = x.to(remote), w.to(remote)
    for allowed in (False, True, False, True):
        with flags(products=allowed):
            there = product(inside, weight)
            assert error(there, low if allowed else exact) < 1e-4 < error(there, exact if allowed else low)


def test_other_dtypes_stay_as_they_are(remote):
    x, w = torch.randn(32, 64).double(), torch.randn(64, 16).double()
    with flags(products=True, convolutions=True):
        assert error(x.to(remote) @ w.to(remote), x @ w) < 1e-12


@pytest.mark.parametrize("precision, is_low", [("highest", False), ("high", True), ("medium", True)])
def test_precision_of_products(remote, precision, is_low):
    x, w = torch.randn(32, 64), torch.randn(64, 16)
    torch.set_float32_matmul_precision(precision)
    try:
        there = x.to(remote) @ w.to(remote)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (error(there, x @ w) > 1e-4) == is_low


def test_flags_of_one_op_among_others(remote):
    """In one trace, each matmul uses the flag at its call, and nothing waits."""
    x, w = torch.randn(32, 64), torch.randn(64, 64) / 8
    inside, weight = x.to(remote), w.to(remote)
    for _ in range(3):
        torch.remote.synchronize()
        before = dict(torch.remote.stats())
        first = inside @ weight
        with flags(products=True):
            second = first @ weight
        third = second @ weight
        after = dict(torch.remote.stats())
        assert after["round_trips"] == before["round_trips"]
        exact = x @ w
        low = tf32(exact) @ tf32(w)
        assert error(first, exact) < 1e-5
        assert error(second, low) < 1e-4 < error(second, exact @ w)
        assert error(third, low @ w) < 1e-4
    assert after["programs_built"] == before["programs_built"]  # the last time


def test_a_changed_flag_builds_no_program(remote):
    x, w = torch.randn(32, 64), torch.randn(64, 16)
    inside, weight = x.to(remote), w.to(remote)

    def step():
        return torch.tanh(inside @ weight + 1).cpu()

    for _ in range(2):
        exact = step()
    built = torch.remote.stats()["programs_built"]
    with flags(products=True):
        low = step()
    assert torch.remote.stats()["programs_built"] == built
    assert not torch.equal(exact, low)
    assert torch.equal(step(), exact)


def test_compiled_graphs(remote):
    x, w = torch.randn(32, 64), torch.randn(64, 16)
    inside, weight = x.to(remote), w.to(remote)
    compiled = torch.compile(lambda x, w: torch.tanh(x @ w), backend="remote")
    for allowed in (False, True, False):
        with flags(products=allowed):
            there = compiled(inside, weight)
        expected = torch.tanh(tf32(x) @ tf32(w) if allowed else x @ w)
        assert error(there, expected) < 1e-5


def test_convolutions_are_tf32_if_allowed(remote):
    x, w = torch.randn(2, 8, 9, 9), torch.randn(6, 8, 3, 3)
    exact, low = F.conv2d(x, w), F.conv2d(tf32(x), tf32(w))
    inside, weight = x.to(remote), w.to(remote)
    for allowed in (False, True, False, True):
        # Deterministic mode uses the heuristic's first choice, even if memory is short.
        with flags(convolutions=allowed, deterministic=True):
            there = F.conv2d(inside, weight)
            assert error(there, low if allowed else exact) < 1e-4 < error(there, exact if allowed else low)


def test_gradients_of_convolutions(remote):
    made = []
    for device, allowed in (("cpu", False), (remote, False), (remote, True)):
        torch.manual_seed(0)
        layer = torch.nn.Conv2d(4, 6, 3).to(device)
        with flags(convolutions=allowed, deterministic=True):
            layer(torch.randn(2, 4, 8, 8).to(device)).square().sum().backward()
        made.append(layer.weight.grad.cpu())
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-3)
    assert error(made[2], made[0]) > 1e-3


# --- deterministic mode ----------------------------------------------------------------------------------------------

# Ops that torch calls nondeterministic on CUDA, or that have two algorithms, because many threads write or add to one
# address.
N = 500


def places():
    return torch.randint(0, 7, (N,))


OPS = {
    "index_add": lambda to: torch.zeros(7, 3).to(to).index_add(0, places().to(to), torch.randn(N, 3).to(to)),
    "index_copy": lambda to: torch.zeros(7, 3).to(to).index_copy(0, places().to(to), torch.randn(N, 3).to(to)),
    "index_put": lambda to: torch.zeros(7).to(to).index_put((places().to(to),), torch.randn(N).to(to)),
    "index_put_accumulate": lambda to: (
        torch.zeros(7).to(to).index_put((places().to(to),), torch.randn(N).to(to), accumulate=True)
    ),
    "put": lambda to: torch.zeros(7).to(to).put(places().to(to), torch.randn(N).to(to), accumulate=True),
    "scatter": lambda to: torch.zeros(7).to(to).scatter(0, places().to(to), torch.randn(N).to(to)),
    "scatter_add": lambda to: torch.zeros(7).to(to).scatter_add(0, places().to(to), torch.randn(N).to(to)),
    **{
        f"scatter_reduce_{how}": lambda to, how=how: (
            torch.ones(7).to(to).scatter_reduce(0, places().to(to), torch.randn(N).to(to), how)
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
    "index_reduce": lambda to: (
        torch.ones(7).to(to).index_reduce(0, places().to(to), 1 + torch.rand(N).to(to) / 99, "prod")
    ),
    "sum": lambda to: torch.randn(9, 4001).to(to).sum(1),
    "sum_of_all": lambda to: torch.randn(40001).to(to).sum(),
    "cumsum": lambda to: torch.randn(3, 4001).to(to).cumsum(1),
    "cumprod": lambda to: (1 + torch.randn(3, 401).to(to) / 50).cumprod(1),
    "norm": lambda to: torch.linalg.vector_norm(torch.randn(40001).to(to)),
    "var": lambda to: torch.randn(9, 4001).to(to).var(1),
    "histc": lambda to: torch.histc(torch.randn(4001).to(to), 10, -2, 2),
    "bincount": lambda to: torch.bincount(places().to(to), torch.rand(N).to(to)),
    "median": lambda to: torch.randint(0, 5, (9, 101)).float().to(to).median(1).indices,
    "kthvalue": lambda to: torch.randint(0, 5, (9, 101)).float().to(to).kthvalue(7, 1).indices,
    "mode": lambda to: torch.randint(0, 5, (9, 101)).float().to(to).mode(1).indices,
    "topk": lambda to: torch.randint(0, 5, (9, 101)).float().to(to).topk(7, 1).indices,
    "sort": lambda to: torch.randint(0, 5, (9, 101)).float().to(to).sort(1).indices,
    "mm": lambda to: torch.randn(40, 200).to(to) @ torch.randn(200, 30).to(to),
}


def gradient(function, *shapes):
    def run(to):
        given = [torch.randn(shape).to(to).requires_grad_() for shape in shapes]
        made = function(*given)
        made.backward(torch.randn(made.shape).to(to))
        return torch.cat([x.grad.flatten() for x in given])

    return run


GRADIENTS = {
    "embedding": gradient(lambda w: F.embedding(places().to(w.device), w), (7, 5)),
    "embedding_bag": gradient(lambda w: F.embedding_bag(places().view(50, 10).to(w.device), w, mode="sum"), (7, 5)),
    "gather": gradient(lambda x: x.gather(0, places().to(x.device)), (7,)),
    "index": gradient(lambda x: x[places().to(x.device)], (7, 3)),
    "index_select": gradient(lambda x: x.index_select(0, places().to(x.device)), (7, 3)),
    "max_pool2d": gradient(lambda x: F.max_pool2d(x, 3, 1), (1, 2, 9, 9)),
    "adaptive_avg_pool2d": gradient(lambda x: F.adaptive_avg_pool2d(x, 4), (1, 2, 9, 9)),
    "adaptive_max_pool2d": gradient(lambda x: F.adaptive_max_pool2d(x, 4), (1, 2, 9, 9)),
    "interpolate_linear": gradient(lambda x: F.interpolate(x, 31, mode="linear"), (2, 3, 9)),
    "interpolate_bilinear": gradient(lambda x: F.interpolate(x, 31, mode="bilinear"), (1, 3, 9, 9)),
    "interpolate_bicubic": gradient(lambda x: F.interpolate(x, 31, mode="bicubic"), (1, 3, 9, 9)),
    "interpolate_nearest": gradient(lambda x: F.interpolate(x, 31), (1, 3, 9, 9)),
    "reflection_pad1d": gradient(lambda x: F.pad(x, (5, 5), mode="reflect"), (2, 3, 9)),
    "reflection_pad2d": gradient(lambda x: F.pad(x, (5, 5, 4, 4), mode="reflect"), (1, 3, 9, 9)),
    "replication_pad2d": gradient(lambda x: F.pad(x, (5, 5, 4, 4), mode="replicate"), (1, 3, 9, 9)),
    "grid_sample": gradient(
        lambda x, grid: F.grid_sample(x, grid.tanh(), align_corners=False), (1, 3, 5, 5), (1, 20, 20, 2)
    ),
    "layer_norm": gradient(lambda x, w, b: F.layer_norm(x, (30,), w, b), (300, 30), (30,), (30,)),
    "batch_norm": gradient(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (300, 30), (30,), (30,)),
    "group_norm": gradient(lambda x, w, b: F.group_norm(x, 3, w, b), (40, 6, 30), (6,), (6,)),
    "conv2d": gradient(lambda x, w, b: F.conv2d(x, w, b), (2, 4, 9, 9), (6, 4, 3, 3), (6,)),
    "attention": gradient(F.scaled_dot_product_attention, *[(1, 2, 33, 8)] * 3),
    "cdist": gradient(torch.cdist, (30, 5), (40, 5)),
}


# Refused by torch's meta functions, on all devices but CPU.
REFUSED = {"histc", "median", "mode"}


def bits_of_all():
    """Prints a line for each op: its name and two digests of its results."""
    import torch_remote  # noqa: F401

    torch.use_deterministic_algorithms(True)
    for name, function in {**OPS, **{f"gradient of {name}": f for name, f in GRADIENTS.items()}}.items():
        made = []
        for _ in range(2):
            torch.manual_seed(1)
            try:
                result = function(torch.device("remote")).cpu().contiguous()
            except RuntimeError as error:  # torch's own error
                assert "does not have a deterministic implementation" in str(error), error
                made.append("refused")
                continue
            made.append(hashlib.sha1(result.detach().view(-1).view(torch.uint8).numpy()).hexdigest())
        print(name, *made, sep="\t")


def test_deterministic_ops_have_the_same_bits_for_any_order_of_threads(remote):
    found = {}
    for seed in ("1", "2", "3", "4"):
        result = run_python(
            __file__, env={**os.environ, "TORCH_REMOTE_TEST_DELAYS": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        assert result.returncode == 0, result.stderr
        for line in result.stdout.splitlines():
            name, *made = line.split("\t")
            found.setdefault(name, set()).update(made)
    assert len(found) == len(OPS) + len(GRADIENTS)
    assert {name: len(made) for name, made in found.items() if len(made) > 1} == {}
    assert {name for name, made in found.items() if made == {"refused"}} == REFUSED


if __name__ == "__main__":
    bits_of_all()
