"""Ops in generated kernels: each op that fusion accepts, between neighbors that change no values, compared with CPU.

fused.py                       everything: ops x dtypes x forms, and the differences
fused.py --only sigmoid        those whose name begins so
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import sys
import warnings
from collections.abc import Callable

import torch
from fused_cases import BITS, CASES, FLOATS, Case, unchanged
from fused_samples import samples

# An element may be this many units in the last place (of the result's dtype) further from the exact value than torch's.
EXTRA_ULPS = 2.0
# float64 has no more exact reference: torch's kernel and ours may differ by at most this many.
ULPS_OF_DOUBLES = 4.0
# For reductions, relative to the largest result: a multiple of torch's error, and units of the result's dtype.
TIMES_OF_SUMS, UNITS_OF_SUMS = 1.5, 4.0
UNITS_OF_SUMS_OF_DOUBLES = 16.0

# Exceptions, by entry of the op table and optionally dtype: allowed units, and the reason.
MORE: dict[str, tuple[float, str]] = {
    "silu_backward float32": (4, "1 + x * (1 - sigmoid(x)) cancels near its zero"),
    "silu_backward float64": (32, "1 - sigmoid(x) cancels, times x"),
    "mish": (4, "four functions one after the other"),
    "hardsigmoid_backward float64": (math.inf, "torch multiplies by 1 / 6 in float32, whatever the dtype"),
}
# Where terms cancel, the unit is that of the largest term.
Sizes = Callable[[Case], torch.Tensor]


def largest_of(*indices: int) -> Sizes:
    return lambda case: torch.stack([case.tensors[i].double().abs() for i in indices]).amax(0)


CANCELS: dict[str, Sizes] = {
    "logaddexp": largest_of(0, 1),
    "logaddexp2": largest_of(0, 1),
    "gelu": largest_of(0),  # x / 2 * (1 + erf(x / sqrt(2))) below 0
    "gelu_backward": lambda case: case.tensors[0].double().abs() * case.tensors[1].double().abs().clamp(min=1),
    "mish_backward": lambda case: case.tensors[0].double().abs() * case.tensors[1].double().abs().clamp(min=1),
    "lgamma": lambda case: torch.ones(()).double(),  # at its zeros below 0
    "_foreach_lgamma": lambda case: torch.ones(()).double(),
}
# For products of all elements: units, as for sums.
UNITS_OF_PRODUCTS = 64.0

Places = Callable[[Case, torch.Tensor], torch.Tensor]


def nan_in(index: int) -> Places:
    return lambda case, eager: case.tensors[index].isnan().expand(eager.shape)


def zeros(case: Case, eager: torch.Tensor) -> torch.Tensor:
    return eager == 0


# Values that are not compared, because torch's vector code differs from its scalar code, which computes the last
# elements.
UNDEFINED: dict[str, tuple[Places, str]] = {
    "hardshrink_backward": (nan_in(1), "0 or the gradient where self is NaN"),
    "softshrink_backward": (nan_in(1), "0 or the gradient where self is NaN"),
    "hardtanh_backward": (nan_in(1), "0 or the gradient where self is NaN"),
    "hardswish_backward": (nan_in(1), "NaN or the gradient where self is NaN"),
    "softshrink": (zeros, "the sign of zero"),
    "native_dropout_backward": (zeros, "the sign of zero, of gradients that are integers"),
    "fmax": (zeros, "the sign of zero"),
    "fmin": (zeros, "the sign of zero"),
    "fmod": (
        lambda case, eager: eager.isnan(),
        "NaN where the quotient has more digits than the type; fmod of C is exact",
    ),
    "remainder": (lambda case, eager: eager.isnan(), "NaN where the quotient has more digits than the type"),
    "softplus_backward": (lambda case, eager: eager.isinf(), "torch's grad * z / (1 + z) overflows before it divides"),
}


# -- running -----------------------------------------------------------------------------------------------------------


def run(case: Case, device: torch.device | str, exactly: bool = False) -> list[torch.Tensor] | None:
    """The results; None if CPU refuses the call. `exactly`: in float64."""

    def there(x: torch.Tensor) -> torch.Tensor:
        if not exactly or x.dtype == torch.bool:
            return x.to(device)
        integers = not x.is_floating_point() and not case.dtype.is_floating_point
        return x.float().double() if integers and not case.sums else x.double() if x.is_floating_point() else x

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = case.function(*[unchanged(x) if x.dim() else x for x in map(there, case.tensors)])
            results = [results] if isinstance(results, torch.Tensor) else list(results)
            return [(unchanged(r) if r.dim() else r).cpu() for r in results if r is not None]
    except (RuntimeError, IndexError, TypeError):
        if exactly or str(device) == "cpu":
            return None
        raise


# -- comparing ---------------------------------------------------------------------------------------------------------


def ulps(got: torch.Tensor, want: torch.Tensor, least: torch.Tensor | None = None) -> torch.Tensor:
    """The distance of `got` from the float64 `want`, in units in the last place that `want` has in the dtype of `got`.
    If `least` is larger than `want`, it determines the unit. The distance is infinite where only one of them is NaN."""
    info = torch.finfo(got.dtype)
    digits = round(-math.log2(info.eps))
    largest, tiny = float(info.max), float(info.tiny)
    magnitude = (
        (want.abs() if least is None else torch.maximum(want.abs(), least)).nan_to_num(tiny).clamp(tiny, largest)
    )
    unit = torch.ldexp(torch.ones_like(magnitude), torch.frexp(magnitude).exponent - 1 - digits)
    # Infinity is one unit beyond the largest finite number.
    beyond = lambda x: torch.where(x.abs() > largest, torch.copysign(torch.full_like(x, largest) + unit, x), x)  # noqa: E731
    rounded = want.to(got.dtype)
    error = (beyond(got.double()) - beyond(torch.where(rounded.isinf(), rounded.double(), want))).abs() / unit
    error = torch.where((got == rounded) | (got.isnan() & want.isnan()), 0.0, error)
    return error.nan_to_num(math.inf, math.inf)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a == b
    bits = BITS[a.element_size()]
    return (a.view(bits) == b.view(bits)) | (a.isnan() & b.isnan())


def wrong_places(case: Case, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where a pointwise result is not exact enough."""
    name = f"{case.entry} {str(eager.dtype)[6:]}"
    more = MORE.get(name, MORE.get(case.entry, (EXTRA_ULPS, "")))[0]
    least = None
    if case.entry in CANCELS:
        least = CANCELS[case.entry](case).nan_to_num(1)
    if eager.dtype == torch.float64:
        wrong = ulps(got, eager, least) > max(ULPS_OF_DOUBLES, more)
    else:
        ours, torchs = ulps(got, exact, least), ulps(eager, exact, least)
        # A NaN is wrong only where torch has a number: torch's kernel may overflow in intermediate values.
        wrong = (ours > torchs + more) | (got.isnan() & ~eager.isnan())
    # The sign of an exact zero must be torch's or the exact one.
    signs = (got.signbit() != eager.signbit()) & (got.signbit() != exact.signbit())
    return wrong | ((got == 0) & (eager == 0) & (exact == 0) & signs)


