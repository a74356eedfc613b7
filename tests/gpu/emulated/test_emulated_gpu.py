"""Scripts on a worker with an emulated GPU. GPU kernels or the emulated cuBLASLt execute every op; ATen executes
none."""

import os
import re
from random import Random

import pytest
import torch
import torch.nn.functional as F
from python_processes import run_python
from torch import nn


def same(there, expected):
    """Floats may differ by rounding, because GPU kernels sum in another order."""
    torch.testing.assert_close(there.cpu(), expected)


def test_pointwise_softmax_and_sum_equal_cpu(remote):
    x = torch.randn(37, 129)
    y = torch.randn(129)
    there, other = x.to(remote), y.to(remote)
    shifted = there * 1.5 + other
    probabilities = torch.softmax(shifted, dim=-1)
    expected = torch.softmax(x * 1.5 + y, dim=-1)
    same(shifted, x * 1.5 + y)
    same(probabilities, expected)
    same(probabilities.sum(0), expected.sum(0))
    same((probabilities * there).sum(), (expected * x).sum())
    torch.remote.synchronize()
    assert torch.remote.stats()["kernels_compiled"] > 0


def test_the_first_runs_are_compared_with_the_reference(remote):
    script = """
import torch, torch_remote
x = torch.randn(64, 32, device="remote")
for _ in range(3):
    (torch.softmax(x @ x.t(), -1).sum(0) * 2).sum().item()
"""
    said = run_python("-c", script, check=True, timeout=100).stderr
    assert re.search(
        r"compared \d+ steps of the first \d+ runs of remote:0 .* none differ\. Copying took 0\.\d s", said
    ), said
    environment = {**os.environ, "TORCH_REMOTE_SHADOW": "0"}
    assert "compared" not in run_python("-c", script, env=environment).stderr


def test_constants_are_those_of_torch_in_float64(remote):
    x = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    there = x.detach().to(remote).requires_grad_()
    F.hardsigmoid(x).sum().backward(), F.hardsigmoid(there).sum().backward()
    assert torch.equal(there.grad.cpu(), x.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32], ids=str)
def test_dtypes(remote, dtype):
    x = torch.arange(-20, 37).reshape(3, 19).to(dtype)
    there = x.to(remote)
    same(there * 3 - 1, x * 3 - 1)
    same(there.abs().max(dim=1).values, x.abs().max(dim=1).values)
    same(there > 2, x > 2)


def test_sizes_change(remote):
    for rows, columns in [(5, 3), (5, 4), (2, 1000), (300, 7), (2, 9000), (5, 3)]:
        x = torch.randn(rows, columns)
        there = x.to(remote)
        same(torch.log_softmax(there, -1), torch.log_softmax(x, -1))
        same(there.sum(0), x.sum(0))
        same(F.gelu(there).t().contiguous(), F.gelu(x).t().contiguous())


def test_views_and_writes_in_place(remote):
    x = torch.randn(6, 8)
    there = x.to(remote)
    for t in (x, there):
        t[1:4, ::2] *= 2
        t.t()[3].add_(1)
        t[5].fill_(7)
        t[0].copy_(t[2])
    same(there, x)
    same(there[:, 1:5].t(), x[:, 1:5].t())
    same(there[::2, 3], x[::2, 3])
    assert there[5, 0].item() == 7


def train(device):
    torch.manual_seed(3)
    x, target = torch.randn(40, 12).to(device), torch.rand(40, 12).to(device)
    w = torch.randn(12).to(device).requires_grad_()
    b = torch.zeros(12).to(device).requires_grad_()
    losses = []
    for _ in range(10):
        loss = ((x * w + b).sigmoid() - target).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 2.0 * p.grad
                p.grad.zero_()
        losses.append(loss.item())
    return losses, w.detach().cpu(), b.detach().cpu()


def test_training_equals_cpu(remote):
    losses, w, b = train(remote)
    expected, expected_w, expected_b = train(torch.device("cpu"))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(w, expected_w)
    torch.testing.assert_close(b, expected_b)


