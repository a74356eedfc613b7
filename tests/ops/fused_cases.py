"""Calls of the ops that fusion accepts, on critical values: zeros, limits of dtypes, NaN, and random bits."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from op_table import ops, overload

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """A neighbor in a group that does not change values."""
    return x & True if x.dtype == torch.bool else x * 1


@dataclass(frozen=True)
class Case:
    """A function of tensors. `sums`: it adds elements, so errors are relative to its largest result."""

    name: str
    dtype: torch.dtype
    form: str  # numbers and other dtypes; distinguishes cases of the same op
    function: Callable[..., Any] = field(compare=False)
    tensors: tuple[Any, ...] = field(compare=False)
    sums: bool = False

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {self.form}".strip()

    @property
    def entry(self) -> str:
        row = ops().get(f"aten::{self.name}")
        return row["entry"] if row else self.name


# -- values ----------------------------------------------------------------------------------------------------------


def edges(dtype: torch.dtype) -> list[float]:
    if dtype == torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        numbers = [0, 1, 2, 3, 7, 12, 30, 63, 64, 100, info.max, info.max - 1]
        return numbers if dtype == torch.uint8 else [*numbers, -1, -2, -7, info.min, info.min + 1]
    info = torch.finfo(dtype)
    numbers = [0.0, 0.5, 1.0, 1 + info.eps, 1 - info.eps / 2, 2.0, 2.5, 3.0, 6.0, 0.1, 1e-4, 9.5, 30.0, 88.5, 1000.7]
    numbers += [info.max, info.tiny, info.tiny * info.eps, info.tiny * 0.75, math.pi / 2, math.inf]
    return [*numbers, *(-x for x in numbers), math.nan]


def randoms(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Half of them are small, half have random bits."""
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        few = torch.randint(max(info.min, -20), 20, (count,), generator=generator)
        many = torch.randint(info.min, info.max, (count,), generator=generator)
        return torch.where(torch.rand(count, generator=generator) < 0.5, few, many).to(dtype)
    bits = BITS[torch.finfo(dtype).bits // 8]
    info = torch.iinfo(bits)
    any_bits = torch.randint(info.min, info.max, (count,), generator=generator).to(bits).view(dtype)
    near = (torch.randn(count, dtype=torch.float64, generator=generator) * 3).to(dtype)
    return torch.where(torch.rand(count, generator=generator) < 0.5, near, any_bits)


COLUMNS = 51  # not a multiple of the vector width


@functools.cache
def operands(*dtypes: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Every pair of edges (for three operands, some of the triples), and random numbers."""
    generator = torch.Generator().manual_seed(0)
    grids = [torch.tensor(edges(d), dtype=torch.float64 if d.is_floating_point else torch.int64) for d in dtypes]
    if len(dtypes) <= 2:
        places = torch.cartesian_prod(*(torch.arange(len(g)) for g in grids)).reshape(-1, len(grids)).t()
    else:
        places = torch.stack([torch.randint(len(g), (2000,), generator=generator) for g in grids])
    count = 700 + COLUMNS - (places.shape[1] + 700) % COLUMNS
    return tuple(
        torch.cat([grid[at].to(dtype), randoms(dtype, count, generator)]).reshape(-1, COLUMNS)
        for grid, at, dtype in zip(grids, places, dtypes, strict=True)
    )


# -- ops with expressions ----------------------------------------------------------------------------------------------

NUMBERS: dict[str, list[float]] = {
    "exponent": [2, 3, -1, 0.5, -0.5, 0, 1, 2.5, -2, 10],
    "alpha": [1, 2.5],
    "value": [0.75, -2.0],
    "weight": [0.25, 0.75, -3.0],
    "beta": [1.0, 2.5],
    "threshold": [20.0, 0.5],
    "min_val": [-1.0, 0.0],
    "max_val": [1.5, 6.0],
    "lambd": [0.5],
    "negative_slope": [0.01, -0.5],
    "scale": [1.05],
    "input_scale": [1.0],
}
OTHERS = [0.625, -3.0, 2, math.inf, math.nan, 0.0]
BOOLS = ("mask", "condition")


def numbers(name: str, dtype: torch.dtype) -> list[float]:
    known = NUMBERS.get(name, OTHERS)
    if dtype.is_floating_point:
        return known
    if name == "alpha":
        return [2]
    if name == "value":
        return [2, 0.5]
    return [*(int(x) for x in known if math.isfinite(x) and x == int(x)), 2.5]


def schema_calls(name: str) -> Iterator[Case]:
    """Calls an overload in each dtype, some of them with different numbers."""
    function = overload(name)
    arguments = function._schema.arguments
    short = name.removeprefix("aten::")
    tensors = [a.name for a in arguments if a.type.kind() == "TensorType" and not a.is_out]
    given = [a for a in arguments if a.type.kind() != "TensorType"]
    given = [a for a in given if not a.has_default_value() or a.name in NUMBERS]
    for dtype in DTYPES:
        made = operands(*(torch.bool if n in BOOLS else dtype for n in tensors))
        choices = [numbers(a.name, dtype) if a.type.kind() == "NumberType" else [0.5] for a in given]
        for i in range(max(map(len, choices), default=1)):
            chosen = {a.name: c[i % len(c)] for a, c in zip(given, choices, strict=True)}
            chosen.update({a.name: i % 2 == 1 for a in given if a.type.kind() == "BoolType"})

            def call(*given_tensors: torch.Tensor, chosen: dict[str, Any] = chosen) -> Any:
                values = dict(zip(tensors, given_tensors, strict=True)) | chosen
                positional = [values[a.name] for a in arguments if a.name in values and not a.kwarg_only]
                return function(
                    *positional, **{a.name: values[a.name] for a in arguments if a.name in values and a.kwarg_only}
                )

            form = ", ".join(f"{n}={v}" for n, v in chosen.items())
            yield Case(short, dtype, form, call, made)


def expressions() -> Iterator[Case]:
    """All overloads with an expression that return a result or work in place."""
    for name, op in ops().items():
        if not op["expression"] or op["family"] == "multi_tensor" or "Out" in op["flags"] or op["family"] == "factory":
            continue
        yield from schema_calls(name)


def foreach() -> Iterator[Case]:
    """Ops over lists: two tensors of different sizes."""
    for name, op in ops().items():
        if not op["expression"] or op["family"] != "multi_tensor" or "Out" in op["flags"] or op["single"] is None:
            continue
        function = overload(name)
        arguments = function._schema.arguments
        lists = [a.name for a in arguments if str(a.type) == "List[Tensor]"]
        if any(str(a.type) == "Tensor" for a in arguments):
            continue  # a 0-dim tensor: the same code as a number
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
            flat = [t.reshape(-1) for t in operands(*[dtype] * len(lists))]
            made = tuple(part for t in flat for part in (t[: t.numel() - 100], t[-100:]))

            call = functools.partial(call_on_lists, function, lists, 0.75 if dtype.is_floating_point else 2)
            yield Case(name.removeprefix("aten::"), dtype, "", call, made)


def call_on_lists(function: Any, lists: list[str], number: float, *tensors: torch.Tensor) -> Any:
    """Each list has two of the tensors, with neighbors. Numbers are `number`, or for lists, that and twice that."""
    arguments = function._schema.arguments
    values: dict[str, Any] = {n: torch._foreach_mul(tensors[2 * i : 2 * i + 2], 1) for i, n in enumerate(lists)}
    for a in arguments:
        if a.name not in values and (not a.has_default_value() or a.name == "alpha"):
            values[a.name] = [number, 2 * number] if "List" in str(a.type) else number
    positional = [values[a.name] for a in arguments if a.name in values and not a.kwarg_only]
    result = function(*positional, **{a.name: values[a.name] for a in arguments if a.name in values and a.kwarg_only})
    if arguments[0].name not in lists:
        return result  # a group of lists begins with one neighbor per list
    return torch._foreach_mul(result if result is not None else values[arguments[0].name], 1)


PAIRS = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum where.self pow.Tensor_Tensor eq.Tensor lt.Tensor atan2 "
    "fmod.Tensor"
).split()


def larger(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x > y, x, y)


def two_dtypes() -> Iterator[Case]:
    """Type promotion, and a 0-dim tensor, which has lower priority."""
    for name in PAIRS:
        function = overload(f"aten::{name}")
        for a, b in itertools.permutations(DTYPES, 2):
            first, second = operands(a, b)
            call = larger if name == "where.self" else function
            yield Case(name, a, f"with {str(b)[6:]}", call, (first, second))
            if a.is_floating_point != b.is_floating_point and name in ("add.Tensor", "mul.Tensor", "pow.Tensor_Tensor"):
                yield Case(name, a, f"with one {str(b)[6:]}", call, (first, torch.tensor(3, dtype=b)))


# -- ops that kernels have formulas for --------------------------------------------------------------------------------


def conversions() -> Iterator[Case]:
    for a, b in itertools.permutations(DTYPES, 2):
        (x,) = operands(a)
        if a.is_floating_point and not b.is_floating_point and b != torch.bool:
            x = x.nan_to_num(0, 0, 0).clamp(0 if b == torch.uint8 else -100, 100)  # other conversions are undefined
        yield Case("copy_", a, f"to {str(b)[6:]}", lambda x, b=b: x.to(b), (x,))
        if a.is_floating_point and b.is_floating_point:
            yield Case("copy_", a, f"to {str(b)[6:]} and back", lambda x, a=a, b=b: x.to(b).to(a), (x,))
    for dtype in DTYPES:
        (x,) = operands(dtype)
        yield Case("fill_", dtype, "", lambda x: x.add(x).fill_(3), (x,))
        yield Case("zero_", dtype, "", lambda x: x.add(x).zero_(), (x,))


def spread(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Numbers whose sums do not overflow, some of them equal. Some rows have NaN, infinities or only zeros."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.97
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, generator=generator).to(dtype)
    x = (torch.randn(shape, dtype=torch.float64, generator=generator) * 2).to(dtype)
    x[..., 1] = x[..., 0]
    rows = x.view(-1, shape[-1])
    if rows.shape[0] > 5:
        rows[1, 3] = math.nan
        rows[2, 2] = math.inf
        rows[3, 2], rows[3, 4] = math.inf, -math.inf
        rows[4] = 0.0
        rows[4, 1] = -0.0
        rows[5] = -math.inf
    return x


def tame(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


DIMS: list[tuple[int, ...] | None] = [(2,), (0,), (0, 1), (1, 2), (0, 1, 2), None]


def reductions() -> Iterator[Case]:
    for dtype in DTYPES:
        for shape in ((5, 7, 37), (2, 3, 1030)):
            x = spread(dtype, shape)
            for name in ("sum", "mean", "amax", "amin", "any", "all"):
                for dims in DIMS:
                    if dims is None and name in ("amax", "amin"):
                        continue
                    for keepdim in (False, True) if dims is not None else (False,):
                        options = {} if dims is None else {"dim": dims, "keepdim": keepdim}
                        function = functools.partial(
                            lambda x, name, options: getattr(torch, name)(x, **options), name=name, options=options
                        )
                        yield Case(name, dtype, f"{shape} {options}", function, (x,), name in ("sum", "mean"))
            for name in ("max", "min", "argmax", "argmin", "prod"):
                for dim in (2, 0, None):
                    options = {} if dim is None else {"dim": dim}
                    function = functools.partial(
                        lambda x, name, options: getattr(torch, name)(x, **options), name=name, options=options
                    )
                    y = x
                    if name == "prod" and dtype.is_floating_point:
                        y = 1 + tame(dtype, shape) / 64
                    yield Case(name, dtype, f"{shape} {options}", function, (y,), name == "prod")
    for dtype in FLOATS:
        x = spread(dtype, (5, 7, 37))
        for name, dims in itertools.product(("var", "std", "var_mean", "std_mean"), ((2,), (1, 2), (0,), None)):
            for correction in (None, 0, 2.5, 300):
                function = functools.partial(
                    lambda x, name, dims, n: getattr(torch, name)(x, dims, correction=n),
                    name=name,
                    dims=dims,
                    n=correction,
                )
                yield Case(name, dtype, f"{dims} {correction}", function, (x,), True)
        for dims, keepdim in itertools.product(((2,), (1, 2), (0,), (0, 1), None), (False, True)):
            for ord in (2, 1, 0, math.inf, -math.inf, 3, 0.5):
                function = functools.partial(
                    lambda x, dims, keepdim, ord: torch.linalg.vector_norm(x, ord, dims, keepdim),
                    dims=dims,
                    keepdim=keepdim,
                    ord=ord,
                )
                yield Case("linalg_vector_norm", dtype, f"{dims} {keepdim} {ord}", function, (x,), True)
            if dims is not None:
                function = functools.partial(torch.logsumexp, dim=dims, keepdim=keepdim)
                for y in (x, tame(dtype, (5, 7, 37)) * 30):
                    yield Case("logsumexp", dtype, f"{dims} {keepdim}", function, (y,), True)
            yield Case(
                "nansum",
                dtype,
                f"{dims} {keepdim}",
                functools.partial(torch.nansum, dim=dims, keepdim=keepdim),
                (x,),
                True,
            )
            yield Case(
                "count_nonzero",
                dtype,
                f"{dims}",
                functools.partial(torch.count_nonzero, dim=dims),
                ((x > 0).to(dtype),),
            )
        if dtype in (torch.bfloat16, torch.float16):
            function = functools.partial(torch.linalg.vector_norm, dtype=torch.float32)
            yield Case("linalg_vector_norm", dtype, "as float32", function, (x,), True)
    for dtype in INTEGERS:
        yield Case(
            "sum", dtype, "as float32", lambda x: x.sum(-1, dtype=torch.float32), (spread(dtype, (5, 37)),), True
        )


def rows() -> Iterator[Case]:
    """Softmax, norms and losses, and their gradients."""
    for dtype in FLOATS:
        for shape in ((6, 37), (3, 7, 1030)):
            x, g = spread(dtype, shape), tame(dtype, shape, 1)
            w, b = tame(dtype, shape[-1:], 2), tame(dtype, shape[-1:], 3)
            y = tame(dtype, shape, 4)
            form = str(shape)
            for name in ("softmax", "log_softmax"):
                function = getattr(torch, name)
                yield Case(f"_{name}", dtype, form, lambda x, f=function: f(x, -1), (x,), True)
                backward = overload(f"aten::_{name}_backward_data")
                yield Case(
                    f"_{name}_backward_data",
                    dtype,
                    form,
                    lambda g, y, f=backward, t=dtype: f(g, y, -1, y.dtype),
                    (g, function(y, -1)),
                    True,
                )
            for weights in ((w, b), (w,), ()):
                yield Case(
                    "native_layer_norm",
                    dtype,
                    f"{form} {len(weights)}",
                    lambda x, *w, n=shape[-1:]: torch.native_layer_norm(
                        x, n, w[0] if w else None, w[1] if len(w) > 1 else None, 1e-5
                    ),
                    (y, *weights),
                    True,
                )
            backward = overload("aten::native_layer_norm_backward")

            def layer_norm_backward(g: Any, y: Any, w: Any, n: Any = shape[-1:], f: Any = backward) -> Any:
                _, mean, rstd = torch.native_layer_norm(y, n, w, w, 1e-5)
                return f(g, y, n, mean, rstd, w, w, [True, True, True])

            yield Case("native_layer_norm_backward", dtype, form, layer_norm_backward, (g, y, w), True)
            for how in ("none", "tanh"):
                (z,) = operands(dtype)
                yield Case("gelu", dtype, how, lambda x, h=how: torch.nn.functional.gelu(x, approximate=h), (z,))
                pair = operands(dtype, dtype)
                yield Case(
                    "gelu_backward",
                    dtype,
                    how,
                    lambda g, x, h=how: torch.ops.aten.gelu_backward(g, x, approximate=h),
                    tuple(pair),
                )
            for reduction in ("none", "mean", "sum"):
                yield Case(
                    "mse_loss",
                    dtype,
                    f"{form} {reduction}",
                    lambda x, y, r=reduction: torch.nn.functional.mse_loss(x, y, reduction=r),
                    (y, g),
                    True,
                )
                yield Case(
                    "mse_loss_backward",
                    dtype,
                    f"{form} {reduction}",
                    lambda x, y, r=reduction: torch.ops.aten.mse_loss_backward(
                        x if r == "none" else x.sum(), x, y, {"none": 0, "mean": 1, "sum": 2}[r]
                    ),
                    (y, g),
                    True,
                )
        yield from losses(dtype, *operands(dtype, dtype))
        yield from gradients_of_activations(dtype)
        labels = torch.arange(6) * 5
        labels[3] = -100

        def cross_entropy(x: Any, labels: Any, r: str = "mean") -> Any:
            x = x.detach().requires_grad_()
            torch.nn.functional.cross_entropy(x * 1, labels, reduction=r).sum().backward()
            return x.grad

        for reduction in ("mean", "sum", "none"):
            yield Case(
                "nll_loss_backward",
                dtype,
                reduction,
                functools.partial(cross_entropy, r=reduction),
                (tame(dtype, (6, 37)), labels),
                True,
            )
        weights = tame(dtype, (37,), 3).abs() + 0.25
        for reduction in ("mean", "sum"):

            def weighted(x: Any, labels: Any, w: Any, r: str = reduction) -> Any:
                x = x.detach().requires_grad_()
                loss = torch.nn.functional.cross_entropy(x * 1, labels, weight=w, reduction=r)
                loss.backward()
                return x.grad, loss.detach()

            yield Case(
                "nll_loss_forward",
                dtype,
                f"weights {reduction}",
                weighted,
                (tame(dtype, (6, 37)), labels, weights),
                True,
            )
        for shape, dim in (((6, 37), -1), ((3, 7, 1030), 2), ((37, 6), 0)):
            function = functools.partial(torch.logcumsumexp, dim=dim)
            for form, x in (("", spread(dtype, shape)), (" far apart", tame(dtype, shape) * 30)):
                yield Case("logcumsumexp", dtype, f"{shape} {dim}{form}", function, (x,), True)
        table = operands(dtype)[0]
        places = torch.randint(0, table.shape[0], (7, 9), generator=torch.Generator().manual_seed(0))
        yield Case("embedding", dtype, "", lambda t, i: torch.nn.functional.embedding(i, t), (table, places))


def losses(dtype: torch.dtype, x: Any, y: Any) -> Iterator[Case]:
    """Losses of pairs: with infinities, equal values, and values at a bound."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x, y = x.clone(), y.clone()
    x.view(-1)[3] = y.view(-1)[3] + 0.75
    x.view(-1)[4] = y.view(-1)[4]
    x.view(-1)[5] = math.inf
    signs = y.sign()
    chances = y.sigmoid()
    weight, positive = tame(dtype, y.shape[-1:], 3).abs(), tame(dtype, y.shape[-1:], 4).abs()
    for number, reduction in enumerate(("none", "mean", "sum")):
        forward = {
            "smooth_l1_loss": (lambda x, y, r=reduction: functional.smooth_l1_loss(x, y, reduction=r, beta=0.75), y),
            "huber_loss": (lambda x, y, r=reduction: functional.huber_loss(x, y, reduction=r, delta=0.75), y),
            "soft_margin_loss": (lambda x, y, r=reduction: functional.soft_margin_loss(x, y, reduction=r), signs),
        }
        backward = {
            "smooth_l1_loss_backward": (lambda g, x, y, r=number: aten.smooth_l1_loss_backward(g, x, y, r, 0.75), y),
            "huber_loss_backward": (lambda g, x, y, r=number: aten.huber_loss_backward(g, x, y, r, 0.75), y),
            "soft_margin_loss_backward": (lambda g, x, y, r=number: aten.soft_margin_loss_backward(g, x, y, r), signs),
        }
        for name, (function, target) in forward.items():
            yield Case(name, dtype, reduction, function, (x if number == 0 else tame(dtype, y.shape), target), True)
        for name, (function, target) in backward.items():

            def gradient(x: Any, y: Any, f: Any = function, all_of: bool = number == 0) -> Any:
                return f(y if all_of else y.sum(), x, y)

            yield Case(name, dtype, reduction, gradient, (x, target), True)
        for form, weights in (("", ()), (" weights", (weight,))):

            def slope(x: Any, y: Any, *w: Any, r: int = number) -> Any:
                grad = y if r == 0 else y.sum()
                return aten.binary_cross_entropy_backward(grad, x, y, w[0] if w else None, r)

            given = chances.clone()
            given.view(-1)[:2] = torch.tensor([0, 1]).to(dtype)
            if dtype != torch.float16:  # 1e-12, the smallest divisor, is 0 in float16
                yield Case("binary_cross_entropy_backward", dtype, reduction + form, slope, (given, y, *weights), True)
        for form, weights in (("", {}), (" weights", {"weight": weight, "pos_weight": positive})):

            def logits(x: Any, y: Any, *w: Any, r: str = reduction) -> Any:
                given = dict(zip(("weight", "pos_weight"), w, strict=False))
                return functional.binary_cross_entropy_with_logits(x, y, reduction=r, **given)

            values = (tame(dtype, y.shape), chances, *weights.values())
            yield Case("binary_cross_entropy_with_logits", dtype, reduction + form, logits, values, True)


def gradients_of_activations(dtype: torch.dtype) -> Iterator[Case]:
    aten = torch.ops.aten
    g, x = tame(dtype, (6, 37)), tame(dtype, (6, 37), 1)
    x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, 0]).to(dtype)
    unit = torch.linspace(-0.1, 1.1, 6 * 37).view(6, 37).to(dtype)
    unit[0, :3] = torch.tensor([0, 1, math.nan]).to(dtype)
    for is_result in (False, True):
        of = torch.nn.functional.elu(x, 0.7) if is_result else x
        yield Case(
            "elu_backward",
            dtype,
            f"of the result: {is_result}",
            lambda g, x, r=is_result: aten.elu_backward(g, x, 0.7, 1.5, 0.9, r),
            (g, of),
        )
    for eps in (None, 0.05, -1.0):
        yield Case("logit", dtype, str(eps), lambda x, e=eps: torch.logit(x, e), (unit,))
        yield Case("logit_backward", dtype, str(eps), lambda g, x, e=eps: aten.logit_backward(g, x, e), (g, unit))

    def log_sigmoid_backward(g: Any, x: Any) -> Any:
        return aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1])

    yield Case("log_sigmoid_backward", dtype, "", log_sigmoid_backward, (g, x))