def wrong_sums(case: Case, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    wrong = got.isnan() != eager.isnan()
    wrong |= (got.isinf() | eager.isinf()) & (got != eager)
    finite = exact.isfinite() & eager.isfinite()
    if not bool(finite.any()):
        return wrong
    scale = max(exact[finite].abs().max().item(), 1.0)
    if case.name in ("sum", "mean"):  # terms may cancel
        terms = case.function(*(t.double().abs() for t in case.tensors)).nan_to_num(0, 0, 0)
        scale = max(scale, terms.max().item())
    allowed = TIMES_OF_SUMS * (eager.double() - exact)[finite].abs().max().item()
    units = UNITS_OF_SUMS_OF_DOUBLES if got.dtype == torch.float64 else UNITS_OF_SUMS
    units = UNITS_OF_PRODUCTS if case.name == "prod" else units
    allowed += units * torch.finfo(got.dtype).eps * scale
    return wrong | (finite & ((got.double() - exact).abs() > allowed))


def sensitivity(case: Case, result: int) -> torch.Tensor | None:
    """How far a result moves in float64 if each input changes by up to two representable numbers. If CPU's own error is
    larger, that counts. No rounding algorithm can be held to less. (One example is the gradient of a norm of two close
    numbers.)"""
    generator = torch.Generator().manual_seed(0)
    exact = run(case, "cpu", exactly=True)
    if exact is None or not exact[result].is_floating_point():
        return None
    moved = torch.zeros_like(exact[result])
    for _ in range(16):

        def near(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point():
                return x
            steps = torch.randint(-2, 3, x.shape, generator=generator).double()
            return (x.double() * (1 + steps * torch.finfo(x.dtype).eps)).to(x.dtype)

        there = dataclasses.replace(case, tensors=tuple(map(near, case.tensors)))
        beside = run(there, "cpu", exactly=True)
        rounded = run(there, "cpu")
        if beside is not None and beside[result].shape == moved.shape:
            moved = torch.maximum(moved, (beside[result] - exact[result]).abs().nan_to_num(0, 0, 0))
            moved = torch.maximum(moved, (beside[result] - rounded[result]).abs().nan_to_num(0, 0, 0))
    return moved


def difference(
    case: Case, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, result: int = 0
) -> str | None:
    """Describes what is wrong with a result."""
    if got.dtype != eager.dtype or got.shape != eager.shape or got.stride() != eager.stride():
        return (
            f"{got.dtype} {tuple(got.shape)} {got.stride()}, on CPU {eager.dtype} {tuple(eager.shape)} {eager.stride()}"
        )
    wrong = ~same_bits(got, eager)
    if eager.is_floating_point() and bool(wrong.any()):
        exact = eager.double() if exact is None or exact.shape != eager.shape else exact.double()
        wrong &= wrong_sums(case, got, eager, exact) if case.sums else wrong_places(case, got, eager, exact)
        if case.sums and bool(wrong.any()) and (moved := sensitivity(case, result)) is not None:
            wrong &= ~((got.double() - exact).abs() <= 4 * moved)
        if case.entry in UNDEFINED:
            wrong &= ~UNDEFINED[case.entry][0](case, eager)
    if not bool(wrong.any()):
        return None
    places = wrong.nonzero().tolist()
    lines = []
    for place in places[:4]:
        at = tuple(place)
        given = [x[at].item() for x in case.tensors if x.shape == got.shape]
        of = f"{at}" if len(given) < len(case.tensors) else ", ".join(map(repr, given))
        known = f" (exactly {exact[at].item()!r})" if exact is not None and exact.shape == got.shape else ""
        lines.append(f"of {of}: {got[at].item()!r}, on CPU {eager[at].item()!r}{known}")
    return f"{len(places)} of {got.numel()}; {'; '.join(lines)}"


def check(case: Case, device: torch.device | str) -> str | None:
    """The difference; None if there is none, "refused" if CPU refuses the call."""
    eager = run(case, "cpu")
    if eager is None:
        return "refused"
    exact = run(case, "cpu", exactly=True)
    got = run(case, device)
    assert got is not None
    for i, (g, e) in enumerate(zip(got, eager, strict=True)):
        text = difference(case, g, e, exact[i] if exact is not None else None, i)
        if text is not None:
            return text
    return None


class Tally:
    """Outcomes of cases: the number of comparisons, and of kernels compiled for them."""

    def __init__(self) -> None:
        self.tried: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.kernels = 0

    def add(self, case: Case, device: torch.device | str) -> None:
        before = compiled()
        try:
            text = check(case, device)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.kernels += compiled() - before
        if text == "refused":
            return
        self.tried[case.name] += 1
        if text is not None:
            self.failures.append(f"{case}: {text}")


def compiled() -> int:
    torch.remote.synchronize()
    return torch.remote.stats()["kernels_compiled"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--samples", action="store_true", help="of op_db, with gradients, too")
    args = parser.parse_args()
    import torch_remote  # noqa: F401

    torch.set_num_threads(1)
    sources = {name: make() for name, make in CASES.items()}
    if args.samples:
        sources |= {f"samples in {str(dtype)[6:]}": samples(dtype) for dtype in FLOATS}
    failed = 0
    for name, cases in sources.items():
        tally = Tally()
        for case in cases:
            known = len(tally.failures)
            if case.name.startswith(args.only):
                tally.add(case, "remote")
            for text in tally.failures[known:]:
                print(f"FAILED {text}", flush=True)
        failed += len(tally.failures)
        ops, compared = len(tally.tried), tally.tried.total()
        print(f"{name}: {ops} ops, {compared} cases, {tally.kernels} kernels, {len(tally.failures)} failed", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
