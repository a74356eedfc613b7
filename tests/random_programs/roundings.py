"""Tells a difference that rounding explains from one that it does not.

A device may round the results of some steps of a program otherwise than CPU PyTorch does: it sums in another order, or
keeps float32 where CPU stores a half type in between. A later step can amplify such a rounding: a comparison beside a
jump, a difference of nearly equal numbers, a norm of numbers that are all the same. The rule here needs no list of such
steps. The program runs on the CPU several times more, with random errors of a few units in the last place in the
operands and results of exactly those steps, and the factors of its products in random order. The last run computes
those steps in float64. An element may differ from CPU's by about as much as it differs between these runs.

The method is stochastic arithmetic: D. S. Parker, "Monte Carlo Arithmetic" (1997).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

RUNS = 13  # with other errors each; an element beside a jump falls to the other side in about half of them
EXACT = RUNS - 1  # the seed of the last run: it computes in float64 and has no random errors, so what is 0 stays 0
ULPS = 4.0  # the largest error, in units of the dtype's epsilon; in half types also of the smallest number
FACTOR = 4.0  # an element may be so many times as far from CPU's value as the furthest run's

# Tags of ops that draw random numbers or ask for data.
RANDOM = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output)
# Ops that add up. What is left in float64 of elements that cancel, relative to the largest one, is 0.
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


class Roundings(TorchDispatchMode):
    """While it is active and `on`, each op on the CPU gets random errors of at most ULPS in what it reads and makes.

    On or not, NaNs get random bits: which NaN an op makes is not specified.
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
            if torch.Tag.pointwise in func.tags and written[:1] == [True]:  # reads what it writes
                self.add_errors(args[0])
            args = tuple(a if written[i] else tree_map(self.with_errors, a) for i, a in enumerate(args))
            if func.overloadpacket == torch.ops.aten.prod:
                args = (self.in_random_order(args[0], *args[1:2]), *args[1:])
        result = func(*args, **kwargs)
        tree_map(self.add_errors, result)
        if not schema.returns:  # multi-tensor ops in place
            tree_map(self.add_errors, [a for i, a in enumerate(args) if written[i]])
        return result

    def in_float64(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results as they are, with values that were computed in float64."""
        result = func(*args, **kwargs)
        try:
            exact = func(*tree_map(wide, args), **tree_map(wide, kwargs))
        except RuntimeError:  # an op of some dtypes only
            return result
        for ours, other in zip(tree_leaves(result), tree_leaves(exact), strict=True):
            if isinstance(ours, torch.Tensor) and can_be_rounded(ours) and ours.shape == other.shape:
                if func.overloadpacket in SUMS and args[0].numel():
                    other = other.where(other.abs() > CANCELED * args[0].abs().nan_to_num(0.0, 0.0, 0.0).amax(), 0)
                ours.copy_(other)
        return result

    def in_random_order(self, t: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """The same elements, those of a dim (default: all) in another order."""
        if dim is None or t.dim() == 0:
            return t.flatten()[torch.randperm(t.numel(), generator=self.generator)].reshape(t.shape)
        return t.index_select(dim, torch.randperm(t.shape[dim], generator=self.generator))

    def rounded(self, t: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The elements with errors relative to the scale, in float64."""
        info = torch.finfo(t.dtype)
        errors = ULPS * (2 * torch.rand(t.shape, generator=self.generator, dtype=torch.float64) - 1)
        result = t.double() + torch.where(scale.isfinite(), scale, 0.0) * info.eps * errors
        # What is 0 in a half type may be small where it is kept in float32.
        moves = info.bits == 16 and self.moves_zeros
        return result + info.smallest_normal * info.eps * errors if moves else result

    def with_errors(self, t: Any) -> Any:
        """A copy of the tensor, strides included."""
        if not isinstance(t, torch.Tensor) or not can_be_rounded(t):
            return t
        if t.dim() == 0 and t.dtype in (torch.float64, torch.complex128):  # perhaps a number, which promotes otherwise
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
    """The tensor in float64 or complex128; what has no floating point as it is."""
    if not isinstance(t, torch.Tensor) or not can_be_rounded(t):
        return t
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def can_be_rounded(t: torch.Tensor) -> bool:
    """Floating-point elements, each at a place of its own."""
    if t.layout != torch.strided or t.device.type != "cpu" or t.numel() == 0 or t.is_conj() or t.is_neg():
        return False
    if not (t.is_floating_point() or t.is_complex()):
        return False
    return all(stride != 0 or size == 1 for size, stride in zip(t.shape, t.stride(), strict=True))


def explains(expected: torch.Tensor, got: torch.Tensor, runs: list[torch.Tensor], tolerance: float) -> bool:
    """Whether each element of `got` is as near to `expected` as the runs are, or within the relative tolerance."""
    runs = [t for t in runs if t.dtype == expected.dtype and t.shape == expected.shape]
    if got.dtype != expected.dtype or got.shape != expected.shape or not runs:
        return False
    if expected.is_complex():
        # Which parts of a product with an infinite number are NaN is each kernel's own.
        got = torch.where(expected.isfinite() | got.isfinite(), got, expected)
        return explains(
            torch.view_as_real(expected), torch.view_as_real(got), [torch.view_as_real(t) for t in runs], tolerance
        )
    if not expected.is_floating_point():
        varies = torch.stack([t != expected for t in runs]).any(0)
        return bool(((got == expected) | varies).all())
    # A change between a number, an infinity and NaN is an infinite distance.
    spread = torch.stack([distance(t, expected) for t in runs]).amax(0)
    scale = expected.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return bool((distance(got, expected) <= FACTOR * spread + tolerance * scale).all())


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    return torch.where(same, 0.0, torch.where(finite, (a - b).abs(), torch.inf))
