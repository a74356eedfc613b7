"""Random programs, compiled for the device, compared with eager CPU: the results and the writes to inputs must be the
same.

A compiled function may differ in the ways in which torch's own capture differs on CPU. Above all, its results may have
the strides that torch's tracing predicts, as with torch's default compiler. Eager kernels give some results other
strides. Such programs are counted.

compiled_programs.py --seed 0 --count 500        runs the programs of seeds 0 to 499
compiled_programs.py --seed 4711 --show          prints the function
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from generator import generate
from predicted_layout import PREDICTED_LAYOUT
from program import TOLERANCES, Session, same_values
from roundings import RUNS, Roundings, explains

# Steps that read a value in Python or inspect a tensor from outside are only for programs that are not compiled. Also
# excluded: for a power of a bool, torch's fake tensors give int64.
_OUTSIDE = re.compile(
    r"\b(read|check|same_storage|synchronize|backward|grad|requires_grad\w*|deepcopy|pickle|item|data|drawn|optimized|check_draws)\b"
    r"|pow.*\b(True|False)\b"
)
_LEAF = re.compile(r"(\w+) = (leaf\(.*\))\.to\(device\)$")


# The outcome of a run: results and inputs afterwards, or gradients, with their strides on the device (a copy may have
# others); or the error.
Shown = tuple[torch.Tensor, tuple[int, ...]]
Outcome = list[Shown] | str


@dataclass(frozen=True)
class Function:
    """A function of a program's leaves."""

    source: str
    # The same, with a call `rounds(b)` before each step. It states whether the step may round differently on a device.
    marked_source: str
    leaves: list[str]  # expressions of its arguments
    exact: list[bool]  # for each result and argument: no step rounded it


def function_of(seed: int) -> Function:
    """The function ends before the first step that raises, because that step may have written some of its operands."""
    program = generate(seed)
    session = Session("cpu")
    leaves: dict[str, str] = {}
    body: list[str] = []
    marked: list[str] = []
    for step in program.steps:
        leaf = _LEAF.match(step.code)
        if leaf is None and (_OUTSIDE.search(step.code) or not session.variables.keys() >= set(step.uses)):
            continue
        used = [t for name in step.uses if isinstance(t := session.variables.get(name), torch.Tensor)]
        rounds = session.rounds(step, used)
        if session.run(step) is not None:
            break
        if leaf is not None:
            leaves[leaf[1]] = leaf[2]
        else:
            body.extend(step.code.splitlines())
            marked.extend([f"rounds({rounds})", *step.code.splitlines()])
    names = [name for name in session.variables if re.fullmatch(r"v\d+", name)]
    head, tail = f"def function({', '.join(leaves)}):", f"return [{', '.join(names)}]"
    exact = []
    for name in [*names, *leaves]:
        value = session.variables.get(name)
        if isinstance(value, torch.Tensor):
            exact.append(session.is_exact(value))
        elif name in leaves and name not in names:
            exact.append(False)
    lines = ([head, *body, tail], [head, *marked, "rounds(True)", tail])
    source, marked_source = ("\n    ".join(each) for each in lines)
    return Function(source, marked_source, list(leaves.values()), exact)


@dataclass(frozen=True)
class Result:
    """The result of a seed. `what` describes an error of ours, `torchs` a difference that torch's own capture has, too,
    and `rounded` one that rounding explains."""

    what: str | None = None
    torchs: str | None = None
    rounded: str | None = None
    gradients: bool = False


def check(seed: int) -> Result:
    """Runs the function of a seed on CPU, and compiled on the device."""
    made = function_of(seed)
    if not made.leaves:
        return Result()

    def run(device: str, backend: Any, gradients: bool, roundings: Roundings | None = None) -> Outcome:
        torch._dynamo.reset()
        variables = dict(Session(device).variables)
        source = made.source
        if roundings is not None:
            source = made.marked_source
            variables["rounds"] = lambda on: setattr(roundings, "on", on)
        exec(compile(source, f"<program {seed}>", "exec"), variables)
        inputs = [eval(leaf, variables).to(device) for leaf in made.leaves]
        function = variables["function"]
        if backend:
            function = torch.compile(function, backend=backend)
        with warnings.catch_warnings(), roundings or contextlib.nullcontext():
            warnings.simplefilter("ignore")
            return _gradients(function, inputs) if gradients else _outcome(function, inputs)

    torchs = rounded = None
    with_gradients = False
    for gradients in (False, True):
        expected = run("cpu", None, gradients)
        if isinstance(expected, str):
            assert gradients, expected  # steps that raise were left out
            continue  # tensors written in place have no gradient
        with_gradients |= gradients
        kinds = None if gradients else made.exact
        mine = run("remote", "remote", gradients)
        wrong = _differences(mine, expected, kinds)
        if not wrong:
            continue
        text = ("gradients: " if gradients else "") + next(iter(wrong.values()))
        its = run("cpu", PREDICTED_LAYOUT, gradients)
        if isinstance(mine, str) or isinstance(its, str) or -1 in wrong or len(its) != len(mine):
            if not _raises_alike(mine, its) and (isinstance(its, str) or _differences(mine, its, kinds)):
                return Result(text, torchs, rounded, with_gradients)
            torchs = text
            continue
        # Differences of torch's own capture on CPU must be in the same values, and of the same kind.
        torchs_own = _differences(its, expected, kinds).keys() - _differences(mine, its, kinds).keys()
        others = wrong.keys() - torchs_own
        if len(others) < len(wrong):
            torchs = text
        if not others:
            continue
        runs = [run("cpu", None, gradients, Roundings(number)) for number in range(RUNS)]
        if not _explained(mine, expected, its, others, runs):
            text = ("gradients: " if gradients else "") + wrong[min(others)]
            return Result(text, torchs, rounded, with_gradients)
        rounded = text
    return Result(None, torchs, rounded, with_gradients)


