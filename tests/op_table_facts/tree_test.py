"""The tree of each expression, evaluated in C++, computes the result of torch's kernel: several dtypes, special values
and the sign of zeros included."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from pathlib import Path

import op_table
import pytest
import torch

EVALUATOR = Path("ir/testing/evaluate_trees")
DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
TENSORS = ("Tensor", "TensorList")
NUMBERS = ("Int", "Float", "Scalar", "ScalarList", "Bool", "OptionalScalar", "OptionalFloat")
# Allowed relative difference. torch's vector code is not correctly rounded, and half types round float32 results.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}
EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 2.5, -3.0, 3.0, 6.0, 30.0, -30.0, 0.625, -0.625,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
INTEGERS = [0, 1, -1, 2, 3, -7, 12, 30, 100, -128]
ROWS = [op for op in op_table.functional_rows() if op["expression"]]

# torch's own scalar and vector code disagree for NaN.
NAN_UNDEFINED = {"hardshrink_backward", "softshrink_backward", "hardtanh_backward", "hardswish_backward"}
# torch computes these with a float32 constant in every dtype.
SINGLE_PRECISION = {"hardsigmoid_backward"}
# The sign of a zero may differ. For the first ops, torch's own scalar and vector code disagree (softshrink, and whether
# 0.0 or -0.0 is larger). The next are contracted to fused multiply-adds, or computed in float32 in another order. The
# gradient of dropout multiplies integers by the mask, then converts to float.
ANY_ZERO = {
    "softshrink", "maximum", "minimum", "fmax", "fmin", "clamp_max", "clamp_min", "_foreach_maximum",
    "_foreach_minimum", "_foreach_clamp_max", "_foreach_clamp_min", "lerp", "_foreach_lerp",
    "logaddexp2", "native_dropout_backward",
}  # fmt: skip
# Minimum number of expressions that torch computes in each dtype, so that none drops out unnoticed.
FLOORS = {
    torch.float64: 199, torch.float32: 199, torch.bfloat16: 199, torch.float16: 199, torch.int64: 181, torch.int32: 181,
    torch.uint8: 181, torch.bool: 139,
}  # fmt: skip
# Integer divisions by zero are errors; `remainder` and similar ops are tested with other divisors.
DIVISORS = {"remainder", "fmod", "floor_divide"}


@pytest.fixture(scope="module")
def evaluator():
    with subprocess.Popen([EVALUATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="module")
def ran() -> Counter:
    """The number of compared ops, by dtype."""
    return Counter()


def evaluate(process, name: str, dtype: torch.dtype, arguments: list[torch.Tensor]) -> torch.Tensor:
    """The result of the C++ evaluator, in arithmetic of `dtype`."""
    count = arguments[0].numel()
    data = torch.stack([a.to(dtype).reshape(-1) for a in arguments])
    line = f"{name} {str(dtype).removeprefix('torch.')} {len(arguments)} {count}\n"
    process.stdin.write(line.encode() + data.view(torch.uint8).numpy().tobytes())
    process.stdin.flush()
    answer = process.stdout.read(count * dtype.itemsize)
    assert len(answer) == count * dtype.itemsize, f"the evaluator refused {line}"
    return torch.frombuffer(bytearray(answer), dtype=dtype)


def pool_of(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        generator = torch.Generator().manual_seed(0)
        return torch.cat([torch.tensor(EDGES), torch.randn(6, generator=generator)]).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([False, True])
    return torch.tensor(INTEGERS).to(dtype) if dtype.is_signed else torch.tensor([0, 1, 2, 3, 12, 200], dtype=dtype)


def number_of(op: dict, arg: dict, dtype: torch.dtype):
    if arg["kind"] == "Bool":
        return False
    if dtype.is_floating_point:
        return {"exponent": 2.5, "threshold": 0.75, "min_val": -0.5, "max_val": 2.5, "beta": 2.0}.get(
            arg["name"], 0.625
        )
    return True if dtype == torch.bool and arg["name"] in ("other", "value", "scalar") else 3


def call_of(op: dict, dtype: torch.dtype):
    """Positional and keyword arguments for torch, and one tensor per argument for the evaluator."""
    operands = [arg for arg in op["args"] if arg["kind"] in TENSORS]
    pool = pool_of(dtype)
    if dtype.is_floating_point and op["entry"] in NAN_UNDEFINED:
        pool = pool.nan_to_num(nan=0.25)
    generator = torch.Generator().manual_seed(1)
    if len(operands) <= 2:
        grids = [g.reshape(-1) for g in torch.meshgrid(*[pool] * len(operands), indexing="ij")]
    else:
        grids = [pool[torch.randint(len(pool), (2048,), generator=generator)] for _ in operands]
    positional, keywords, values, given = [], {}, [], []
    for arg in op["args"]:
        if arg["kind"] in TENSORS:
            value = grids[len(given)].contiguous()
            if arg["name"] in ("mask", "condition"):
                value = value > 0
            elif arg["name"] == "other" and op["entry"] in DIVISORS and not dtype.is_floating_point:
                value = torch.where(value == 0, torch.ones_like(value), value)
            elif arg["kind"] == "Tensor" and (op["family"] == "multi_tensor" or arg["name"] == "value"):  # 0-dim
                value = torch.tensor(number_of(op, arg, dtype), dtype=dtype)
            given.append(value)
            values.append(value)
            value = [value] if arg["kind"] == "TensorList" else value
        elif arg["kind"] in NUMBERS and not arg["kind"].startswith("Optional"):
            value = number_of(op, arg, dtype)
            values.append(torch.tensor(value))
            value = [value] if arg["kind"] == "ScalarList" else value
        else:  # not used by expressions
            values.append(torch.tensor(0))
            if not arg["keyword_only"]:
                positional.append(None)
            continue
        if arg["keyword_only"]:
            keywords[arg["name"]] = value
        else:
            positional.append(value)
    while positional and positional[-1] is None:
        positional.pop()
    shape = torch.broadcast_shapes(*(g.shape for g in given))
    return positional, keywords, [v.expand(shape) for v in values]


def compute_dtype(dtype: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The dtype in which the op computes (ir/ops/scalar_tree.h)."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if not dtype.is_floating_point and result.is_floating_point:
        return result
    # Numbers may be of a higher category than the operands: bool times 3 is an integer.
    return result if dtype == torch.bool and result != torch.bool else dtype


def differences(op: dict, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if not expected.is_floating_point():
        return got != expected
    single = op["entry"] in SINGLE_PRECISION
    tolerance = max(TOLERANCE[expected.dtype], TOLERANCE[torch.float32] if single else 0.0)
    smallest = torch.finfo(expected.dtype).tiny * 4
    same = torch.isclose(got, expected, rtol=tolerance, atol=max(smallest, tolerance * 1e-3), equal_nan=True)
    zeros = (got == 0) & (expected == 0) & (op["entry"] not in ANY_ZERO)
    return ~same | (zeros & (torch.signbit(got) != torch.signbit(expected)))


def compute_call(op: dict, positional: list, keywords: dict) -> torch.Tensor | None:
    """torch's result; None: the dtype is not supported."""
    try:
        result = op_table.overload(op["name"])(*positional, **keywords)
    except (RuntimeError, TypeError):
        return None
    return result[0] if isinstance(result, (list, tuple)) else result


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op["name"].removeprefix("aten::"))
def test_tree(op, evaluator, ran):
    dtypes = []
    for dtype in DTYPES:
        positional, keywords, values = call_of(op, dtype)
        expected = compute_call(op, positional, keywords)
        if expected is None:
            continue
        compute = compute_dtype(dtype, expected.dtype)
        got = evaluate(evaluator, op["name"], compute, values).to(expected.dtype).reshape(expected.shape)
        wrong = differences(op, got, expected)
        dtypes.append(dtype)
        if wrong.any():
            i = int(wrong.reshape(-1).nonzero()[0])
            seen = [v.reshape(-1)[i].item() for v in values]
            pytest.fail(
                f"{op['name']} of {dtype}: {int(wrong.sum())} of {wrong.numel()} differ, first for {seen}: the tree"
                f" says {got.reshape(-1)[i].item()!r}, torch {expected.reshape(-1)[i].item()!r}"
            )
    assert dtypes, f"{op['name']} ran with no dtype"
    ran.update(dtypes)


def test_no_dtype_dropped_out(ran, request):
    if len(request.session.items) <= len(ROWS):
        pytest.skip("only some of the ops were asked for")
    assert {dtype: count for dtype, count in ran.items() if count < FLOORS[dtype]} == {}
    assert set(ran) == set(FLOORS)
