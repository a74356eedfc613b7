"""Matmuls of a few rows with weights as in nn.Linear run in the worker's hand-written loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# number of rows, inputs, outputs
SIZES = [(2, 1, 1), (2, 16, 4), (3, 17, 5), (7, 64, 33), (16, 100, 70), (31, 1025, 19), (48, 256, 130), (49, 64, 64)]


def operands(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows * inputs + outputs)
    return tuple(torch.randn(*size).to(dtype) for size in ((rows, inputs), (outputs, inputs), (outputs,)))  # type: ignore[return-value]


def assert_as_exact(got: Tensor, cpu: Tensor, exact: Tensor) -> None:
    """The error may be twice CPU's own, plus a rounding of the largest element."""
    unit = torch.finfo(cpu.dtype).eps * exact.abs().max().item()
    error = lambda result: (result.double() - exact).abs().max().item()  # noqa: E731
    assert error(got) <= 2 * error(cpu) + unit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear(remote: torch.device, dtype: torch.dtype) -> None:
    for size in SIZES:
        x, w, b = operands(*size, dtype)
        for bias in (None, b):
            got = F.linear(x.to(remote), w.to(remote), bias if bias is None else bias.to(remote)).cpu()
            exact = F.linear(x.double(), w.double(), bias if bias is None else bias.double())
            assert_as_exact(got, F.linear(x, w, bias), exact)


def test_numbers_that_change(remote: torch.device) -> None:
    """alpha, beta and sizes are arguments of one program. With beta = 0, the added matrix has no effect."""
    x, w, _ = operands(6, 40, 30, torch.float32)
    c = torch.randn(6, 30)
    for rows in (6, 5, 4, 6):
        for beta, alpha in ((1, 1), (0.5, -2), (0, 3), (2, 0)):
            added = torch.full_like(c, torch.nan)[:rows] if beta == 0 else c[:rows]
            expected = torch.addmm(added, x[:rows], w.t(), beta=beta, alpha=alpha)
            there = torch.addmm(added.to(remote), x.to(remote)[:rows], w.to(remote).t(), beta=beta, alpha=alpha)
            torch.testing.assert_close(there.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_layouts(remote: torch.device) -> None:
    """Rows and weights with gaps, and transposed operands."""
    torch.manual_seed(0)
    x, w = torch.randn(9, 50), torch.randn(40, 50)
    cases = {
        "gaps": lambda x, w: x[:, 3:20] @ w[:, 5:22].t(),
        "every other row": lambda x, w: x[::2] @ w[::3].t(),
        "one row for all": lambda x, w: x[:1].expand(4, -1) @ w.t(),
        "rows across": lambda x, w: x[:, :9].t() @ w[:, :9].t(),
        "weights the other way": lambda x, w: x[:, :40] @ w,
        "gradient": lambda x, w: (x @ w.t()).t() @ x,
        "in place": lambda x, w: torch.zeros_like(x[:, :40]).addmm_(x, w.t()),
        "out": lambda x, w: torch.mm(x, w.t(), out=torch.empty_like(x[:, :40])),
        "with itself": lambda x, w: x @ x.t(),
    }
    for name, function in cases.items():
        got = function(x.to(remote), w.to(remote))
        expected = function(x, w)
        assert got.stride() == expected.stride(), name
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_special_numbers(remote: torch.device) -> None:
    x, w = torch.randn(5, 33), torch.randn(9, 33)
    x[1, 32], w[2, 4], x[3, 0] = torch.inf, torch.nan, -torch.inf
    torch.testing.assert_close((x.to(remote) @ w.to(remote).t()).cpu(), x @ w.t(), equal_nan=True, rtol=1e-5, atol=1e-5)


def test_no_rows_and_no_columns(remote: torch.device) -> None:
    for rows, inputs, outputs in ((0, 4, 5), (3, 0, 5), (3, 4, 0)):
        x, w, b = operands(rows, inputs, outputs, torch.float32)
        there = F.linear(x.to(remote), w.to(remote), b.to(remote)).cpu()
        assert torch.equal(there, F.linear(x, w, b))


def test_gradients(remote: torch.device) -> None:
    x, w, b = operands(12, 60, 50, torch.float32)

    def gradients(device: torch.device) -> list[Tensor]:
        leaves = [t.clone().to(device).requires_grad_() for t in (x, w, b)]
        F.gelu(F.linear(*leaves)).square().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves]  # type: ignore[union-attr]

    for got, expected in zip(gradients(remote), gradients(torch.device("cpu")), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_runs_give_the_same_bits(remote: torch.device) -> None:
    x, w, b = (t.to(remote) for t in operands(8, 300, 200, torch.float32))
    run = lambda: F.relu(F.linear(x, w, b)).cpu()  # noqa: E731
    for _ in range(5):  # the runner has been chosen by then
        run()
        torch.remote.synchronize()
    first = run()
    assert all(torch.equal(run(), first) for _ in range(20))


def test_sizes_change_without_a_new_program(remote: torch.device) -> None:
    _, w, b = (t.to(remote) for t in operands(2, 64, 48, torch.float32))
    xs = torch.randn(48, 64).to(remote)
    step = lambda rows: F.relu(F.linear(xs[:rows], w, b)).sum().item()  # noqa: E731
    step(5), step(6)
    with torch.remote.expect_no_compile():
        for rows in (2, 48, 17, 31, 3):
            step(rows)
