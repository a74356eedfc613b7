"""Random programs (tests/random_programs) on a worker without ATen.

Two kinds of steps are left out and counted: those that the worker refuses by name, and those whose result is specific
to CPU.

gpu_programs.py --seed 0 --count 10000
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import program as programs
import torch
from generator import generate
from program import (
    Failure,
    Program,
    Session,
    Step,
    compare,
    explained_programs,
    minimize,
    run_program,
    shares_elements,
    with_variants,
    without_orphans,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

programs.rounds_complex = True
torch.backends.cudnn.allow_tf32 = False

# The worker's error for an op that no runner supports, or not with such operands.
REFUSED = re.compile(r"nothing in this worker does the op '([^']+)' like this")

# CPU's error for a number that a half type cannot hold. For arguments with these names, torch's CUDA kernels compute
# with a float, and so does the worker (worker/runner/number_checks.cpp): torch.sub(x, y, alpha=1e10) in float16.
HALF_OVERFLOW = re.compile(r"value cannot be converted to type c10::(Half|BFloat16) without overflow")
FLOAT_NUMBERS = {
    "alpha",
    "beta",
    "scale",
    "input_scale",
    "negative_slope",
    "weight",
    "min",
    "max",
    "min_val",
    "max_val",
}


@dataclass
class Tally:
    """Counts what was compared, and what was left out."""

    programs: int = 0
    steps: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # by op
    own: collections.Counter[str] = field(default_factory=collections.Counter)  # by reason why steps were left out
    complex_refused: collections.Counter[str] = field(default_factory=collections.Counter)  # by op, for complex numbers
    examples: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def refusals(program: Program, device: str) -> list[tuple[int, str, str]]:
    """Steps, ops and messages of refusals: of all steps that create something, and of the first that writes to shared
    memory. The op is empty if CPU's kernels do not support the dtype either."""
    found: list[tuple[int, str, str]] = []
    shown = run_program(program, device, frozenset(range(len(program.steps))))
    by_cpu = run_program(program, "cpu")
    wrote = False
    for i, step in enumerate(program.steps):
        missing = any(kind == "raised" and what.type == "NotImplementedError" for kind, what in by_cpu[i])
        for kind, what in shown[i]:
            refused = REFUSED.search(what.message) if kind == "raised" else None
            if refused is None or (wrote and not step.defines):
                continue
            wrote |= not step.defines
            found.append((i, "" if missing else refused[1], what.message))
    return found


class CpuSpecific(TorchDispatchMode):
    """While it is active, `reason` is set if an op's result is specific to CPU, so that other devices may differ."""

    reason = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.convolution_backward):
            # A kernel that multiplies padding by infinity gives NaN.
            if not all(t.isfinite().all() for t in tensors):
                self.reason = "a convolution with elements that are not finite"
        elif func._schema.is_mutable and any(map(shares_elements, tensors)):
            self.reason = "elements in place that share memory"
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            names = {argument.name for argument in func._schema.arguments}
            if HALF_OVERFLOW.search(str(error)) and names & FLOAT_NUMBERS and "index" not in names:
                self.reason = "a number beyond a half type"
            raise


def cpu_specific_steps(program: Program) -> Iterator[tuple[int, str]]:
    """The steps whose results are specific to CPU, and the reason."""
    session = Session("cpu")
    for i, step in enumerate(program.steps):
        if all(name in session.variables for name in step.uses):
            with CpuSpecific() as watch:
                session.run(step)
            if watch.reason:
                yield i, watch.reason


def without_cpu_specific(program: Program, tally: Tally) -> Program:
    found = dict(cpu_specific_steps(program))
    tally.own.update(found.values())
    steps: list[Step] = [step for i, step in enumerate(program.steps) if i not in found]
    return without_orphans(Program(program.seed, steps, program.variants))


def has_complex(program: Program, last: int) -> bool:
    """Whether a step reads or creates complex numbers."""
    session = Session("cpu")
    for step in program.steps[: last + 1]:
        if all(name in session.variables for name in step.uses):
            session.run(step)
    step = program.steps[last]
    values = [session.variables.get(name) for name in (*step.uses, *step.defines)]
    return any(isinstance(t, torch.Tensor) and t.is_complex() for t in values)


def without_refused(program: Program, device: str, tally: Tally) -> Program:
    """Removes steps that the worker refuses, and steps that depend on their results."""
    while True:
        found = refusals(program, device)
        if not found:
            return program
        for i, op, message in found:
            if not op:
                continue
            refused = tally.complex_refused if has_complex(program, i) else tally.refused
            refused[op] += 1
            tally.examples.setdefault(op, f"{program.steps[i].code}: {message.splitlines()[0]}")
        left = {i for i, _, _ in found}
        steps: list[Step] = [step for i, step in enumerate(program.steps) if i not in left]
        program = without_orphans(Program(program.seed, steps, program.variants))


def run(seed: int, device: str, tally: Tally, variants: tuple[int, ...] = (0,), shrink: bool = True) -> Failure | None:
    """Runs one program. A failure is also recorded in the tally."""
    program = without_cpu_specific(with_variants(generate(seed), variants), tally)
    program = without_refused(program, device, tally)
    failure = compare(program, device)
    refused = REFUSED.search(failure.text) if failure is not None else None
    if refused is not None:  # a refused result that was never read
        tally.refused[refused[1]] += 1
        return None
    tally.programs += 1
    tally.steps += len(program.steps)
    if failure is not None:
        failure = minimize(failure, device) if shrink else failure
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
    begin = time.perf_counter()
    for seed in range(args.seed, args.seed + args.count):
        failure = run(seed, "remote", tally, tuple(range(args.variants)), not args.no_minimise)
        if failure is not None:
            print(f"FAILED {failure.report()}", flush=True)
    for op, times in tally.refused.most_common():
        print(f"{times:6} {op}   e.g. {tally.examples.get(op)}")
    for reason, times in tally.own.most_common():
        print(f"{times:6} CPU's own: {reason}")
    seconds = time.perf_counter() - begin
    print(
        f"{tally.programs} programs, {tally.steps} steps compared, {tally.refused.total()} refused, "
        f"{tally.complex_refused.total()} of complex numbers, "
        f"{tally.own.total()} are the CPU's own, {len(explained_programs)} programs differ by roundings, "
        f"{len(tally.failures)} failed, {seconds:.0f} s"
    )
    return min(len(tally.failures), 1)


if __name__ == "__main__":
    sys.exit(main())
