"""A short run of the random programs; `random_programs.py --count 10000` is the long one."""

import os

import pytest
from random_programs import first_failure

PROGRAMS = 300
GROUP = 25
FIRST = int(os.environ.get("TORCH_REMOTE_TEST_SEED", "0"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, GROUP))
def test_programs_equal_cpu(first, device):
    for seed in range(first, first + GROUP):
        failure = first_failure(seed, device)
        assert failure is None, failure.report()


def test_a_wrong_result_is_found_and_minimised(monkeypatch):
    """The comparison itself: a device whose `+` is wrong must fail, and the listing must be short."""
    import program
    import torch

    right = program.run_program

    def wrong(steps, device, raising=frozenset()):
        if device != "wrong":
            return right(steps, device, raising)
        with monkeypatch.context() as patch:
            add = torch.add
            patch.setattr(torch, "add", lambda a, b, **kw: add(add(a, b, **kw), 1))
            return right(steps, "cpu", raising)

    monkeypatch.setattr(program, "run_program", wrong)
    failures = [f for f in (first_failure(seed, "wrong") for seed in range(60)) if f is not None]
    assert failures
    assert min(len(f.program.steps) for f in failures) <= 4
