"""Distinguishes differences that rounding explains from errors.

A device may round the results of some steps differently from CPU PyTorch. It sums in another order, or keeps float32
where CPU stores a half type in between. Later steps can amplify the difference: a comparison near a jump, a difference
of nearly equal numbers, a norm of equal numbers. The rule here needs no list of such steps. The program runs several
more times on CPU. In each run, the operands and results of the affected steps get random errors of a few units in the
last place. The factors of `prod` are in random order. The last run computes those steps in float64. An element may
differ from CPU's by about as much as it differs between these runs.

The method is stochastic arithmetic: D. S. Parker, "Monte Carlo Arithmetic" (1997).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

RUNS = 13  # each with different errors; an element near a jump falls on the other side in about half of them
EXACT = RUNS - 1  # the seed of the last run, which computes in float64 without random errors, so zeros stay 0
ULPS = 4.0  # the largest error, in multiples of the dtype's epsilon; in half types also of the smallest number
FACTOR = 4.0  # an element may be this many times as far from CPU's value as in the furthest run

# Tags of ops that draw random numbers, or whose result's size depends on data.
RANDOM = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output)
# Ops that sum. If elements cancel, the float64 remainder counts as 0 relative to the largest element.
SUMS = (
    torch.ops.aten.sum,
    torch.ops.aten.mean,
    torch.ops.aten.var_mean,
    torch.ops.aten.std_mean,
    torch.ops.aten.native_batch_norm,
    torch.ops.aten.native_group_norm,
    torch.ops.aten.native_layer_norm,
)
CANCELED = 1e-13
# CPU's kernels update the mean element by element. After an infinity it is infinite, and NaN after one more element.
MOMENTS = (torch.ops.aten.var_mean, torch.ops.aten.std_mean)


class Roundings(TorchDispatchMode):
    """While it is active and `on`, the operands and results of each CPU op get random errors of at most ULPS.

    Independent of `on`, NaNs get random bits, because the NaN that an op produces is unspecified.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.moves_zeros = seed % 2 == 0
        self.is_exact = seed == EXACT
        self.on = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        aliases = [a.alias_info for a in schema.arguments if a.alias_info is not None]
        if any(not alias.is_write for alias in aliases):  # a view
            return func(*args, **kwargs)
        written = [a.alias_info is not None for a in schema.arguments]
        if self.on and self.is_exact and not any(written) and not any(tag in func.tags for tag in RANDOM):
            return self.in_float64(func, args, kwargs)
        if self.on and not self.is_exact:
            if torch.Tag.pointwise in func.tags and written[:1] == [True]:  # reads its output argument, too
                self.add_errors(args[0])
            args = tuple(a if written[i] else tree_map(self.with_errors, a) for i, a in enumerate(args))
            if func.overloadpacket == torch.ops.aten.prod:
                args = (self.in_random_order(args[0], *args[1:2]), *args[1:])
            if func.overloadpacket in MOMENTS:
                dims = args[1] if len(args) > 1 else kwargs.get("dim")
                x = args[0]
                for dim in [dims] if dims is None or isinstance(dims, int | bool) else dims or [None]:
                    x = self.in_random_order(x, None if isinstance(dim, bool) else dim)
                args = (x, *args[1:])
        result = func(*args, **kwargs)
        tree_map(self.add_errors, result)
        if not schema.returns:  # in-place multi-tensor ops
            tree_map(self.add_errors, [a for i, a in enumerate(args) if written[i]])
        return result

    def in_float64(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results with their dtypes and strides, and values computed in float64."""
        result = func(*args, **kwargs)
        try:
            exact = func(*tree_map(wide, args), **tree_map(wide, kwargs))
        except RuntimeError:  # the op does not support float64
            return result
        for ours, other in zip(tree_leaves(result), tree_leaves(exact), strict=True):
            if isinstance(ours, torch.Tensor) and can_be_rounded(ours) and ours.shape == other.shape:
                if func.overloadpacket in SUMS and args[0].numel():
                    least = CANCELED * args[0].abs().nan_to_num(0.0, 0.0, 0.0).amax()
                    other = other.where((other.abs() > least) | other.isnan(), 0)
                ours.copy_(other)
        return result

    def in_random_order(self, t: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """The same elements in another order, along one dim or (by default) overall."""
        if dim is None or t.dim() == 0:
            return t.flatten()[torch.randperm(t.numel(), generator=self.generator)].reshape(t.shape)
        return t.index_select(dim, torch.randperm(t.shape[dim], generator=self.generator))

    def rounded(self, t: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The elements with errors relative to the scale, in float64."""
        info = torch.finfo(t.dtype)
        errors = ULPS * (2 * torch.rand(t.shape, generator=self.generator, dtype=torch.float64) - 1)
        result = t.double() + torch.where(scale.isfinite(), scale, 0.0) * info.eps * errors
        # A 0 in a half type may be a small number where it is kept in float32.
        moves = info.bits == 16 and self.moves_zeros
        return result + info.smallest_normal * info.eps * errors if moves else result

    def with_errors(self, t: Any) -> Any:
        """A copy of the tensor with the same strides."""
        if not isinstance(t, torch.Tensor) or not can_be_rounded(t):
            return t
        # may stem from a Python number, whose type promotion differs
        if t.dim() == 0 and t.dtype in (torch.float64, torch.complex128):
            return t
        copy = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype)
        copy.copy_(t)
        self.add_errors(copy)
        return copy

    def add_errors(self, t: Any) -> None:
        if not isinstance(t, torch.Tensor) or not can_be_rounded(t):
            return
        parts = torch.view_as_real(t) if t.is_complex() else t
        if self.on and not self.is_exact:
            parts.copy_(self.rounded(parts, t.abs().double().unsqueeze(-1) if t.is_complex() else t.abs().double()))
        nan = parts.isnan()
        if nan.any():
            signs = torch.rand(parts.shape, generator=self.generator) < 0.5
            parts.copy_(torch.where(nan & signs, -parts, parts))