def products(x, y, bias, batch):
    """Every kind of matmul, with operands in all layouts."""
    return [
        x @ y,
        y.t() @ x.t(),
        torch.addmm(bias, x, y),
        torch.addmm(bias, x, y, beta=0.5, alpha=-2),
        x[::2] @ y[:, 1:],
        x @ y[:, 0],
        torch.addmv(x[:, 0], x, y[:, 1], beta=2),
        x[0].dot(y[:, 2]),
        torch.outer(x[:, 1], y[0]),
        torch.addr(x, x[:, 0], x[0]),
        batch @ y,
        torch.bmm(batch, batch.transpose(1, 2)),
        torch.baddbmm(bias.expand(3, len(x), -1), batch, y.expand(3, -1, -1)),
        torch.addbmm(x @ y, batch, y.expand(3, -1, -1), beta=2),
        F.linear(batch, y.t().contiguous(), bias),
        torch.einsum("bij,jk->bki", batch, y),
        x[:0] @ y,
        x[:, :0] @ y[:0],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_products_equal_cpu(remote, dtype):
    given = [torch.randn(*size).to(dtype) for size in [(6, 8), (8, 5), (5,), (3, 6, 8)]]
    there = products(*(t.to(remote) for t in given))
    wide = [t.float() for t in products(*(t.double() for t in given))]
    tolerance = {torch.bfloat16: 0.1, torch.float16: 0.02}.get(dtype, 1e-5)
    for made, expected in zip(there, wide, strict=True):
        assert made.dtype == dtype
        torch.testing.assert_close(made.cpu().float(), expected, rtol=tolerance, atol=tolerance)


def test_products_in_place_and_out(remote):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    there, other = x.to(remote), y.to(remote)
    for a, b in ((x, y), (there, other)):
        a.addmm_(b, b.t(), beta=0.5)
        a[1:3].addmm_(b[:2], b)
        a.t().addmm_(b, b)
        torch.mm(b, b, out=a[:, :])
        a.addbmm_(b.expand(2, 4, 4), b.expand(2, 4, 4))
    same(there, x)
    full = torch.full((4, 4), float("nan"))
    same(torch.addmm(full.to(remote), other, other, beta=0), y @ y)


def test_products_of_complex_and_of_integers(remote):
    x, y = torch.randn(5, 6, dtype=torch.complex64), torch.randn(6, 5, dtype=torch.complex64)
    same(x.to(remote) @ y.to(remote), x @ y)
    same(torch.vdot(x[0].to(remote), x[1].to(remote)), torch.vdot(x[0], x[1]))
    a, b = (torch.randint(-100, 100, size, dtype=torch.int8) for size in [(17, 32), (32, 24)])
    same(torch._int_mm(a.to(remote), b.to(remote)), torch._int_mm(a, b))


def train_perceptron(device, dtype):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    model.to(device, dtype)
    x, target = torch.randn(24, 12, dtype=dtype).to(device), torch.rand(24, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = (model(x).float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu().float() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_a_perceptron_equals_cpu(remote, dtype):
    losses, parameters = train_perceptron(remote, dtype)
    expected, expected_parameters = train_perceptron(torch.device("cpu"), dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    assert losses == pytest.approx(expected, rel=tolerance)
    assert losses[-1] < 0.8 * losses[0]
    for made, other in zip(parameters, expected_parameters, strict=True):
        torch.testing.assert_close(made, other, rtol=tolerance, atol=tolerance)


def test_attention_by_products_equals_cpu(remote):
    q, k, v = (torch.randn(2, 3, 10, 8) for _ in range(3))

    def attention(q, k, v):
        scores = q @ k.transpose(-2, -1) * 8**-0.5
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(2, 10, 24)

    same(attention(q.to(remote), k.to(remote), v.to(remote)), attention(q, k, v))


def test_an_index_out_of_range_is_an_error_of_its_line(remote):
    weight = torch.randn(10, 4).to(remote)
    good = F.embedding(torch.tensor([1, 9]).to(remote), weight)
    bad = F.embedding(torch.tensor([1, 10]).to(remote), weight)  # this line
    dependent = bad * 2
    with pytest.raises(IndexError, match="index out of range in self") as raised:
        dependent.cpu()
    assert "this line" in str(raised.value) or "test_emulated_gpu.py" in str(raised.value)
    same(good, weight.cpu()[[1, 9]])
    torch.remote.synchronize()


def test_each_index_out_of_range_of_one_kernel_is_told(remote):
    weight = torch.randn(10, 4).to(remote)
    rows = [torch.tensor(pair).to(remote) for pair in ([1, 10], [2, 3], [11, 0])]
    torch.remote.synchronize()
    results = [F.embedding(row, weight) * 2 for row in rows]
    same(results[1], weight.cpu()[[2, 3]] * 2)
    for bad in (results[0], results[2]):
        with pytest.raises(IndexError, match=r"index out of range in self|an index is out of bounds"):
            bad.cpu()
    torch.remote.synchronize()


def test_elements_by_their_number(remote):
    x, places = torch.randn(6, 8), torch.tensor([[0, 47, -48], [5, -1, 30]])
    for there, here in ((x.to(remote), x), (x.to(remote).t(), x.t()), (x.to(remote)[:, 1:], x[:, 1:])):
        at = places.clamp(-here.numel(), here.numel() - 1)
        same(there.take(at.to(remote)).sin() * 2, here.take(at).sin() * 2)
        for bad in (48, -49):
            wrong = torch.where(places == 5, bad, at)
            with pytest.raises(IndexError, match=rf"out of range: .* on a tensor of {here.numel()} elements"):
                (there.take(wrong.to(remote)).sin() * 2).cpu()
            torch.remote.synchronize()


def test_what_no_kernel_does_is_named(remote):
    x = torch.randn(3, 3).to(remote)
    y = torch.linalg.matrix_exp(x)
    with pytest.raises(
        NotImplementedError,
        match=r"nothing in this worker does the op 'aten::linalg_matrix_exp'.*compute it on the CPU",
    ):
        y.cpu()
    same(x + 1, x.cpu() + 1)


def test_a_large_tensor_there_and_back(remote):
    x = torch.randn(3_000_001)
    there = x.to(remote)
    same(there, x)
    same((there * 2)[::3], (x * 2)[::3])


UNARY = [torch.relu, torch.sigmoid, torch.tanh, torch.neg, torch.abs, lambda x: F.gelu(x), lambda x: x * 0.5 - 1]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.where(x > y, x, y * 0.5)]
ROWS = [
    lambda x: torch.softmax(x, -1),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.sum(0, keepdim=True).expand_as(x) * 0.1,
    lambda x: x.amax(-1, keepdim=True) - x,
]


def random_program(random, values):
    """One random step on tensors of one shape: creates a tensor, or writes to all or a part of one in place."""
    x, y = random.choice(values), random.choice(values)
    kind = random.randrange(6)
    if kind == 0:
        values.append(random.choice(UNARY)(x))
    elif kind == 1:
        values.append(random.choice(BINARY)(x, y))
    elif kind == 2:
        values.append(random.choice(ROWS)(x))
    elif kind == 3:
        values.append(x @ (y.t() @ y) * (1 / (y.shape[0] * y.shape[1])) if random.random() < 0.5 else F.relu(x))
    elif kind == 4:
        x.mul_(0.5).add_(y.clone() if x is y else y, alpha=0.25)
    else:
        x[1:, ::2] = y[1:, ::2].clone() * 2


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_equal_cpu(remote, seed):
    shape = [(2, 3), (5, 64), (33, 17), (4, 1000)][seed % 4]
    given = [torch.randn(shape) for _ in range(3)]
    results = []
    for device in ("cpu", remote):
        random = Random(seed)
        values = [x.clone().to(device) for x in given]
        for step in range(12):
            random_program(random, values)
            if step % 5 == 4:
                values[-1].sum().item()  # cuts the trace
        results.append([x.cpu() for x in values])
    for there, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(there, expected, rtol=1e-4, atol=1e-4)