def _lies_alike(sizes: Iterable[int], a: Iterable[int], b: Iterable[int]) -> bool:
    return all(x == y for x, y, size in zip(a, b, sizes, strict=True) if size > 1)


def _raises_alike(a: Outcome, b: Outcome) -> bool:
    return isinstance(a, str) and isinstance(b, str) and a.split(":")[0] == b.split(":")[0]


def _explained(
    mine: list[Shown], expected: Outcome, traced: list[Shown], wrong: Iterable[int], runs: list[Outcome]
) -> bool:
    """Whether rounding explains the differences in the values with these indices."""
    if isinstance(expected, str) or len(mine) != len(expected):
        return False
    for i in wrong:
        (value, stride), (its, want) = mine[i], expected[i]
        if value.shape != its.shape or not any(
            _lies_alike(its.shape, stride, each) for each in (want, traced[i][1]) if len(each) == len(stride)
        ):
            return False
        others = [other[i][0] for other in runs if not isinstance(other, str) and len(other) > i]
        if not explains(its, value, others, TOLERANCES.get(its.dtype, 0.0)):
            return False
    return True


def _differences(actual: Outcome, expected: Outcome, exact: list[bool] | None) -> dict[int, str]:
    """Differences by index of the value; -1 for an exception or a different number of values. `exact` states which
    values must have the same bits; None: none."""
    if isinstance(actual, str):
        return {-1: f"raised: {actual}"}
    if len(actual) != len(expected):
        return {-1: f"{len(actual)} values, expected {len(expected)}"}
    exact = exact or [False] * len(expected)
    found = {}
    for i, ((mine, stride), (its, want), same) in enumerate(zip(actual, expected, exact, strict=True)):
        if mine.dtype != its.dtype or mine.shape != its.shape:
            found[i] = f"value {i}: {mine.dtype} {tuple(mine.shape)}, expected {its.dtype} {tuple(its.shape)}"
        elif any(a != b for a, b, size in zip(stride, want, its.shape, strict=True) if size > 1 and its.numel()):
            found[i] = f"value {i}: strides {stride}, expected {want} (sizes {tuple(its.shape)})"
        elif not same_values(its, mine, inexact=not same):
            found[i] = f"value {i}: values are\n{mine}\nexpected\n{its}"
    return found


def _shown(t: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    return t.detach().cpu().resolve_conj().resolve_neg(), t.stride()


def _outcome(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Outcome:
    try:
        results = [*function(*inputs), *inputs]
        return [_shown(r) for r in results if isinstance(r, torch.Tensor)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _gradients(function: Callable[..., Any], inputs: list[torch.Tensor]) -> Outcome:
    """The gradients of the sum of all floating-point results."""
    try:
        inputs = [t.requires_grad_(t.is_floating_point()) for t in inputs]
        results = [r for r in function(*inputs) if isinstance(r, torch.Tensor) and r.requires_grad]
        results = [r for r in results if r.is_floating_point() and not r.is_leaf]
        wanted = [t for t in inputs if t.requires_grad]
        if not results or not wanted:
            return "nothing"
        total = sum(r.double().sum() for r in results)
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        return [_shown(g) for g in gradients if g is not None]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the function instead of running it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.show:
        print(function_of(args.seed).source)
        return 0
    import torch_remote  # noqa: F401

    failed = gradients = torchs = rounded = 0
    begin = time.perf_counter()
    for seed in range(args.seed, args.seed + args.count):
        result = check(seed)
        gradients += result.gradients
        if result.torchs is not None:
            torchs += 1
            print(f"seed {seed}: as torch captures it: {result.torchs}", flush=True)
        rounded += result.rounded is not None
        if result.what is not None:
            failed += 1
            print(f"FAILED seed {seed}: {result.what}\n{function_of(seed).source}\n", flush=True)
    seconds = time.perf_counter() - begin
    shown = f"{gradients} with gradients, {failed} failed, {torchs} as torch has them, {rounded} rounded"
    print(f"{args.count} programs, {shown}, {seconds:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
