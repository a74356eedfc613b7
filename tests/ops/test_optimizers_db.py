"""Optimizers of torch's optim_db compared with CPU, see optimizer_cases.py. Each commit runs a different part;
//tests/ops:test_all_optimizers and //tests/ops:test_all_fused_optimizers run all of them."""

import os

import pytest
import torch
from commit import commit_number
from optimizer_cases import (
    FUSED,
    OPTIMIZERS,
    STEPS,
    Case,
    Tally,
    cases,
    change_rates,
    check,
    gradient,
    groups,
    parameters,
)

ALL = os.environ.get("TORCH_REMOTE_TEST_ALL") == "1"
EVERY = 1 if ALL else 40 if FUSED else 16
CASES = list(cases())
# Refused by CPU: weight decay with sparse gradients, and options that change in place between two gradients.
REFUSED = {
    *(f"Adagrad, {options}, default, sparse" for options in ("nonzero weight_decay", "maximize", "lr_decay")),
    "Adagrad, initial_accumulator_value, default, sparse",
    *(f"SGD, {options}, default, sparse" for options in ("non-zero weight_decay", "maximize", "nesterov")),
    "SGD, weight_decay w/ momentum, default, sparse",
    *(
        f"ASGD, {options}, differentiable, dense"
        for options in (
            "weight_decay, capturable",
            "maximize, weight_decay, capturable",
            "maximize, weight_decay, capturable, tensor LR",
        )
    ),
}
LEAST = 1060  # cases


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_cpu(device, name):
    tally = Tally()
    mine = [case for i, case in enumerate(CASES) if case.name == name and (i + commit_number()) % EVERY == 0]
    for case in mine:
        check(case, device, tally)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.refused == {str(case) for case in mine} & REFUSED
    assert tally.compared == {str(case) for case in mine} - REFUSED


def test_every_optimizer_has_cases():
    assert len(CASES) - len(REFUSED) >= LEAST
    assert set(map(str, CASES)) >= REFUSED
    assert {case.name for case in CASES} == set(OPTIMIZERS)
    assert len(set(map(str, CASES))) == len(CASES)


@pytest.mark.skipif(not FUSED, reason="of kernels, too")
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])  # the history of LBFGS grows
def test_nothing_is_compiled_when_rates_change(remote, counted, name):
    info = OPTIMIZERS[name]
    kind = "sparse" if info.only_supports_sparse_grads else "dense"
    for implementation in ("default", "loop", "foreach", "fused")[: 1 if kind == "sparse" else None]:
        if implementation != "default" and implementation.replace("loop", "foreach") not in info.supported_impls:
            continue
        case = Case(name, "default", implementation, kind)
        made = parameters(case, remote)
        optimizer = info.optim_cls(groups(case, made), **case.arguments(remote))

        def steps(count, case=case, made=made, optimizer=optimizer):
            for _ in range(count):
                for i, parameter in enumerate(made):
                    parameter.grad = gradient(case, parameter, i, STEPS)
                optimizer.step()
                change_rates(optimizer, 0.9)
                torch.remote.synchronize()

        steps(8)  # the first steps of RAdam differ
        with counted() as c:
            steps(5)
        assert c["programs_built"] == c["kernels_compiled"] == 0, str(case)
