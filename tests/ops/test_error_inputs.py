"""Wrong calls, from torch's own tests: each raises at the call, as on CPU.

Nothing waits for the worker here, so the errors come from arguments and metadata. The type is CPU's or the one that the
OpInfo names. The text matches the OpInfo's pattern or equals CPU's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from harness import FOREACH, attempt, copy_tree, op_name
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo
from torch.utils._pytree import tree_map

OPS = {op_name(op): op for op in op_db if op.error_inputs_func is not None}
MODULES = {info.name: info for info in module_db if info.module_error_inputs_func is not None}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db if info.optim_error_inputs_func is not None}

# Inputs that CPU accepts, too: the pattern is for operands whose sizes do not fit, and these fit.
NOTHING_WRONG = {"__rmod__": {0}, "__rpow__": {0}, "__rsub__": {0}, "clamp_max": {0}, "clamp_min": {0}}
# Difference in the number of an OpInfo's inputs on devices other than CPU.
OTHERS_THAN_CPU = {
    "dot": +1,
    "vdot": +1,
    "where": +6,
    "gather": -1,
    "scatter": -1,
    "scatter_add": -1,
    "multinomial": -14,
}
# The number of first inputs of a module that only CPU refuses: indices out of range, which depend on data.
MODULES_ON_CPU = {"nn.Embedding": 1}
LEAST_INPUTS = 690
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
)
# Calls that CPU kernels refuse in some dtypes, and that torch's tests lack. `ones` makes a tensor of a size.
aten = torch.ops.aten
IN_DTYPES: dict[str, Callable[..., Any]] = {
    "_linalg_det": lambda ones: aten._linalg_det(ones(3, 3)),
    "_linalg_eigh": lambda ones: aten._linalg_eigh(ones(3, 3)),
    "_pdist_forward": lambda ones: aten._pdist_forward(ones(3, 3)),
    "_prelu_kernel": lambda ones: aten._prelu_kernel(ones(3), ones(1)),
    "_upsample_nearest_exact1d": lambda ones: aten._upsample_nearest_exact1d(ones(1, 1, 3), [4]),
    "bitwise_xor_ of nothing": lambda ones: ones(3, 0).bitwise_xor_(ones(3, 0)),
    "cholesky_inverse": lambda ones: aten.cholesky_inverse(ones(3, 3)),
    "cholesky_solve": lambda ones: aten.cholesky_solve(ones(3, 3), ones(3, 3)),
    "cummax": lambda ones: aten.cummax(ones(3), 0),
    "cummin": lambda ones: aten.cummin(ones(3), 0),
    "ldexp": lambda ones: torch.ldexp(ones(3).float(), ones(3)),
    "lerp": lambda ones: aten.lerp.Tensor(ones(3), ones(3), ones(3)),
    "linalg_lu_solve": lambda ones: aten.linalg_lu_solve(ones(3, 3), ones(3).int(), ones(3, 3)),
    "maximum": lambda ones: aten.maximum(ones(3), ones(3)),
    "minimum": lambda ones: aten.minimum(ones(3), ones(3)),
    "mode": lambda ones: aten.mode(ones(3)),
    "ormqr": lambda ones: aten.ormqr(ones(3, 3), ones(3), ones(3, 3)),
    "sub": lambda ones: ones(3) - True,
    "sub_": lambda ones: ones(3).sub_(True),
    "triangular_solve": lambda ones: aten.triangular_solve(ones(3, 3), ones(3, 3)),
    "upsample_bicubic2d": lambda ones: aten.upsample_bicubic2d(ones(1, 1, 3, 3), [4, 4], False),
    "upsample_linear1d": lambda ones: aten.upsample_linear1d(ones(1, 1, 3), [4], False),
    "upsample_nearest1d": lambda ones: aten.upsample_nearest1d(ones(1, 1, 3), [4]),
    "upsample_trilinear3d": lambda ones: aten.upsample_trilinear3d(ones(1, 1, 3, 3, 3), [4, 4, 4], False),
}
# Sizes that do not fit.
SIZES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], ...]]]] = {
    "mv": (torch.mv, [((3, 4), (5,)), ((3, 4), (3, 4)), ((4,), (4,)), ((), (4,))]),
    "matmul": (torch.matmul, [((3, 4), (5,)), ((4,), (5,))]),
    "dot": (torch.dot, [((4,), (5,)), ((4,), (1, 4))]),
    "vdot": (torch.vdot, [((4,), (5,))]),
}
# Dtypes for multi-tensor ops, with the float32 samples of torch's tests.
FOREACH_DTYPES = (torch.int64, torch.bool, torch.complex64, torch.uint8)


def outcome(call: Callable[[], Any], warning: str = "ignore") -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter(warning, UserWarning)
        try:
            call()
        except Exception as error:
            return error
    return None


def on_cpu(text: str) -> str:
    return " ".join(text.replace("remote:0", "cpu").replace("torch.remote.", "torch.").split())


def difference(got: Exception | None, cpu: Exception | None, error_type: type, pattern: str) -> str | None:
    """Describes what is wrong with the device's error."""
    if got is None:
        return None if cpu is None and not pattern else f"nothing is raised at the call, on CPU {cpu!r}"
    named = error_type is not Exception and isinstance(got, error_type)
    if not named and (cpu is None or type(got) is not type(cpu)):
        return f"{got!r}, on CPU {cpu!r}"
    matches = bool(pattern) and re.search(pattern, str(got)) is not None
    if not matches and (cpu is None or on_cpu(str(got)) != on_cpu(str(cpu))):
        return f"{got!r} does not match {pattern!r}, on CPU {cpu!r}"
    return None


