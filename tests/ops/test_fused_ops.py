"""Ops that fusion accepts, in generated kernels, compared with CPU: see fused.py. Each commit runs a different part;
//tests/ops:test_all_fused_ops runs all of them."""

import os

import pytest
import torch
from commit import commit_number
from fused import Tally
from fused_cases import CASES, FLOATS
from fused_samples import samples

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
# One of this many cases runs.
EVERY = 1 if ALL else 12
# Minimum number of compiled kernels when all cases run, by source of cases. It shows that groups are formed and kernels
# execute them.
KERNELS = {"expressions": 1500, "foreach": 190, "two_dtypes": 1000, "conversions": 110, "reductions": 250}
KERNELS |= {"rows": 80, "channels": 100, "bounds": 60}
KERNELS_OF_SAMPLES = {torch.float32: 400, torch.float64: 400, torch.bfloat16: 350, torch.float16: 350}


def tally_of(cases, device):
    torch.set_num_threads(1)
    tally = Tally()
    for case in cases:
        tally.add(case, device)
    assert not tally.failures, "\n".join(tally.failures)
    return tally


def part(cases):
    """The cases of this commit."""
    return (case for i, case in enumerate(cases) if (i + commit_number()) % EVERY == 0)


@pytest.mark.parametrize("source", CASES)
def test_ops_in_kernels_equal_cpu(remote, source):
    tally = tally_of(part(CASES[source]()), remote)
    assert tally.kernels >= KERNELS[source] / EVERY / 2 if not ALL else KERNELS[source]


@pytest.mark.parametrize("dtype", FLOATS if ALL else FLOATS[:1], ids=str)
def test_samples_with_gradients_in_kernels_equal_cpu(remote, dtype):
    tally = tally_of(samples(dtype, begin=commit_number() % EVERY, every=EVERY), remote)
    assert tally.kernels >= KERNELS_OF_SAMPLES[dtype] / EVERY / 2 if not ALL else KERNELS_OF_SAMPLES[dtype]


def test_a_wrong_result_is_found(remote):
    """Tests the comparison: it finds three extra units, a zero of the wrong sign, and an integer that is off by one."""
    from fused import difference
    from fused_cases import Case

    x = torch.tensor([1.0, -0.0, 3.0])
    case = Case("exp", torch.float32, "", torch.exp, (x,))
    right = x.exp()
    assert difference(case, right, right, x.double().exp()) is None
    three = torch.tensor([right[0].item() * (1 + 3.5 * 2**-23), *right[1:].tolist()])
    assert difference(case, three, right, x.double().exp()) is not None
    assert (
        difference(case, torch.tensor([0.0, 0.0]), torch.tensor([0.0, -0.0]), torch.zeros(2).double().neg()) is not None
    )
    assert difference(case, torch.tensor([1, 3]), torch.tensor([1, 2]), None) is not None
