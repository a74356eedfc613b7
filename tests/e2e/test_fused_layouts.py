"""Kernels with transposed operands, whose columns are rows of another operand. Such operands are packed in blocks, so
sizes are below and above the block size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

SIZES = [(17, 19), (64, 64), (70, 130), (128, 1024), (33, 2100), (2100, 65)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8]

# Functions of x [m, n] and y [n, m].
CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "alone": lambda x, y: x.t() + y,
    "chain": lambda x, y: (x.t() * y + y) * x.t(),
    "two": lambda x, y: x.t() + (x * 2).t() * y,
    "rows": lambda x, y: (x.t() + y).sum(-1),
    "columns": lambda x, y: (x.t() + y).sum(0),
    "places": lambda x, y: (x.t() * 2 + y).argmax(-1),
    "batch": lambda x, y: x.t().expand(3, -1, -1) + torch.stack((y, y + 1, y)),
}


def operands(n: int, m: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n * m)
    return torch.randint(0, 9, (m, n)).to(dtype), torch.randint(0, 9, (n, m)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_operands_that_lie_across(remote: torch.device, name: str, dtype: torch.dtype) -> None:
    """With small integers, sums are exact in any order. (bfloat16 sums in float32 and rounds once.)"""
    for n, m in SIZES:
        x, y = operands(n, m, dtype)
        got = CASES[name](x.to(remote), y.to(remote)).cpu()
        expected = CASES[name](x, y)
        if dtype == torch.bfloat16:
            expected = CASES[name](x.float(), y.float()).to(expected.dtype)
        assert torch.equal(got, expected), (n, m)


def test_softmax_of_what_lies_across(remote: torch.device) -> None:
    for n, m in SIZES:
        x = torch.randn(m, n)
        got = torch.softmax(x.to(remote).t() * 2, -1).cpu()
        torch.testing.assert_close(got, torch.softmax(x.t() * 2, -1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_that_lie_in_two_ways(remote: torch.device, dtype: torch.dtype) -> None:
    """A sum has the strides of its first operand. One result, and a tensor that is written in place, are transposed."""
    for n, m in SIZES:
        before = torch.remote.stats()["groups_without_kernel"]
        x, y = operands(n, m, dtype)
        a, b = x.to(remote), y.to(remote)
        first = a.t() + b
        second = b - first
        a.t().add_(second)
        torch.remote.synchronize()
        assert torch.remote.stats()["groups_without_kernel"] == before
        assert first.stride() == (1, n) and second.stride() == (m, 1)
        assert torch.equal(first.cpu(), x.t() + y), (n, m)
        assert torch.equal(second.cpu(), y - (x.t() + y)), (n, m)
        assert torch.equal(a.cpu(), x.t().add(y - (x.t() + y)).t()), (n, m)


def test_a_kernel_does_one_op_alone(remote: torch.device) -> None:
    """ATen would traverse such memory element by element."""
    x, y = (each.to(remote) for each in operands(777, 333, torch.float32))
    torch.remote.synchronize()
    before = torch.remote.stats()["kernels_compiled"]
    result = torch.atan2(x.t(), y)
    torch.remote.synchronize()
    assert torch.remote.stats()["kernels_compiled"] == before + 1
    torch.testing.assert_close(result.cpu(), torch.atan2(x.cpu().t(), y.cpu()))


def test_rows_that_would_need_much_scratch_memory_are_left_to_aten(remote: torch.device) -> None:
    """A kernel would store the exponentials of a whole row."""
    x = torch.randn(1, 18_000_000)
    assert torch.equal(torch.softmax(x.to(remote), -1).cpu(), torch.softmax(x, -1))


COPIED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]


@pytest.mark.parametrize("to", COPIED, ids=str)
def test_lists_are_copied_and_cloned(remote: torch.device, to: torch.dtype) -> None:
    for of in COPIED:
        torch.manual_seed(2)
        source = [(torch.randn(shape) * 20).to(of) for shape in ((3, 4), (5,), (2, 3), ())]
        made = [torch.zeros(3, 4), torch.zeros(5), torch.zeros(3, 2).t(), torch.zeros(())]
        expected = [x.to(to) for x in made]
        there = [x.to(remote) for x in expected]
        torch._foreach_copy_(expected, source)
        torch._foreach_copy_(there, [x.to(remote) for x in source])
        for x, y in zip(there, expected, strict=True):
            assert torch.equal(x.cpu(), y), of
        for x, y in zip(torch._foreach_clone([x.to(remote) for x in source]), source, strict=True):
            assert torch.equal(x.cpu(), y)
            assert x.stride() == y.stride()


def test_copies_of_lists_that_overlap(remote: torch.device) -> None:
    x = torch.arange(8.0).to(remote)
    torch._foreach_copy_([x[1:4]], [x[4:7]])
    assert x.tolist() == [0, 4, 5, 6, 4, 5, 6, 7]
    x, y = torch.arange(3.0).to(remote), torch.arange(3.0, 6.0).to(remote)
    torch._foreach_copy_([x, y], [y, x])  # executed one after the other
    assert x.tolist() == y.tolist() == [3, 4, 5]
