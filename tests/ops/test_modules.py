"""Modules of torch's module_db compared with CPU, see module_cases.py. Each commit runs a different part;
//tests/ops:test_all_modules and //tests/ops:test_all_fused_modules run all of them."""

import os

import module_cases
import pytest
import torch
from commit import commit_number
from harness import difference, too_far

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
# One of this many units runs; kernels and compiled graphs take longer.
EVERY = 1 if ALL else 160 if module_cases.FUSED else 80
EVERY_COMPILED = 1 if ALL else 250
UNITS = module_cases.units()
LEAST = module_cases.least()
# Number of samples times forms in total.
LEAST_OF_ALL = 15800


def part(every):
    """The units of this commit."""
    return [unit for i, unit in enumerate(UNITS) if (i + commit_number()) % every == 0]


@pytest.mark.parametrize("unit", part(EVERY), ids=str)
def test_modules_equal_cpu(device, unit):
    tally = module_cases.check(unit, device)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.count() >= LEAST[str(unit)]


@pytest.mark.skipif(not module_cases.FUSED, reason="compiled graphs are run in kernels")
@pytest.mark.parametrize("unit", part(EVERY_COMPILED), ids=str)
def test_compiled_modules_equal_cpu(remote, unit):
    tally = module_cases.check(unit, remote, compiled=True, most=4 if ALL else 2)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.count() or not LEAST[str(unit)]


def test_every_module_is_compared():
    named = {name for name in LEAST if not (module_cases.FUSED and name.split()[1] in ("bfloat16", "float16"))}
    assert named == set(map(str, UNITS)), "run //tests/ops:modules"
    assert sum(LEAST.values()) >= LEAST_OF_ALL
    for name in module_cases.MODULES:
        assert any(LEAST[str(unit)] for unit in UNITS if unit.name == name and unit.dtype == torch.float32), name


def test_a_wrong_gradient_is_found(device):
    """Tests the comparison itself."""
    (unit,) = (u for u in UNITS if str(u) == "nn_Linear float32 train")
    sample = unit.samples()[0]
    state = module_cases.initial_state(unit, sample)
    form = module_cases.FORMS["moved"]
    here, there = (module_cases.run(form, unit, sample, state, torch.device(d), False) for d in ("cpu", device))
    assert difference(there, here, "", values=not module_cases.FUSED, device=device) is None
    assert too_far(there, here, module_cases.ROUNDING) is None
    with torch.no_grad():
        there[0][2]["gradients"]["weight"][0, 0] += 0.1
    assert difference(there, here, "", device=device) is not None
    assert too_far(there, here, module_cases.ROUNDING) is not None
