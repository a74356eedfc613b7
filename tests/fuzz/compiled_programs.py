"""Random programs, compiled for the device, against CPU, not compiled: same results, and inputs written alike.

compiled_programs.py --seed 0 --count 500        runs the programs of seeds 0 to 499
compiled_programs.py --seed 4711 --show          prints the function
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from generator import generate
from program import Session

# What asks Python for a value or looks at a tensor from outside is for programs that are not compiled.
# And torch's fake tensors take the power of a bool for an int64.
_OUTSIDE = re.compile(
    r"\b(read|check|same_storage|synchronize|backward|grad|requires_grad\w*|deepcopy|pickle|item|data)\b"
    r"|pow.*\b(True|False)\b"
)
_LEAF = re.compile(r"(\w+) = (leaf\(.*\))\.to\(device\)$")


def function_of(seed: int) -> tuple[str, list[str], bool]:
    """Source of a function of the program's leaves, their expressions, and whether its results are inexact.

    It ends before the first step that raises: that may have written some of its operands.
    """
    program = generate(seed)
    session = Session("cpu")
    leaves: dict[str, str] = {}
    body: list[str] = []
    for step in program.steps:
        leaf = _LEAF.match(step.code)
        if leaf is None and (_OUTSIDE.search(step.code) or not session.variables.keys() >= set(step.uses)):
            continue
        if session.run(step) is not None:
            break
        if leaf is not None:
            leaves[leaf[1]] = leaf[2]
        else:
            body.extend(step.code.splitlines())
    names = [name for name in session.variables if re.fullmatch(r"v\d+", name)]
    lines = [f"def function({', '.join(leaves)}):", *body, f"return [{', '.join(names)}]"]
    return "\n    ".join(lines), list(leaves.values()), program.inexact


def difference(seed: int) -> str | None:
    """What differs between the device, compiled, and CPU; None: nothing, or what torch's own capture makes differ."""
    source, leaves, inexact = function_of(seed)
    if not leaves:
        return None

    def run(device: str, backend: str | None) -> list[torch.Tensor] | str:
        torch._dynamo.reset()
        variables = dict(Session(device).variables)
        exec(compile(source, f"<program {seed}>", "exec"), variables)
        inputs = [eval(leaf, variables).to(device) for leaf in leaves]
        function = variables["function"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _outcome(torch.compile(function, backend=backend) if backend else function, inputs)

    expected = run("cpu", None)
    what = _compare(run("remote", "remote"), expected, inexact)
    if what is not None and _compare(run("cpu", "aot_eager"), expected, inexact) is not None:
        return None
    return what


def _compare(actual: list[torch.Tensor] | str, expected: list[torch.Tensor] | str, inexact: bool) -> str | None:
    assert not isinstance(expected, str), expected  # steps that raise were left out
    if isinstance(actual, str):
        return f"raised: {actual}"
    for i, (mine, its) in enumerate(zip(actual, expected, strict=True)):
        try:
            rtol, atol = (1e-3, 1e-3) if inexact or its.is_floating_point() or its.is_complex() else (0.0, 0.0)
            torch.testing.assert_close(mine, its, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"value {i}: {error}"
    return None


def _outcome(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor] | str:
    try:
        results = [*function(*inputs), *inputs]
        return [r.detach().cpu().resolve_conj().resolve_neg() for r in results if isinstance(r, torch.Tensor)]
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
        print(function_of(args.seed)[0])
        return 0
    import torch_remote  # noqa: F401

    failed = 0
    begin = time.perf_counter()
    for seed in range(args.seed, args.seed + args.count):
        what = difference(seed)
        if what is not None:
            failed += 1
            print(f"FAILED seed {seed}: {what}\n{function_of(seed)[0]}\n", flush=True)
    print(f"{args.count} programs, {failed} failed, {time.perf_counter() - begin:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
