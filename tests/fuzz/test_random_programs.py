"""A short run of the random programs; `random_programs.py --count 10000` is the long one."""

import os
import re

import pytest
import torch
from generator import generate
from program import Program, Step, compare, run_program, without_orphans
from random_programs import first_failure

PROGRAMS = 300
GROUP = 25
FIRST = int(os.environ.get("TORCH_REMOTE_TEST_SEED", "0"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, GROUP))
def test_programs_equal_cpu(first, device):
    for seed in range(first, first + GROUP):
        failure = first_failure(seed, device)
        assert failure is None, failure.report()


def joined(seeds: range) -> Program:
    """The programs one after the other, without what waits; all that they made is looked at in the end."""
    steps: list[Step] = []
    checks: list[Step] = []
    inexact = False
    for seed in seeds:
        program = generate(seed)
        inexact |= program.inexact

        def rename(text: str, seed: int = seed) -> str:
            return re.sub(r"\bv(\d+)\b", rf"p{seed}v\1", text)

        for step in program.steps:
            if re.search(r"\bread\(|synchronize|cpu|nonzero|item|tolist", step.code):
                continue
            looks = re.match(r"check|same_storage", step.code)
            names = (tuple(rename(n) for n in names) for names in (step.uses, step.defines))
            (checks if looks else steps).append(Step(rename(step.code), *names))
    program = without_orphans(Program(seeds.start, steps + checks, inexact))
    shown = run_program(program, "cpu")
    fine = [
        s for s, events in zip(program.steps, shown, strict=True) if not any(kind == "raised" for kind, _ in events)
    ]
    return without_orphans(Program(seeds.start, fine, inexact))


def test_programs_cut_by_plans_equal_cpu(device):
    """A long program that waits at its end only is cut where a plan says from its second run on."""
    more_pieces = 0
    for seed in range(FIRST, FIRST + 200, 5):
        program = joined(range(seed, seed + 5))
        flushes = []
        for run in range(3):
            before = torch.remote.stats()["flushes"]
            failure = compare(program, device)
            assert failure is None, f"run {run}: {failure.report()}"
            flushes.append(torch.remote.stats()["flushes"] - before)
        more_pieces += flushes[2] - flushes[0]
    assert more_pieces >= 40


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