def inputs_of(op: OpInfo, device: torch.device) -> list[ErrorInput | Exception]:
    """The op's invalid inputs on the device. An exception replaces an input that cannot even be created there."""
    made: list[ErrorInput | Exception] = []
    try:
        made.extend(op.error_inputs(str(device)))
        return made
    except RuntimeError:  # a tensor that the device does not support
        made = []
    for item in op.error_inputs("cpu"):
        sample = item.sample_input

        def move(item: ErrorInput = item, sample: Any = sample) -> None:
            moved = copy_tree((sample.input, sample.args, sample.kwargs), device)
            sample.input, sample.args, sample.kwargs = moved
            made.append(item)

        error = outcome(move)
        if error is not None:
            made.append(error)
    return made


@pytest.mark.parametrize("name", OPS)
def test_ops_raise_at_the_call(device, name):
    op = OPS[name]
    expected = list(op.error_inputs("cpu"))
    items = inputs_of(op, device)
    if device.type != "cpu":
        assert len(items) == len(expected) + OTHERS_THAN_CPU.get(name, 0)
    wrong = []
    for i, item in enumerate(items):
        if isinstance(item, Exception):
            text = difference(item, None, expected[i].error_type, expected[i].error_regex)
        else:
            sample = item.sample_input
            here = copy_tree(((sample.input, *sample.args), dict(sample.kwargs)), "cpu")
            cpu = outcome(lambda here=here: op(*here[0], **here[1]))
            got = outcome(lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs))
            if i in NOTHING_WRONG.get(name, ()):
                text = None if got is None and cpu is None else f"{got!r}, on CPU {cpu!r}"
            else:
                text = difference(got, cpu, item.error_type, item.error_regex)
        if text is not None:
            wrong.append(f"{i}: {text}")
    if device.type == "remote":
        torch.remote.synchronize()  # none of the failed calls left work
    assert not wrong, "\n".join(wrong)


def test_there_are_as_many_inputs_as_ever():
    assert sum(len(list(op.error_inputs("cpu"))) for op in OPS.values()) >= LEAST_INPUTS
    assert len(MODULES) >= 20 and len(OPTIMIZERS) >= 14


@pytest.mark.parametrize("name", MODULES)
def test_modules_raise_at_the_call(device, name):
    info = MODULES[name]

    def errors(where: torch.device) -> list[Exception | None]:
        found = []
        for item in info.module_error_inputs_func(
            info, device=str(where), dtype=torch.float32, requires_grad=False, training=True
        ):
            made, call = item.module_error_input.constructor_input, item.module_error_input.forward_input
            with torch.device(where):
                if item.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
                    found.append(outcome(lambda made=made: info.module_cls(*made.args, **made.kwargs)))
                else:
                    module = info.module_cls(*made.args, **made.kwargs)
                    found.append(outcome(lambda module=module, call=call: module(*call.args, **call.kwargs)))
            patterns.append((item.error_type, item.error_regex))
        return found

    patterns: list[tuple[type, str]] = []
    expected = errors(torch.device("cpu"))[MODULES_ON_CPU.get(name, 0) if device.type == "remote" else 0 :]
    patterns.clear()
    wrong = [
        text
        for got, cpu, (kind, pattern) in zip(errors(device), expected, patterns, strict=True)
        if (text := difference(got, cpu, kind, pattern)) is not None
    ]
    assert expected and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_raise_at_the_call(device, name):
    info = OPTIMIZERS[name]
    wrong = []
    for item in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = item.optimizer_error_input
        moved: dict[int, torch.Tensor] = {}  # a parameter that occurs twice must stay the same object

        def move(x: Any, moved: dict[int, torch.Tensor] = moved) -> Any:
            if not isinstance(x, torch.nn.Parameter):
                return x
            if id(x) not in moved:
                moved[id(x)] = torch.nn.Parameter(x.detach().to(device))
                if x.grad is not None:
                    moved[id(x)].grad = x.grad.to(device)
            return moved[id(x)]

        def use(params: Any, item: Any = item, given: Any = given) -> None:
            optimizer = info.optim_cls(params, **given.kwargs)
            if item.error_on is OptimizerErrorEnum.STEP_ERROR:
                optimizer.step()

        params = tree_map(move, given.params)
        cpu, got = (outcome(lambda p=p, use=use: use(p), "error") for p in (given.params, params))
        if (text := difference(got, cpu, item.error_type, item.error_regex)) is not None:
            wrong.append(f"{given.desc}: {text}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", IN_DTYPES)
