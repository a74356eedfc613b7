"""Each expression of the op table computes the result of torch's kernel, edge cases included."""

import ast
import math
import operator
import tomllib
from pathlib import Path

import op_table
import pytest
import torch

FUNCTIONS = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atan2": torch.atan2,
    "atanh": torch.atanh,
    "bit_and": torch.bitwise_and,
    "bit_not": torch.bitwise_not,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "ceil": torch.ceil,
    "copysign": torch.copysign,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "is_inf": torch.isinf,
    "is_nan": torch.isnan,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logical_and": torch.logical_and,
    "logical_not": torch.logical_not,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "max": torch.maximum,
    "min": torch.minimum,
    "pow": torch.pow,
    "reciprocal": torch.reciprocal,
    "remainder": torch.remainder,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "where": lambda c, a, b: torch.where(c != 0, a, b),
}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 2.5, -3.0, 3.0, 6.0, 30.0, -30.0, math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, -1, 2, 3, -7, 12, 30]
# torch's own scalar and vector code disagree for NaN.
NAN_UNDEFINED = ["hardshrink_backward", "softshrink_backward", "hardtanh_backward", "hardswish_backward"]
# torch computes these with a float32 constant in every dtype.
SINGLE_PRECISION = ["hardsigmoid_backward"]
ROWS = [op for op in op_table.functional_rows() if op["expression"]]


def evaluate(node: ast.expr, names: dict[str, torch.Tensor]) -> torch.Tensor:
    match node:
        case ast.Constant(value=value):
            return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=operand):
            return -evaluate(operand, names)
        case ast.BinOp(op=op, left=left, right=right):
            return OPERATORS[type(op)](evaluate(left, names), evaluate(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return OPERATORS[type(op)](evaluate(left, names), evaluate(right, names))
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*[evaluate(arg, names) for arg in args])
    raise AssertionError(ast.dump(node))


def number(kind: str, name: str, integers: bool):
    if kind in ("Bool", "OptionalBool"):
        return False
    if integers:
        return 3 if kind != "ScalarList" else [3]
    value = {"exponent": 2.5, "threshold": 0.75, "min_val": -0.5, "max_val": 2.5, "beta": 2.0}.get(name, 0.625)
    return [value] if kind == "ScalarList" else value


def arguments(op: dict, integers: bool) -> tuple[list, dict, dict[str, torch.Tensor]]:
    """Positional and keyword arguments of a call, and the values of the expression's names."""
    tensors = [arg for arg in op["args"] if arg["kind"] in ("Tensor", "TensorList")]
    pool = torch.tensor(INTEGERS) if integers else torch.tensor(EDGES, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    if not integers:
        pool = torch.cat([pool, torch.randn(8, dtype=torch.float64, generator=generator)])
    grids = torch.meshgrid(*[pool] * len(tensors), indexing="ij") if len(tensors) <= 2 else None
    positional, keywords, names = [], {}, {}
    for arg in op["args"]:
        if arg["kind"] in ("Tensor", "TensorList"):
            index = tensors.index(arg)
            if grids is not None:
                value = grids[index].contiguous()
            else:
                value = pool[torch.randint(len(pool), (4096,), generator=generator)]
            if op["entry"] in NAN_UNDEFINED:
                value = value.nan_to_num(nan=0.25)
            if arg["kind"] == "Tensor" and op["family"] == "multi_tensor":
                value = torch.tensor(3 if integers else 0.625, dtype=pool.dtype)
            if arg["name"] in ("mask", "condition"):
                value = value > 0
            names[arg["name"]] = value
            value = [value] if arg["kind"] == "TensorList" else value
        elif arg["kind"] in ("DType", "MemoryFormat", "Layout", "Device", "Generator") or arg["kind"].startswith("Opt"):
            continue
        else:
            value = number(arg["kind"], arg["name"], integers)
            scalar = value[0] if isinstance(value, list) else value
            names[arg["name"]] = torch.tensor(scalar, dtype=torch.int64 if integers else torch.float64)
        if arg["keyword_only"]:
            keywords[arg["name"]] = value
        else:
            positional.append(value)
    if op["name"] in ("aten::masked_fill.Tensor", "aten::fill.Tensor"):  # a 0-dim value
        positional[-1] = torch.tensor(0.625, dtype=torch.float64)
        names["value"] = positional[-1].expand_as(names["self"])
    return positional, keywords, names


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op["name"].removeprefix("aten::"))
def test_expression(op):
    tree = ast.parse(op["expression"], mode="eval").body
    ran = 0
    for integers in (False, True):
        positional, keywords, names = arguments(op, integers)
        try:
            expected = op_table.overload(op["name"])(*positional, **keywords)
        except RuntimeError:
            continue  # supports only floats or only integers
        expected = expected[0] if isinstance(expected, (list, tuple)) else expected
        if integers and expected.is_floating_point():
            names = {name: value.to(expected.dtype) for name, value in names.items()}
        got = evaluate(tree, names).to(expected.dtype).broadcast_to(expected.shape)
        rtol = 1e-5 if integers or op["entry"] in SINGLE_PRECISION else 1e-9
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=rtol, atol=1e-12)
        ran += 1
    assert ran > 0, f"{op['name']} ran neither with floats nor with integers"


def test_the_notation_is_the_projects():
    conventions = tomllib.loads(Path("ir/ops/conventions.toml").read_text(encoding="utf-8"))
    assert sorted(FUNCTIONS) == sorted(conventions["functions"])
