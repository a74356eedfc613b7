"""A short run of the random programs. `random_programs.py --count 10000` is a longer one, and
//tests/random_programs:random_programs_50000 the longest."""

import os
import re
from dataclasses import replace

import pytest
import torch
from commit import chosen_seed
from generator import generate
from program import Program, Step, compare, explained_programs, run_program, with_variants, without_orphans
from random_programs import first_failure

PROGRAMS = 100
GROUP = 20
# The seed of the first program. Without one, each commit runs different programs.
FIRST = chosen_seed(seeds_per_commit=1000)
REGRESSION = range(40)  # always run
DEVICES = int(os.environ.get("TORCH_REMOTE_TEST_DEVICES", "1"))
# Minimum share of traces that find an existing program. A variant of a program is the same trace.
LEAST_HITS = 0.55
# Maximum number of programs per group whose differences rounding explains: 3 of 500 in generated kernels, none of 500
# op by op.
MOST_ROUNDED = 4
# Limits of content-defined cuts: traces of a few records, with different positions to cut, and the defaults.
LIMITS = ((1, 4), (3, 16), (64, 1024))


def same(failure):
    """The failure with the command that repeats it."""
    if failure is None:
        return None
    devices = f" --devices {DEVICES}" if DEVICES > 1 else ""
    command = f"bazel run //tests/random_programs:random_programs -- --seed {failure.program.seed}{devices}"
    return f"{failure.report()}\nrepeat: {command}"


@pytest.mark.parametrize("first", [*range(FIRST, FIRST + PROGRAMS, GROUP), *REGRESSION[::GROUP]])
def test_programs_equal_cpu(first, device):
    before = torch.remote.stats() if device.type == "remote" else {}
    explained_programs.clear()
    for seed in range(first, first + GROUP):
        text = same(first_failure(seed, device, devices=DEVICES))
        assert text is None, text
    assert len(explained_programs) <= MOST_ROUNDED, f"rounding changes too many programs: {sorted(explained_programs)}"
    if before:
        after = torch.remote.stats()
        hits, built = (after[name] - before[name] for name in ("program_hits", "programs_built"))
        assert hits >= LEAST_HITS * (hits + built), f"{hits} hits, {built} programs built"


@pytest.mark.parametrize("seed", [FIRST + PROGRAMS, *REGRESSION[::20]])
def test_programs_cut_in_small_pieces_equal_cpu(remote, seed):
    """Content determines where traces are cut. Wherever that is, results are the same, and again with different
    numbers."""
    from torch_remote import _C

    try:
        for program_seed in range(seed, seed + 5):
            program = with_variants(generate(program_seed), (0, 1, 2, 0))
            for least, most in LIMITS:
                _C.set_cut_limits(0, least, most)
                failure = compare(program, remote)
                assert failure is None, f"cut after {least} to {most}: {same(failure)}"
    finally:
        _C.set_cut_limits(0, *LIMITS[-1])


def joined(seeds: range) -> Program:
    """The programs concatenated, without steps that wait. Everything that they computed is compared at the end."""
    steps: list[Step] = []
    checks: list[Step] = []
    for seed in seeds:
        program = generate(seed)

        def rename(text: str, seed: int = seed) -> str:
            return re.sub(r"\bv(\d+)\b", rf"p{seed}v\1", text)

        for step in program.steps:
            if re.search(r"\bread\(|synchronize|cpu|nonzero|item|tolist", step.code):
                continue
            looks = re.match(r"check|same_storage", step.code)
            names = (tuple(rename(n) for n in names) for names in (step.uses, step.defines))
            (checks if looks else steps).append(Step(rename(step.code), *names, step.inexact, step.mutates))
    program = without_orphans(Program(seeds.start, steps + checks))
    shown = run_program(program, "cpu")
    fine = [
        s for s, events in zip(program.steps, shown, strict=False) if not any(kind == "raised" for kind, _ in events)
    ]
    return without_orphans(Program(seeds.start, fine))


def test_programs_cut_by_plans_equal_cpu(device):
    """From its second run on, a plan cuts a long program that waits only at its end."""
    more_pieces = 0
    for seed in range(0, 200, 5):
        program = joined(range(seed, seed + 5))
        flushes = []
        for run in range(3):
            before = torch.remote.stats()["flushes"]
            failure = compare(program, device)
            assert failure is None, f"run {run}: {same(failure)}"
            flushes.append(torch.remote.stats()["flushes"] - before)
        more_pieces += flushes[2] - flushes[0]
    assert more_pieces >= 30


def test_a_wrong_result_is_found_and_minimised(monkeypatch):
    """Tests the comparison: a device whose `+` is wrong must fail, and the listing must be short."""
    import program
    import torch

    right = program.run_program

    def wrong(steps, device, raising=frozenset(), variant=0, roundings=None):
        if device != "wrong":
            return right(steps, device, raising, variant, roundings)
        with monkeypatch.context() as patch:
            add = torch.add
            patch.setattr(torch, "add", lambda a, b, **kw: add(add(a, b, **kw), 1))
            return right(steps, "cpu", raising, variant)

    monkeypatch.setattr(program, "run_program", wrong)
    failures = [f for f in (first_failure(seed, "wrong") for seed in range(60)) if f is not None]
    assert failures
    assert min(len(f.program.steps) for f in failures) <= 4


SUM = "v2 = v1.sum()"


@pytest.mark.parametrize(
    ("inexact", "factor", "found"),
    [
        (True, 1 + 2e-7, False),  # a sum in another order, near a jump
        (False, 1 + 2e-7, True),  # a step that does not round
        (True, 1.01, True),  # far more than a rounding error
    ],
)
def test_rounding_explains_what_it_can_and_no_more(monkeypatch, inexact, factor, found):
    import program

    right = program.run_program

    def off(steps, device, raising=frozenset(), variant=0, roundings=None):
        if device != "off":
            return right(steps, device, raising, variant, roundings)
        wrong = [replace(step, code=f"{SUM} * {factor}") if step.code == SUM else step for step in steps.steps]
        return right(Program(steps.seed, wrong), "cpu", raising, variant)

    monkeypatch.setattr(program, "run_program", off)
    steps = [
        Step("v1 = torch.full((3,), 1 / 3)", (), ("v1",)),
        Step(SUM, ("v1",), ("v2",), inexact=inexact),
        Step("v3 = (v2 - 1) > 0", ("v2",), ("v3",)),
        Step("check(v2, v3)", ("v2", "v3")),
    ]
    explained_programs.clear()
    failure = compare(Program(0, steps), "off")
    assert (failure is not None) == found
    assert bool(explained_programs) != found


def test_a_view_that_autograd_refuses_to_copy_is_explained(remote):
    steps = [
        Step("v1 = torch.ones(2, device=device).requires_grad_()", (), ("v1",)),
        Step("v2 = v1 * 2", ("v1",), ("v2",)),
        Step("with torch.no_grad(): v3 = v2.unsqueeze(0)", ("v2",), ("v3",)),
        Step("v2.mul_(2)", ("v2",), mutates=True),
        Step("read(v3.tolist())", ("v3",)),
    ]
    explained_programs.clear()
    assert compare(Program(0, steps), remote) is None
    assert explained_programs == {0: 1}
