"""Random programs (tests/fuzz) on a worker that has no ATen: what it refuses by name is left out, and what CPU alone
shows is counted apart (own_programs.py).

gpu_programs.py --seed 0 --count 10000
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
from dataclasses import dataclass, field

import program as programs
import torch
from generator import generate
from own_programs import OWN_PROGRAMS
from program import Failure, Program, Session, Step, compare, minimise, run_program, with_variants, without_orphans

programs.rounds_complex = True
torch.backends.cudnn.allow_tf32 = False

# What a worker says of an op that nothing there does, or not with such operands.
REFUSED = re.compile(r"nothing in this worker does the op '([^']+)'|the GPU worker does not do '([^']+)' like this")


@dataclass
class Tally:
    """What was compared, and what could not be."""

    programs: int = 0
    steps: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # ops
    complex_refused: collections.Counter[str] = field(default_factory=collections.Counter)  # of complex numbers
    examples: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def refusals(program: Program, device: str) -> list[tuple[int, str, str]]:
    """Steps, ops and messages: of all that make something new, and of the first that writes to what others see."""
    found: list[tuple[int, str, str]] = []
    shown = run_program(program, device, frozenset(range(len(program.steps))))
    wrote = False
    for i, (step, events) in enumerate(zip(program.steps, shown, strict=False)):
        for kind, what in events:
            refused = REFUSED.search(what.message) if kind == "raised" else None
            if refused is None or (wrote and not step.defines):
                continue
            wrote |= not step.defines
            found.append((i, refused[1] or refused[2], what.message))
    return found


def has_complex(program: Program, last: int) -> bool:
    """Whether a step reads or makes complex numbers."""
    session = Session("cpu")
    for step in program.steps[: last + 1]:
        if all(name in session.variables for name in step.uses):
            session.run(step)
    step = program.steps[last]
    values = [session.variables.get(name) for name in (*step.uses, *step.defines)]
    return any(isinstance(t, torch.Tensor) and t.is_complex() for t in values)


def without_refused(program: Program, device: str, tally: Tally) -> Program:
    """The steps that the worker does. A step that reads what another one failed to write goes with it."""
    while True:
        found = refusals(program, device)
        if not found:
            return program
        for i, op, message in found:
            refused = tally.complex_refused if has_complex(program, i) else tally.refused
            refused[op] += 1
            tally.examples.setdefault(op, f"{program.steps[i].code}: {message.splitlines()[0]}")
        left = {i for i, _, _ in found}
        steps: list[Step] = [step for i, step in enumerate(program.steps) if i not in left]
        program = without_orphans(Program(program.seed, steps, program.variants))


def run(seed: int, device: str, tally: Tally, variants: tuple[int, ...] = (0,), shrink: bool = True) -> Failure | None:
    """One program; its failure is in the tally, too."""
    program = without_refused(with_variants(generate(seed), variants), device, tally)
    failure = compare(program, device)
    refused = REFUSED.search(failure.text) if failure is not None else None
    if refused is not None:  # something that nobody waited for
        tally.refused[refused[1] or refused[2]] += 1
        return None
    tally.programs += 1
    tally.steps += len(program.steps)
    if failure is not None:
        failure = minimise(failure, device) if shrink else failure
        tally.failures.append(failure)
    return failure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--variants", type=int, default=1)
    parser.add_argument("--no-minimise", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    import torch_remote  # noqa: F401

    tally = Tally()
    own: collections.Counter[str] = collections.Counter()
    begin = time.perf_counter()
    for seed in range(args.seed, args.seed + args.count):
        reason = OWN_PROGRAMS.get(seed)
        failure = run(seed, "remote", tally, tuple(range(args.variants)), reason is None and not args.no_minimise)
        if reason is not None and failure is None:
            print(f"seed {seed} is as on CPU, and no longer to be among own_programs.py", flush=True)
        elif failure is not None and reason is not None:
            tally.failures.remove(failure)
            own[reason] += 1
        elif failure is not None:
            print(f"FAILED {failure.report()}", flush=True)
    for op, times in tally.refused.most_common():
        print(f"{times:6} {op}   e.g. {tally.examples.get(op)}")
    for reason, times in own.most_common():
        print(f"{times:6} CPU's own: {reason}")
    seconds = time.perf_counter() - begin
    print(
        f"{tally.programs} programs, {tally.steps} steps compared, {tally.refused.total()} refused, "
        f"{tally.complex_refused.total()} of complex numbers, "
        f"{own.total()} are CPU's own, {len(tally.failures)} failed, {seconds:.0f} s"
    )
    return min(len(tally.failures), 1)


if __name__ == "__main__":
    sys.exit(main())