def wide(t: Any) -> Any:
    """The tensor in float64 or complex128; other values are returned unchanged."""
    if not isinstance(t, torch.Tensor) or not can_be_rounded(t):
        return t
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def can_be_rounded(t: torch.Tensor) -> bool:
    """Whether it has floating-point elements that do not overlap."""
    if t.layout != torch.strided or t.device.type != "cpu" or t.numel() == 0 or t.is_conj() or t.is_neg():
        return False
    if not (t.is_floating_point() or t.is_complex()):
        return False
    return all(stride != 0 or size == 1 for size, stride in zip(t.shape, t.stride(), strict=True))


def explains(expected: torch.Tensor, got: torch.Tensor, runs: list[torch.Tensor], tolerance: float) -> bool:
    """Whether each element of `got` is as near to `expected` as those of the runs, or within the relative tolerance."""
    runs = [t for t in runs if t.dtype == expected.dtype and t.shape == expected.shape]
    if got.dtype != expected.dtype or got.shape != expected.shape or not runs:
        return False
    if expected.is_complex():
        # Kernels differ in which parts of a product with an infinite number are NaN.
        got = torch.where(expected.isfinite() | got.isfinite(), got, expected)
        return explains(
            torch.view_as_real(expected), torch.view_as_real(got), [torch.view_as_real(t) for t in runs], tolerance
        )
    if not expected.is_floating_point():
        varies = torch.stack([t != expected for t in runs]).any(0)
        return bool(((got == expected) | varies).all())
    # A change between a number, an infinity and NaN has infinite distance.
    spread = torch.stack([distance(t, expected) for t in runs]).amax(0)
    scale = expected.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return bool((distance(got, expected) <= FACTOR * spread + tolerance * scale).all())


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    return torch.where(same, 0.0, torch.where(finite, (a - b).abs(), torch.inf))
