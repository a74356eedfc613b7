"""Compares modules of torch's module_db on the device with CPU, on torch's samples: results, gradients and the state of
the module afterwards.

    bazel run //tests/ops:modules -- --only LSTM        prints differences; see also --forms, --dtypes, --compiled
    bazel run //tests/ops:modules                       all of it; writes how much is compared to modules.json
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from harness import (
    attempt,
    copy_tree,
    difference,
    difference_in_sharing,
    permuted,
    seed_all,
    some_gradient,
    synchronize,
    too_far,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
MODULES = {info.formatted_name: info for info in module_db}
# Parts of a module that draw random numbers, which differ from CPU's, have these attributes.
DRAWN = ("dropout", "p")
# Whether kernels may round sums differently from CPU's library.
FUSED = os.environ.get("TORCH_REMOTE_FUSION") != "0"
# Relative to the largest element of a tensor.
ROUNDING = {
    torch.float32: 1e-4,
    torch.float64: 1e-9,
    torch.bfloat16: 0.1,
    torch.float16: 0.01,
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
}
# Terms of second gradients cancel each other.
ROUNDING_TWICE = {torch.float32: 1e-2, torch.float64: 1e-8, torch.complex64: 1e-2, torch.complex128: 1e-8}
# The rounding of a step propagates through all later steps. CPU's gradients are as far from the exact ones (8% in
# bfloat16, 2% in float16).
ROUNDING_OF_STEPS = {**ROUNDING, torch.bfloat16: 0.25, torch.float16: 0.05}
# Number of samples per module, spread over those that torch has; one module has 857.
MOST = 24
STEPS = ("nn_RNN", "nn_GRU", "nn_LSTM")
# Modules, or forms or dtypes of them, whose rounding differs from CPU, with the reason.
ROUNDED = {
    "nn_GRU": "cells are joined ops here",
    "nn_LSTM": "cells are joined ops here",
    "nn_RNN": "cells are joined ops here",
    "nn_GRUCell": "cells are joined ops here",
    "nn_LSTMCell": "cells are joined ops here",
    "nn_LinearCrossEntropyLoss bfloat16": "torch's Python code sums in float32 on CPU alone",
    "nn_LinearCrossEntropyLoss float16": "torch's Python code sums in float32 on CPU alone",
    "nn_GroupNorm permuted": "torch's formula packs its operands where the device is not CPU",
    "nn_GroupNorm channels last": "torch's formula packs its operands where the device is not CPU",
}


@dataclass(frozen=True)
class Unit:
    """One module in one dtype, in training or eval mode."""

    name: str
    dtype: torch.dtype
    training: bool

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {'train' if self.training else 'eval'}"

    @property
    def info(self) -> ModuleInfo:
        return MODULES[self.name]

    def samples(self) -> list[ModuleInput]:
        seed_all()
        given = self.info.module_inputs_func(
            self.info, device="cpu", dtype=self.dtype, requires_grad=True, training=self.training
        )
        return [sample for sample in given if sample.forward_input is not None]


def units() -> list[Unit]:
    result = []
    for name, info in MODULES.items():
        # For half types, CPU is no reference for kernels that sum in float32: it overflows, or is off by a fifth.
        dtypes = [
            *(d for d in DTYPES if not FUSED or d not in HALF),
            *(dtype for dtype in COMPLEX if dtype in info.dtypes),
        ]
        for training in (True, False) if info.train_and_eval_differ else (True,):
            result += [Unit(name, dtype, training) for dtype in dtypes]
    return result


@dataclass
class Tally:
    failures: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)  # samples by form
    refused: Counter[str] = field(default_factory=Counter)  # by form: samples that CPU refuses, too

    def count(self) -> int:
        return sum(self.compared.values())

    def add(self, other: Tally) -> None:
        self.failures += other.failures
        self.compared += other.compared
        self.refused += other.refused


# -- inputs ----------------------------------------------------------------------------------------------------------


def open_packed(tree: Any) -> Any:
    """Converts sequences of torch.nn.utils.rnn to tuples of tensors, as in pytrees."""
    return tree_map(lambda x: tuple(x) if isinstance(x, PackedSequence) else x, tree, is_leaf=is_packed)


def is_packed(x: Any) -> bool:
    return isinstance(x, PackedSequence)


def moved(tree: Any, device: torch.device | str) -> Any:
    def sequence(x: Any) -> Any:
        if not is_packed(x):
            return x
        data, batch_sizes, *orders = x
        orders = [o if o is None else o.to(device) for o in orders]
        return PackedSequence(copy_tree(data, device), batch_sizes, *orders)

    if any(map(is_packed, tree_flatten(tree, is_leaf=is_packed)[0])):
        return tree_map(lambda x: sequence(x) if is_packed(x) else copy_tree(x, device), tree, is_leaf=is_packed)
    return copy_tree(tree, device)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(open_packed(tree))[0] if isinstance(t, torch.Tensor)]


def on_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Replaces floating-point tensors of an input. The new tensors require gradients where the old ones did."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        return function(x.detach()).requires_grad_(x.requires_grad)

    return tree_map(leaf, tree)


def channels_last(t: torch.Tensor) -> torch.Tensor:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim())
    return t if layout is None else t.clone(memory_format=layout)


# -- modules ---------------------------------------------------------------------------------------------------------


def without_draws(module: torch.nn.Module) -> torch.nn.Module:
    for part in module.modules():
        for name in DRAWN:
            if isinstance(getattr(part, name, None), float) and isinstance(
                part, (torch.nn.Dropout, torch.nn.MultiheadAttention, torch.nn.RNNBase)
            ):
                setattr(part, name, 0.0)
    return module


def construct(unit: Unit, sample: ModuleInput, device: torch.device, there: bool) -> torch.nn.Module:
    """A module with its tensors on `device`: moved to it, or, if `there`, constructed on it."""
    given = sample.constructor_input
    args, kwargs = moved((given.args, given.kwargs), device)
    if there and "device" in inspect.signature(unit.info.module_cls).parameters:
        kwargs = {**kwargs, "device": device}
    module = unit.info.module_cls(*args, **kwargs)
    return without_draws(module.to(device, unit.dtype).train(unit.training))


def initial_state(unit: Unit, sample: ModuleInput) -> dict[str, torch.Tensor]:
    """Values for parameters and buffers: CPU's random ones, and others in place of zeros and ones."""
    seed_all()
    module = construct(unit, sample, torch.device("cpu"), False)
    if unit.info.is_lazy:
        args, kwargs = moved((sample.forward_input.args, sample.forward_input.kwargs), "cpu")
        module(*args, **kwargs)
    state = module.state_dict()
    for key, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
            state[key] = tensor + torch.rand(tensor.shape, dtype=tensor.dtype) / 2
    return state


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """The state of a module after a step."""
    return {
        "parameters": {name: p.detach() for name, p in module.named_parameters()},
        "gradients": {name: p.grad for name, p in module.named_parameters()},
        "buffers": dict(module.named_buffers()),
    }


