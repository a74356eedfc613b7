"""Ops that reduce or normalize, on data of all scales and far from zero. The largest errors, in units of a result, are
compared with those of torch's CPU kernels. The exact values are computed in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fused import ulps
from fused_cases import unchanged
from torch import Tensor

# Allowed excess over torch's error, in units in the last place.
EXTRA_ULPS = 2.0
# For combinations of several ops, which round in between, errors are random. The limit is this multiple of torch's
# largest error at the offset.
RANDOM_ERROR_FACTOR = 1.5
# Sets per scale and offset in that case. Where all numbers are small, a set has only one rounding error.
RANDOM_ERROR_SETS = 4
COLUMNS = 333

Function = Callable[..., Any]

SCALES = (1e-38, 1e-30, 1e-25, 1e-18, 1e-10, 1e-4, 1.0, 1e4, 1e10, 1e18, 1e20, 1e25, 1e30, 1e38)
OFFSETS = (0.0, 1e0, 1e2, 1e4, 1e6)  # of the mean, in standard deviations


@dataclass(frozen=True)
class Op:
    """A `function` of a tensor. `dim` enumerates independent sets of data, in each result, too. None: one set at a
    time."""

    name: str
    function: Function
    shape: tuple[int, ...]  # of a set
    dim: int | None = 0
    gradient: bool = False
    random_errors: bool = False


def sets(dtype: torch.dtype) -> list[tuple[float, float]]:
    """Scales and offsets that the dtype can represent."""
    info = torch.finfo(dtype)
    pairs = itertools.product(SCALES, OFFSETS)
    known = [(s, o) for s, o in pairs if s * max(o, 1) <= info.max and s * max(o, 1) >= info.tiny / 2]
    # A dtype in which such data would be a single number is useless.
    return [(s, o) for s, o in known if o * info.eps < 1]


def data(op: Op, dtype: torch.dtype, generator: torch.Generator) -> tuple[list[tuple[float, float]], Tensor]:
    """Scales and offsets, and the sets concatenated."""
    chosen = sets(dtype) * (RANDOM_ERROR_SETS if op.random_errors else 1)
    most = torch.finfo(dtype).max
    made = []
    for scale, offset in chosen:
        x = (torch.randn(op.shape, dtype=torch.float64, generator=generator) + offset) * scale
        made.append(x.clamp(-most, most).to(dtype))
    return chosen, torch.stack(made)


def gradient_of(function: Function) -> Function:
    """The gradient of the first result. The upstream gradient is the same in all dtypes."""

    def run(x: Tensor, g: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = function(x * 1)
        y = y[0] if isinstance(y, (tuple, list)) else y
        (grad,) = torch.autograd.grad(y, x, g[: y.numel()].reshape(y.shape).to(y.dtype))
        return grad

    return run


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def weighted_layer_norm(x: Tensor) -> Tensor:
    w = torch.linspace(0.5, 1.5, x.shape[-1], device=x.device, dtype=x.dtype)
    return F.layer_norm(x, x.shape[-1:], w, w)


def gradients_of_weights(x: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.linspace(0.5, 1.5, x.shape[-1], device=x.device, dtype=x.dtype).requires_grad_()
    b = torch.zeros_like(w).requires_grad_()
    y = F.layer_norm(x * 1, x.shape[-1:], w, b)
    return torch.autograd.grad(y, (w, b), torch.ones_like(y) + torch.arange(x.shape[0], device=x.device)[:, None] / 8)


def trained_batch_norm(x: Tensor) -> tuple[Tensor, ...]:
    w = torch.linspace(0.5, 1.5, x.shape[1], device=x.device, dtype=x.dtype)
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    y = F.batch_norm(x, mean, var, w, w, training=True)
    return y, mean.reshape(1, -1), var.reshape(1, -1)


def almost_bare_batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True, eps=1e-37)


def labels_of(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) % x.shape[1]


def halves(function: Function) -> Function:
    """A function of two tensors, the left and the right half of the columns."""
    return lambda x: function(*x.chunk(2, -1))


ROWS = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "nansum": lambda x: x.nansum(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "std, no correction": lambda x: x.std(1, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "vector_norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "vector_norm 3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "norm": lambda x: x.norm(dim=1, keepdim=True),
    "prod": lambda x: x[:, :7].prod(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "standardized": standardized,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer_norm, weights": weighted_layer_norm,
    "layer_norm, no eps": lambda x: F.layer_norm(x, x.shape[1:], eps=0.0),
    "rms_norm": rms_norm,
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine_similarity": halves(lambda x, y: F.cosine_similarity(x, y, 1)),
    "squared differences": halves(lambda x, y: F.mse_loss(x, y, reduction="none").mean(1)),
    "cross_entropy": lambda x: F.cross_entropy(x, labels_of(x), reduction="none"),
}
COLUMN_OPS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "nansum": lambda x: x.nansum(0),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "prod": lambda x: x[:5].prod(0),
}
CHANNELS = {
    "batch_norm": trained_batch_norm,
    "batch_norm, least eps": almost_bare_batch_norm,
}
IMAGES = {
    "group_norm": lambda x: F.group_norm(x, 2),
    "group_norm, no eps": lambda x: F.group_norm(x, 2, eps=0.0),
    "instance_norm": lambda x: F.instance_norm(x),
}
WHOLE_TENSOR = {
    "sum of all": lambda x: x.sum(),
    "mean of all": lambda x: x.mean(),
    "vector_norm of all": lambda x: torch.linalg.vector_norm(x),
    "mse_loss": halves(F.mse_loss),
    "l1_loss": halves(F.l1_loss),
    "smooth_l1_loss": halves(F.smooth_l1_loss),
    "huber_loss": halves(F.huber_loss),
    "cross_entropy, mean": lambda x: F.cross_entropy(x, labels_of(x)),
    "gradients of layer_norm's weights": gradients_of_weights,
}
# Torch computes these by several ops, or from values stored in the input's dtype, or from denormal powers.
RANDOM_ERRORS = (
    "vector_norm 3",
    "standardized",
    "rms_norm",
    "normalize",
    "cosine_similarity",
    "gradients of layer_norm's weights",
)
# Piecewise constant, or with a gradient that repeats the op's own test.
NO_GRADIENT = ("nansum", "prod", "std, no correction", "cumsum", "norm", "vector_norm 1", "vector_norm 3")


def ops() -> list[Op]:
    found = []
    for table, shape, dim in (
        (ROWS, (COLUMNS + 1,), 0),
        (COLUMN_OPS, (COLUMNS,), 1),
        (CHANNELS, (4, 9, 11), 1),
        (IMAGES, (6, 9, 11), 0),
        (WHOLE_TENSOR, (8, COLUMNS + 1), None),
    ):
        for name, function in table.items():
            where = "" if dim != 1 or table is CHANNELS else ", rows"
            found.append(Op(name + where, function, shape, dim, random_errors=name in RANDOM_ERRORS))
            if table is not WHOLE_TENSOR and name not in NO_GRADIENT:
                found.append(Op(f"gradient of {name}{where}", function, shape, dim, True, True))
    return found


@dataclass(frozen=True)
class Errors:
    """The largest errors of a result's set, in units in the last place of the largest number."""

    result: int
    scale: float
    offset: float
    ours: float
    torchs: float

    def __str__(self) -> str:
        of = f"result {self.result}, scale {self.scale:g}, offset {self.offset:g}"
        return f"{of}: off by {self.ours:.4g} ulp, torch's by {self.torchs:.4g}"


