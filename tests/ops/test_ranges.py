"""Kernels that reduce or normalize are no worse than torch's own, whatever the scale of the data and however far from
zero they are: see range_cases.py. Other data in each run."""

import secrets

import pytest
import torch
from fused import compiled
from range_cases import Op, check, compare, ops

OPS = ops()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_errors_at_all_scales(remote, dtype):
    torch.set_num_threads(1)
    failures, before = [], compiled()
    for op in OPS:
        seed = secrets.randbits(32)
        found = check(op, dtype, remote, torch.Generator().manual_seed(seed))
        failures += [f"{text} (seed {seed})" for text in found]
    assert not failures, f"{len(failures)} sets\n" + "\n".join(failures)
    assert compiled() - before >= len(OPS)


def test_errors_that_are_too_large_are_found():
    exact = torch.tensor([[1.0, 1e20], [2.0, 3.0]], dtype=torch.float64)
    right, wrong = exact.float(), (exact * (1 + 4 * 2**-23)).float()
    op = Op("std", torch.std, (2,))
    assert not compare(op, ["a", "b"], [right], [right], [exact])
    assert not compare(op, ["a", "b"], [right], [wrong], [exact])
    assert len(compare(op, ["a", "b"], [wrong], [right], [exact])) == 2
    assert len(compare(op, ["a", "b"], [torch.full_like(right, torch.inf)], [right], [exact])) == 2
    assert len(compare(op, ["a", "b"], [torch.full_like(right, torch.nan)], [right], [exact])) == 2