def forward(module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    if getattr(module, "inplace", False):  # leaves that require gradients cannot be written in place
        args = non_leaf(args)
    return module(*args, **kwargs)


def non_leaf(args: tuple) -> tuple:
    return tree_map(lambda x: x * 1 if isinstance(x, torch.Tensor) and x.requires_grad else x, args)


def wanted(tree: Any) -> list[torch.Tensor]:
    return [t for t in tensors(tree) if t.requires_grad]


# -- forms: what is done with a module, on any device -----------------------------------------------------------------


def train(module: torch.nn.Module, args: tuple, kwargs: dict, compiled: bool = False) -> Any:
    """Two steps with accumulated gradients."""
    results = []
    call = torch.compile(module, backend="remote") if compiled else module
    for _ in range(2):
        result = forward(call, args, kwargs)
        outputs = wanted(result)
        if outputs:
            torch.autograd.backward(outputs, [some_gradient(t) for t in outputs])
        results.append(open_packed(result))
    return results, [t.grad for t in wanted((args, kwargs))], module_state(module)


def second_gradient(module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    inputs = [*wanted((args, kwargs)), *(p for p in module.parameters() if p.requires_grad)]
    outputs = wanted(forward(module, args, kwargs))
    first = torch.autograd.grad(
        outputs, inputs, [some_gradient(t) for t in outputs], create_graph=True, allow_unused=True
    )
    again = [t for t in first if t is not None and t.requires_grad]
    if not again:
        return first
    return first, torch.autograd.grad(again, inputs, [some_gradient(t) for t in again], allow_unused=True)


def copied(module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    """The results of deepcopy, pickle and state_dict round trips."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    copy = deepcopy(module)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    state = torch.load(file, weights_only=True)
    before = [name for name, _ in copy.named_parameters()]
    copy.load_state_dict(state)
    assert before == [name for name, _ in copy.named_parameters()]
    results = []
    for one in (loaded, copy):
        with torch.no_grad():
            results.append(open_packed(one(*args, **kwargs)))
        results.append(module_state(one))
    for one in (loaded, copy):
        one.requires_grad_(False)
    return results, [[p.requires_grad for p in m.parameters()] for m in (module, loaded, copy)]


def same(tree: Any) -> Any:
    return tree


@dataclass(frozen=True)
class Form:
    call: Callable[..., Any]
    inputs: Callable[[Any], Any] = same
    module: Callable[[torch.nn.Module], torch.nn.Module] = same
    there: bool = False  # the module is constructed on the device


def to_channels_last(module: torch.nn.Module) -> torch.nn.Module:
    """Converts the module if all parameters of 4 or 5 dims have the same number of dims."""
    dims = {p.dim() for p in module.parameters()}
    for count, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if count in dims and dims & {4, 5} == {count}:
            module = module.to(memory_format=layout)
    return module


# Forms that also run with torch.compile: they are training steps.
COMPILED = ("moved", "channels last")
FORMS = {
    "moved": Form(train),
    "made there": Form(copied, there=True),
    "permuted": Form(train, lambda tree: on_tensors(permuted, tree)),
    "gaps": Form(train, lambda tree: on_tensors(noncontiguous_like, tree)),
    "channels last": Form(train, lambda tree: on_tensors(channels_last, tree), to_channels_last),
    "second gradient": Form(second_gradient),
}


def applies(name: str, unit: Unit, sample: ModuleInput) -> bool:
    given = (sample.forward_input.args, sample.forward_input.kwargs)
    dims = {t.dim() for t in tensors(given)}
    if name in ("permuted", "gaps", "channels last") and any(map(is_packed, tree_flatten(given, is_leaf=is_packed)[0])):
        return False
    if name == "channels last":
        return bool(dims & {4, 5})
    if name == "permuted":
        return max(dims, default=0) >= 2
    if name == "second gradient":
        return unit.info.supports_gradgrad and unit.dtype not in HALF  # they would consist mostly of rounding errors
    return True


def run(form: Form, unit: Unit, sample: ModuleInput, state: dict, device: torch.device, compiled: bool) -> Any:
    seed_all()
    given = form.inputs((sample.forward_input.args, sample.forward_input.kwargs))
    args, kwargs = moved(given, device)
    module = construct(unit, sample, device, form.there)
    module.load_state_dict(state)
    module = form.module(module)
    if compiled and device.type == "remote":
        torch._dynamo.reset()
        result = train(module, args, kwargs, compiled=True)
    else:
        result = form.call(module, args, kwargs)
    synchronize(device)
    return result, open_packed((args, kwargs))


def check_sample(name: str, unit: Unit, sample: ModuleInput, device: torch.device, compiled: bool) -> tuple[str, bool]:
    """(difference from CPU, whether anything was compared)."""
    form = FORMS[name]
    state, refused = attempt(lambda: initial_state(unit, sample))
    want = None
    keys = (unit.name, f"{unit.name} {name}", f"{unit.name} {str(unit.dtype)[6:]}")
    exact = not (FUSED or compiled or any(key in ROUNDED for key in keys))
    if refused is None:
        want, refused = attempt(lambda: run(form, unit, sample, state, torch.device("cpu"), compiled))
    if name == "second gradient" and refused is not None and "flash_attention" in str(refused):
        with sdpa_kernel(SDPBackend.MATH):  # which has a second gradient
            want, refused = attempt(lambda: run(form, unit, sample, state, torch.device("cpu"), compiled))
        exact = False
    if refused is not None and state is None:
        return "", False
    got, error = attempt(lambda: run(form, unit, sample, state, device, compiled))
    if error is not None:
        attempt(lambda: synchronize(device))
    if refused is not None:
        missing = "not implemented for" in str(refused)  # half-type kernels that CUDA and the worker have
        return ("" if error is not None or missing else f"CPU raises {refused!r}, the device nothing"), False
    if error is not None:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}", False
    # The strides of compiled graphs are those that torch's compiler predicts for devices.
    text = difference(got, want, "result", values=exact, strides=not compiled, device=device)
    if not text and not exact:
        rounding = ROUNDING_OF_STEPS if unit.name in STEPS else ROUNDING
        rounding = ROUNDING_TWICE if name == "second gradient" else rounding
        text = too_far(got, want, rounding, together=unit.dtype in HALF)
    # On devices other than CPU, formulas of second gradients return one tensor for two biases.
    if not text and not compiled and name != "second gradient":
        text = difference_in_sharing(got, want, "result")
    return text or "", True


def check_errors(unit: Unit, device: torch.device) -> Iterator[str]:
    """Errors of a module that differ from those that torch expects."""
    function = unit.info.module_error_inputs_func
    given = [] if function is None else function(unit.info, "cpu", unit.dtype, False, unit.training)
    for error_input in given:
        sample = error_input.module_error_input

        def call(where: torch.device, sample: ModuleInput = sample, on: Any = error_input.error_on) -> Any:
            result = construct(unit, sample, where, False)
            if on is ModuleErrorEnum.FORWARD_ERROR:
                args, kwargs = moved((sample.forward_input.args, sample.forward_input.kwargs), where)
                result = result(*args, **kwargs)
            synchronize(where)  # before the result is dropped, because it would not be computed then
            return result

        here, there = (attempt(lambda call=call, d=d: call(d))[1] for d in (torch.device("cpu"), device))
        if type(here) is not type(there) or first_line(here) != first_line(there):
            yield f"error: {there!r}, on CPU {here!r}"


def first_line(error: Exception | None) -> str:
    """The first line without the recorded line numbers, and with CPU's names of types."""
    return str(error).split("\n")[0].replace("torch.remote.", "torch.").removeprefix("remote: ").split(" [aten::")[0]


def check(
    unit: Unit, device: torch.device, forms: list[str] | None = None, compiled: bool = False, most: int = MOST
) -> Tally:
    """Checks all forms of a unit, with `most` of its samples."""
    tally = Tally()
    samples, error = attempt(unit.samples)
    if error is not None:
        tally.refused["samples"] += 1
        return tally
    if len(samples) > most:
        samples = [samples[i * len(samples) // most] for i in range(most)]
    for i, sample in enumerate(samples):
        for name in forms or (COMPILED if compiled else FORMS):
            if not applies(name, unit, sample):
                continue
            text, compared = check_sample(name, unit, sample, device, compiled)
            tally.compared[name] += compared
            tally.refused[name] += not compared
            if text:
                what = sample.desc or str(sample.constructor_input.kwargs)[:80]
                tally.failures.append(f"{unit}, {name}, sample {i} ({what}): {text}")
    if unit.dtype == torch.float32 and not compiled and not forms:
        for text in check_errors(unit, device):
            tally.failures.append(f"{unit}: {text}")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--only", default="")
    parser.add_argument("--forms", nargs="*")
    parser.add_argument("--dtypes", nargs="*")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--most", type=int, default=MOST)
    args = parser.parse_args()
    if args.device != "cpu":
        import torch_remote  # noqa: F401
    total = Tally()
    counts = {}
    for unit in units():
        if args.only not in unit.name or (args.dtypes and str(unit.dtype)[6:] not in args.dtypes):
            continue
        tally = check(unit, torch.device(args.device), args.forms, args.compiled, args.most)
        for text in tally.failures:
            print(f"FAIL {text}", flush=True)
        total.add(tally)
        counts[str(unit)] = tally.count()
    print(f"{len(total.failures)} differ; compared {dict(total.compared)}; CPU refuses {dict(total.refused)}")
    if args.only or args.forms or args.dtypes or args.compiled or args.most != MOST:
        return 0
    file = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")) / "tests/ops/modules.json"
    file.write_text(json.dumps(counts, indent=1) + "\n")
    return 0


def least() -> dict[str, int]:
    """By unit: the number of samples times forms that are compared."""
    return json.loads((Path(__file__).parent / "modules.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