def bounds() -> Iterator[Case]:
    """Ops that limit values to a range, by numbers or by tensors, or that replace non-finite values."""
    aten = torch.ops.aten
    for dtype in (*FLOATS, *INTEGERS):
        x, low, high = operands(dtype, dtype, dtype)
        limits: list[tuple[float | None, float | None]] = [(2, 50), (None, 7), (1, None), (50, 2)]
        if dtype.is_floating_point:
            limits += [(-0.0, 0.1), (None, -0.5), (math.nan, 1), (0, math.nan), (-math.inf, math.inf)]
        for low_number, high_number in limits:
            form = f"{low_number} {high_number}"
            function = functools.partial(torch.clamp, min=low_number, max=high_number)
            yield Case("clamp", dtype, form, function, (x,))
            in_place = functools.partial(lambda x, a, b: (x + 0).clamp_(a, b), a=low_number, b=high_number)
            yield Case("clamp_", dtype, form, in_place, (x,))
        yield Case("clamp.Tensor", dtype, "both", torch.clamp, (x, low, high))
        yield Case("clamp.Tensor", dtype, "min", lambda x, y: torch.clamp(x, min=y), (x, low))
        yield Case("clamp.Tensor", dtype, "max, broadcast", lambda x, y: torch.clamp(x, max=y), (x, high[0]))
        yield Case("nan_to_num", dtype, "", torch.nan_to_num, (x,))
        yield Case("nan_to_num", dtype, "numbers", lambda x: torch.nan_to_num(x, 1.5, 3.25, -2.0), (x,))
        if not dtype.is_floating_point:
            continue
        z = x.clamp(-80, 80) if dtype in (torch.float32, torch.float64) else x
        yield Case("log_sigmoid_forward", dtype, "", lambda x: aten.log_sigmoid_forward(x)[0], (z,))
        g, w = tame(dtype, (6, 37)), tame(dtype, (1, 37), 2)
        y = tame(dtype, (6, 37), 1)
        y[0, :5] = torch.tensor([math.inf, -math.inf, math.nan, 0, -0.0]).to(dtype)
        backward = lambda g, x, w: aten._prelu_kernel_backward(g, x, w)  # noqa: E731
        yield Case("_prelu_kernel_backward", dtype, "", backward, (g, y, w.expand(6, 37)))