def test_dtypes_are_refused_at_the_call(device, name):
    wrong, refused = [], 0
    for dtype in DTYPES:

        def call(where: torch.device | str, dtype: torch.dtype = dtype) -> None:
            IN_DTYPES[name](lambda *size: torch.ones(size, dtype=dtype, device=where))

        cpu = outcome(lambda call=call: call("cpu"))
        got = outcome(lambda call=call: call(device))
        refused += cpu is not None
        if (type(got), on_cpu(str(got))) != (type(cpu), on_cpu(str(cpu))):
            wrong.append(f"{dtype}: {got!r}, on CPU {cpu!r}")
        if device.type == "remote":
            torch.remote.synchronize()
    assert refused and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_refused_in_cpus_words(device, name):
    function, wrong = SIZES[name]
    for sizes in wrong:
        cpu, got = (
            outcome(lambda w=w, s=sizes: function(*(torch.ones(x, device=w) for x in s))) for w in ("cpu", device)
        )
        assert (type(got), str(got)) == (type(cpu), str(cpu))


@pytest.mark.parametrize("dtype", FOREACH_DTYPES, ids=str)
def test_multi_tensor_ops_raise_at_the_call(device, dtype):
    """The device refuses the dtypes that CPU refuses. The text is CPU's, except for a result that does not fit."""
    wrong, refused = [], 0
    for op in FOREACH:
        torch.manual_seed(0)
        for form, function in (("function", op.op), ("in place", op.inplace_variant)):
            for sample in islice(op.sample_inputs("cpu", torch.float32), 12):
                sample = sample.transform(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) else x)
                arguments = ((sample.input, *sample.args), dict(sample.kwargs))
                here, there = copy_tree(arguments, "cpu"), copy_tree(arguments, device)
                cpu = outcome(lambda f=function, a=here: f(*a[0], **a[1])) if function is not None else None
                if cpu is None:
                    continue
                refused += 1
                got = outcome(lambda f=function, a=there: f(*a[0], **a[1]))
                if type(got) is not type(cpu):
                    wrong.append(f"{op.name}, {form}: {got!r}, on CPU {cpu!r}")
                    attempt(torch.remote.synchronize)
                    break
    assert refused and not wrong, "\n".join(wrong)


def test_padding_may_not_take_more_than_there_is(device):
    for size, pad in (((2, 0), (1, -1)), ((2, 3), (-4, 2)), ((2, 3), (3, -4))):
        here, there = (
            outcome(lambda w=w, s=size, p=pad: torch.nn.functional.pad(torch.ones(s, device=w), p))
            for w in ("cpu", device)
        )
        assert here is not None and (type(there), str(there)) == (type(here), str(here))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_gradients_of_grids_that_reach_beyond_the_image(device, dtype, padding):
    image, grid = torch.randn(1, 2, 3, 4).to(dtype), torch.randn(1, 5, 6, 2).mul(3).to(dtype)
    grads = []
    for where in ("cpu", device):
        x = image.to(where, copy=True).requires_grad_()
        torch.nn.functional.grid_sample(x, grid.to(where), padding_mode=padding, align_corners=False).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


def test_complex_numbers_make_lists_of_tensors_complex(device):
    number = torch.tensor(1 + 2j)
    for name in ("mul", "add", "sub", "div", "pow"):
        function = getattr(torch, f"_foreach_{name}")
        for other in (1 + 2j, [1 + 2j, 3.0], *((number,) if name in ("mul", "add", "div") else ())):
            tensors = [torch.tensor([2.0, 3.0]), torch.tensor([[0.5]])]
            here = function(tensors, other)
            moved = other.to(device) if isinstance(other, torch.Tensor) else other
            there = function([t.to(device) for t in tensors], moved)
            for a, b in zip(here, there, strict=True):
                assert a.dtype == b.dtype and torch.allclose(a, b.cpu())


@pytest.mark.parametrize("name", ("cummax", "cummin"))
def test_without_dims_the_dim_is_checked(device, name):
    """By the call, because GPU kernels do not check it."""
    message = f"{name}\\(\\): Expected reduction dim -1 or 0 for scalar but got 2"
    for where in ("cpu", device):
        with pytest.raises(IndexError, match=message):
            getattr(torch, name)(torch.tensor(1.0).to(where), 2)


@pytest.mark.parametrize("name", ("cummax", "cummin", "kthvalue", "mode"))
def test_without_dims_nothing_is_refused(device, name):
    """CPU copies such a tensor in every dtype."""
    arguments = (1, 0) if name == "kthvalue" else (0,)
    x = torch.tensor(1 + 2j)
    here, there = getattr(torch, name)(x, *arguments), getattr(torch, name)(x.to(device), *arguments)
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a, b.cpu())
    assert isinstance(outcome(lambda: getattr(torch, name)(x[None].to(device), *arguments)), NotImplementedError)
