"""Kernels that reduce or normalize are no worse than torch's own, whatever the scale of the data and however far from
zero they are: see range_cases.py. Other data in each run."""

import dataclasses
import secrets

import pytest
import torch
from fused import compiled
from range_cases import Errors, Op, check, largest_error, ops, worse

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
    assert compiled() - before >= 3 * len(OPS) // 4  # some ops are the same kernel


def test_errors_that_are_too_large_are_found():
    exact = torch.tensor([[1.0, 1e20], [2.0, 3.0]], dtype=torch.float64)
    right, wrong = exact.float(), (exact * (1 + 4 * 2**-23)).float()
    assert largest_error(right, exact).tolist() == [0, 0]
    assert min(largest_error(wrong, exact).tolist()) >= 3
    for not_finite in (torch.inf, torch.nan):
        assert largest_error(torch.full_like(right, not_finite), exact).tolist() == [torch.inf] * 2
    op, by_chance = (Op("std", torch.std, (2,), by_chance=chance) for chance in (False, True))
    three, four = Errors(0, 1.0, 0.0, 3.0, 1.0), Errors(0, 1e20, 0.0, 4.0, 0.5)
    assert worse(op, [three, four]) == [four]
    assert not worse(by_chance, [three, dataclasses.replace(four, ours=3.5)])
    assert worse(by_chance, [three, dataclasses.replace(four, offset=1.0)])
