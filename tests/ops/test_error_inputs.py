"""Wrong calls, as torch's own tests have them: each raises when it is made, as on CPU.

Nothing waits in here, so what raises was found by arguments and metadata. The type is CPU's or the one that the OpInfo
names, the text matches the OpInfo's pattern or equals CPU's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import copy_tree, op_name
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo
from torch.utils._pytree import tree_map

OPS = {op_name(op): op for op in op_db if op.error_inputs_func is not None}
MODULES = {info.name: info for info in module_db if info.module_error_inputs_func is not None}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db if info.optim_error_inputs_func is not None}

# Inputs that CPU takes, too: the pattern is for operands whose sizes do not fit, and these fit.
NOTHING_WRONG = {"__rmod__": {0}, "__rpow__": {0}, "__rsub__": {0}, "clamp_max": {0}, "clamp_min": {0}}
# On devices other than CPU, the OpInfo has other inputs.
OTHERS_THAN_CPU = {
    "dot": +1,
    "vdot": +1,
    "where": +6,
    "gather": -1,
    "scatter": -1,
    "scatter_add": -1,
    "multinomial": -14,
}
# So many first inputs of a module are the CPU's alone: indices out of range, which only data can tell.
MODULES_ON_CPU = {"nn.Embedding": 1}
LEAST_INPUTS = 690


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
    """What is wrong with the device's error, in words."""
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
    """The op's wrong inputs on the device; an exception in the place of one that cannot even be made there."""
    made: list[ErrorInput | Exception] = []
    try:
        made.extend(op.error_inputs(str(device)))
        return made
    except RuntimeError:  # a tensor that the device does not have
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
        torch.remote.synchronize()  # nothing of them is left
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
        moved: dict[int, torch.Tensor] = {}  # the same parameter twice stays one

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