# -- comparing ---------------------------------------------------------------------------------------------------------


def results(op: Op, x: Tensor, g: Tensor) -> list[Tensor]:
    function = gradient_of(op.function) if op.gradient else lambda x, g: op.function(unchanged(x))
    made = function(x, g)
    return [unchanged(r).detach().cpu() for r in ([made] if isinstance(made, Tensor) else made)]


def largest_error(got: Tensor, exact: Tensor) -> Tensor:
    """The error of each set (a row), in units in the last place of the set's largest number."""
    rounded = exact.to(got.dtype)
    finite = torch.where(rounded.isfinite(), exact.abs(), 0.0)
    errors = ulps(got, exact, finite.amax(1, keepdim=True).expand_as(exact))
    return torch.where(rounded.isfinite() & ~got.isfinite(), math.inf, errors).amax(1)


def errors_of(op: Op, dtype: torch.dtype, device: torch.device | str, generator: torch.Generator) -> list[Errors]:
    """The errors of all sets."""
    names, x = data(op, dtype, generator)
    g = torch.randn(math.prod(x.shape), dtype=torch.float64, generator=generator).to(dtype)
    if op.dim is None:
        calls = [(names[i : i + 1], x[i]) for i in range(len(names))]
    else:
        calls = [(names, x.movedim(0, op.dim).contiguous())]
    found = []
    for of, values in calls:
        exact = results(op, values.double(), g.double())
        eager = results(op, values, g)
        got = results(op, values.to(device), g.to(device))
        for i, three in enumerate(zip(got, eager, exact, strict=True)):
            ours, torchs, right = (sets_of(op, result, len(of)) for result in three)
            mine, its = largest_error(ours, right).tolist(), largest_error(torchs, right).tolist()
            found += [Errors(i, *pair, m, t) for pair, m, t in zip(of, mine, its, strict=True)]
    return found


def sets_of(op: Op, result: Tensor, count: int) -> Tensor:
    """One row per set."""
    at = op.dim if result.dim() > 1 else 0
    return (result if op.dim is None else result.movedim(at, 0)).reshape(count, -1)


def worse(op: Op, errors: list[Errors]) -> list[Errors]:
    """Errors that are larger than torch's by more than allowed."""
    allowed = {e: e.torchs for e in errors}
    if op.random_errors:
        most: dict[tuple[int, float], float] = {}
        for e in errors:
            if math.isfinite(e.torchs):
                most[e.result, e.offset] = max(most.get((e.result, e.offset), 0.0), e.torchs)
        allowed = {e: max(e.torchs, RANDOM_ERROR_FACTOR * most.get((e.result, e.offset), 0.0)) for e in errors}
    return [e for e in errors if e.ours > allowed[e] + EXTRA_ULPS]


def check(op: Op, dtype: torch.dtype, device: torch.device | str, generator: torch.Generator) -> list[str]:
    return [f"{op.name} {str(dtype)[6:]}, {e}" for e in worse(op, errors_of(op, dtype, device, generator))]