def channels() -> Iterator[Case]:
    """Norms over channels, and their gradients."""
    for dtype in FLOATS:
        for shape in ((3, 12, 5, 7), (2, 6, 130), (1, 4, 9, 4), (7, 8), (2, 4, 40, 41)):
            x, g = tame(dtype, shape), tame(dtype, shape, 1)
            if shape[0] == 3:
                x[1, 3] = math.nan
                x[0, 2, 0] = math.inf
            w, b, mean = (tame(dtype, shape[1:2], seed) for seed in (2, 3, 4))
            var = tame(dtype, shape[1:2], 5).abs() + 0.5
            for groups in {1, 2, shape[1]}:
                yield from group_norms(dtype, x, g, w, b, groups)
            if len(shape) == 4 and shape[0] == 2:
                last = torch.channels_last
                yield from group_norms(
                    dtype, x.contiguous(memory_format=last), g.contiguous(memory_format=last), w, b, 2
                )
            for trains in (True, False):
                yield from batch_norms(dtype, x, g, (w, b, mean, var), trains)
            if dtype in (torch.bfloat16, torch.float16):
                single = tuple(t.float() for t in (w, b, mean, var))
                yield from batch_norms(dtype, x, g, single, True, "statistics in float32")


def group_norms(dtype: torch.dtype, x: Any, g: Any, w: Any, b: Any, groups: int) -> Iterator[Case]:
    sizes = (x.shape[0], x.shape[1], x[0, 0].numel(), groups)

    def forward(x: Any, *w: Any) -> Any:
        return torch.native_group_norm(x, w[0] if w else None, w[1] if w else None, *sizes, 1e-5)

    def backward(g: Any, x: Any, *w: Any) -> Any:
        _, mean, rstd = torch.native_group_norm(x, None, None, *sizes, 1e-5)
        function = overload("aten::native_group_norm_backward")
        return function(g, x, mean, rstd, w[0] if w else None, *sizes, [True, bool(w), bool(w)])

    form = f"{tuple(x.shape)} {groups}"
    for weights in ((w, b), ()):
        yield Case("native_group_norm", dtype, f"{form} {len(weights)}", forward, (x, *weights), True)
        yield Case("native_group_norm_backward", dtype, f"{form} {len(weights)}", backward, (g, x, *weights), True)


def batch_norms(
    dtype: torch.dtype, x: Any, g: Any, given: tuple[Any, ...], trains: bool, what: str = ""
) -> Iterator[Case]:
    def forward(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        y, at, scale = torch.native_batch_norm(x, w, b, mean, var, trains, 0.1, 1e-5)
        return (y, at, scale, mean, var) if trains else (torch.relu(y), mean, var)

    def backward(g: Any, x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        _, at, scale = torch.native_batch_norm(x, w, b, mean.clone(), var.clone(), trains, 0.1, 1e-5)
        function = overload("aten::native_batch_norm_backward")
        return function(g, x, w, mean, var, at, scale, trains, 1e-5, [True, True, True])

    form = f"{tuple(x.shape)} {'trains' if trains else 'at rest'} {what}"
    yield Case("native_batch_norm", dtype, form, forward, (x, *given), True)
    yield Case("native_batch_norm_backward", dtype, form, backward, (g, x, *given), True)


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "expressions": expressions,
    "foreach": foreach,
    "two_dtypes": two_dtypes,
    "conversions": conversions,
    "reductions": reductions,
    "rows": rows,
    "bounds": bounds,
    "channels": channels,
}
