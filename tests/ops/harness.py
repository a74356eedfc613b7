"""Runs ops on CPU and on the device with the same inputs, and compares everything they return and write."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from unittest import mock

import numpy
import torch
from extra_samples import extra_samples
from overload_samples import overload_calls
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# Samples are small. Threads that spin next to those of other shards would take a third of the time. (The worker has its
# own.) Also, sums then run in the worker's order: results are compared bit for bit.
torch.set_num_threads(1)

FOREACH = (
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
)
UNINITIALIZED = ("empty", "new_empty", "resize", "set_", "_efficientzerotensor", "_ctc_loss.")
# CPU's out= variants leave them unwritten if only one dim is transformed, so there is nothing to compare with.
OUT_NOT_WRITTEN = ("fft.ihfft2", "fft.ihfftn")
# torch's Python code sums these in float32 on CPU, and in the input's dtype on devices that it does not know.
SUMMED_IN_FLOAT = "nn.functional.linear_cross_entropy.chunked"
# Features that the device does not offer.
UNSUPPORTED = {"to_sparse": "sparse tensors"}
# Where CPU is wrong with permuted tensors: the forms, and the error.
CPU_IS_WRONG = {
    "as_strided_scatter": (("function", "in place", "out", "gradient"), "an assertion of CPU's own fails"),
    "_native_batch_norm_legit": (("out",), "out= is written as if it were packed"),
    "native_batch_norm": (("out",), "out= is written as if it were packed"),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": (
        ("function", "gradient"),
        "elements of the last dim are read as if they were adjacent",
    ),
}
# Overloads of the op table that are not called, with the reason.
NOT_CALLED = {
    "aten::_foreach_addcdiv.Tensor_out": "its scalars must be on the CPU, and samples move all tensors to the device",
    "aten::_foreach_addcmul.Tensor_out": "its scalars must be on the CPU, and samples move all tensors to the device",
    "aten::_transform_bias_rescale_qkv": "its three results are one tensor's memory on the CPU alone",
    "aten::isin.Scalar_Tensor_out": "the device gives the result a dim, as torch's meta does, and the CPU none",
    **{
        f"aten::_fused_{name}": "the device refuses it: nobody calls the forms with lists for out="
        for name in (
            "adagrad.out",
            "adagrad.tensor_lr_out",
            "adam.tensor_lr_out",
            "adamw.tensor_lr_out",
            "sgd.out",
            "sgd.tensor_lr_out",
        )
    },
}
# Known differences of the device: in these forms of ops, strides differ from CPU, and sums run in another order.
STRIDES_DIFFER = {
    "nn.functional.group_norm, gradient, permuted": "torch's formula packs its operands where the device is not CPU",
}
EXACT = {"rtol": 0.0, "atol": 0.0}
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LAST_SAMPLE = 24  # samples are spread over this many
CALLS_PER_OVERLOAD = 2  # captured calls per overload that are replayed in a process


class NotTransferableError(Exception):
    """A sample with tensors that the device does not support: sparse, nested or quantized."""


def copy_tree(tree: Any, device: torch.device | str) -> Any:
    """A deep copy on `device`. Tensors that share storage share it in the copy, too. Strides and offsets stay."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    there = torch.device(device)

    def tensor(t: torch.Tensor) -> torch.Tensor:
        if (
            t.layout != torch.strided
            or t.is_nested
            or t.is_quantized
            or type(t) not in (torch.Tensor, torch.nn.Parameter)
        ):
            raise NotTransferableError(str(t.layout))
        if t.is_meta:
            return t
        if t.is_conj():
            return tensor(t.detach().conj()).conj().requires_grad_(t.requires_grad)
        if t.is_neg():
            return tensor(torch._neg_view(t.detach()))._neg_view().requires_grad_(t.requires_grad)
        storage = t.untyped_storage()
        key = (storage._cdata, t.dtype)
        if key not in storages:
            flat = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage)
            storages[key] = flat.clone() if t.device == there else flat.to(device)
        copy = storages[key].as_strided(t.shape, t.stride(), t.storage_offset())
        return copy.detach().requires_grad_(t.requires_grad)

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            with torch.no_grad():
                return tensor(x)
        if isinstance(x, torch.device) and x.type == "cpu":
            return torch.device(device)
        return x

    def with_device_names(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: (str(device) if k == "device" and v == "cpu" else with_device_names(v)) for k, v in x.items()}
        if type(x) is tuple:
            return tuple(str(device) if type(y) is str and y == "cpu" else with_device_names(y) for y in x)
        return x

    return tree_map(leaf, with_device_names(tree))


def difference(
    got: Any,
    want: Any,
    what: str,
    values: bool = True,
    tolerance: dict[str, float] | None = None,
    strides: bool = True,
    device: torch.device | None = None,
) -> str | None:
    """Describes how two results differ; dtypes count. `tolerance`: for values; without it, they are compared bit for
    bit. `strides`: whether they count. `device`: where tensors must be that are on CPU in `want`."""
    got_leaves, got_shape = tree_flatten(got)
    want_leaves, want_shape = tree_flatten(want)
    if got_shape != want_shape:
        return f"{what}: structure {got_shape}, on CPU {want_shape}"
    for i, (g, w) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if not isinstance(w, torch.Tensor):
            if values and isinstance(w, (int, float, bool, complex)) and g != w and not (g != g and w != w):
                return f"{what} {i}: {g!r}, on CPU {w!r}"
            continue
        if not isinstance(g, torch.Tensor) or g.dtype != w.dtype or g.shape != w.shape:
            return f"{what} {i}: {describe(g)}, on CPU {describe(w)}"
        place = device if device is not None and w.device.type == "cpu" else w.device
        if device is not None and (g.device.type, g.device.index or 0) != (place.type, place.index or 0):
            return f"{what} {i}: on {g.device}, must be on {place} (sizes {tuple(w.shape)})"
        if w.layout != torch.strided:
            continue
        if strides and g.stride() != w.stride() and w.numel() > 1:
            return f"{what} {i}: strides {g.stride()}, on CPU {w.stride()} (sizes {tuple(w.shape)})"
        if values and not w.is_meta:
            mine, its = g.detach().cpu().resolve_conj().resolve_neg(), w.detach().resolve_conj().resolve_neg()
            if same_bits(mine, its):
                continue
            try:
                torch.testing.assert_close(mine, its, equal_nan=True, **(EXACT if tolerance is None else tolerance))
            except AssertionError as error:
                return f"{what} {i}: {' '.join(str(error).split())[:300]}"
            if tolerance is None:
                return f"{what} {i}: zeros of another sign"
    return None


def too_far(got: Any, want: Any, rounding: dict[torch.dtype, float], together: bool = False) -> str | None:
    """Describes which tensor is further from CPU's than rounding explains. `rounding`: by dtype, relative to the
    largest element of the tensor, or of all tensors together. The results must have the same structure
    (difference())."""
    pairs = [
        (i, mine.detach().cpu().to(wide), its.detach().to(wide), rounding.get(its.dtype, 0.0))
        for i, (mine, its) in enumerate(zip(tree_flatten(got)[0], tree_flatten(want)[0], strict=True))
        if isinstance(its, torch.Tensor) and its.numel() and its.layout == torch.strided
        for wide in (torch.complex128 if its.is_complex() else torch.float64,)
    ]
    of_all = max((largest(its) for _, _, its, allowed in pairs if allowed), default=0.0)
    for i, mine, its, allowed in pairs:
        scale = of_all if together else largest(its)
        if not torch.allclose(mine, its, rtol=0, atol=allowed * scale, equal_nan=True):
            return f"result {i}: off by {(mine - its).abs().max().item()}, of {scale} at most"
    return None


def largest(tensor: torch.Tensor) -> float:
    return tensor[tensor.isfinite()].abs().max().item() if tensor.isfinite().any() else 0.0


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compares bit for bit; any NaN equals any other."""
    if a.is_complex():
        return same_bits(torch.view_as_real(a), torch.view_as_real(b))
    if not a.is_floating_point() or a.element_size() not in BITS:
        return torch.equal(a, b)
    bits = BITS[a.element_size()]
    same = a.view(bits) == b.view(bits)
    return bool(same.all()) or bool((same | (a.isnan() & b.isnan())).all())


def sharing(tree: Any) -> list[tuple[int, int]]:
    """For each tensor, the index of the first one with the same storage, and of the first one that is the same
    object."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    tensors = [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    return [
        (storages.setdefault(t.untyped_storage()._cdata, i), objects.setdefault(id(t), i))
        for i, t in enumerate(tensors)
    ]


def difference_in_sharing(got: Any, want: Any, what: str) -> str | None:
    for i, (mine, its) in enumerate(zip(sharing(got), sharing(want), strict=True)):
        if mine != its:
            return f"{what} tensor {i}: shares the storage of, is the tensor {mine}; on CPU {its}"
    return None


def describe(x: Any) -> str:
    return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


RANKS = ("equal", "fallback", "refused", "different")
FAILED = RANKS[2:]


@dataclass
class Report:
    """Outcomes by op. The worst one counts: different from CPU, refused by the device, run on the client, equal."""

    outcomes: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    skipped: Counter = field(default_factory=Counter)
    compared: Counter = field(default_factory=Counter)  # by op: number of calls whose values were compared with CPU
    excused: Counter = field(default_factory=Counter)  # keys of STRIDES_DIFFER that were needed

    def add(self, name: str, outcome: str, message: str = "") -> None:
        if name not in self.outcomes or RANKS.index(outcome) > RANKS.index(self.outcomes[name]):
            self.outcomes[name] = outcome
            if message:
                self.messages[name] = message

    def failures(self) -> list[str]:
        """Describes every difference from CPU."""
        return [f"{name}: {self.messages[name]}" for name, outcome in self.outcomes.items() if outcome in FAILED]


def attempt(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(), None
    except Exception as error:
        return None, error


def fallbacks(device: torch.device) -> int:
    return torch.remote.stats()["client_fallbacks"] if device.type == "remote" else 0


def synchronize(device: torch.device) -> None:
    if device.type == "remote":
        torch.remote.synchronize()


# -- high level: samples of OpInfo ------------------------------------------------------------------------------------


def variants(op: OpInfo, grad: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The forms of an op: function, method, in place, out=, gradient."""
    yield "function", op.op
    if op.inplace_variant is not None:
        yield "in place", lambda t, *args, **kwargs: op.inplace_variant(t.clone(), *args, **kwargs)
    if op.supports_out:

        def with_out(*args: Any, **kwargs: Any) -> Any:
            result = op.op(*args, **kwargs)
            out = tree_map(lambda t: torch.empty_like(t) if isinstance(t, torch.Tensor) else t, result)
            if not isinstance(out, (torch.Tensor, tuple)):
                raise NotTransferableError("out")
            with torch.no_grad():  # out= does not support gradients
                return op.op(*args, **kwargs, out=out)

        yield "out", with_out
    if grad:

        def with_grad(*args: Any, **kwargs: Any) -> Any:
            inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            result = op.op(*args, **kwargs)
            outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            if not outputs or not inputs:
                return result
            return result, torch.autograd.grad(outputs, inputs, map(some_gradient, outputs), allow_unused=True)

        yield "gradient", with_grad


def is_random(op: OpInfo, arguments: Any) -> bool:
    """Whether the op's result depends on the seed: it draws random numbers, and two seeds differ (even if the OpInfo
    sets a seed itself)."""
    results = []
    with (
        mock.patch.object(torch, "manual_seed"),
        mock.patch.object(torch.testing._utils, "freeze_rng_state", nullcontext),
    ):
        for seed in range(6):
            args, kwargs = copy_tree(arguments, "cpu")
            torch.default_generator.manual_seed(seed)
            before = torch.default_generator.get_state()
            result, error = attempt(lambda args=args, kwargs=kwargs: op.op(*args, **kwargs))
            if error is not None or (seed == 0 and torch.equal(before, torch.default_generator.get_state())):
                return False
            results.append(result)
    return any(difference(result, results[0], "", tolerance=EXACT) is not None for result in results[1:])


def permuted(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another memory order: channels last, or the last dim outermost."""
    if tensor.layout != torch.strided or tensor.dim() < 2:
        return tensor
    dim, place = (1, -1) if tensor.dim() in (4, 5) else (-1, 0)
    result = tensor.detach().movedim(dim, place).contiguous().movedim(place, dim)
    return result.requires_grad_(tensor.requires_grad)


# Memory layouts of samples' tensors.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "packed": lambda sample: sample,
    "permuted": lambda sample: sample.transform(lambda x: permuted(x) if isinstance(x, torch.Tensor) else x),
}


def some_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Different values for each element, with the tensor's strides."""
    values = torch.linspace(0.5, 1.5, tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
    if tensor.is_complex():
        values = torch.complex(values, 1.75 - values)
    return torch.empty_like(tensor).copy_(values.to(tensor.dtype))


def check_sample(
    form: str,
    call: Callable[..., Any],
    sample: Any,
    device: torch.device,
    values: bool,
    strides: bool = True,
) -> tuple[str, str] | None:
    """(outcome, message) of one sample in one form; None if CPU refuses it, too. Without `strides`, rounding may
    differ, because sums run in another order."""
    arguments = ((sample.input, *sample.args), dict(sample.kwargs))
    here = copy_tree(arguments, "cpu")
    want, refused = attempt(lambda: call(*here[0], **here[1]))
    if isinstance(refused, NotTransferableError):
        return None
    before = fallbacks(device)
    there = copy_tree(arguments, device)

    def run_there() -> Any:
        result = call(*there[0], **there[1])
        synchronize(device)
        return result

    got, error = attempt(run_there)
    if error is not None:
        attempt(lambda: synchronize(device))  # executes what the call recorded before it raised
    if refused is not None:
        return None if error is not None else ("different", f"{form}: CPU raises {refused!r}, the device nothing")
    if error is not None and "does not match device type of out parameter" in str(error):
        return None  # on every device but CPU, a factory with out= requires device=
    if error is not None:
        return "refused", f"{form}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    text = (
        difference(got, want, form, values, None if strides else {}, strides, device)
        or difference(there, here, f"{form}, inputs after it", values, device=device)
        or difference_in_sharing((got, there), (want, here), form)
    )
    if text is not None:
        return "different", text
    return ("fallback", f"{form}: ran on the client") if fallbacks(device) != before else ("equal", "")


def seed_all() -> None:
    """Makes the samples of an op independent of what ran earlier."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def chosen(op: OpInfo, dtype: torch.dtype, grad: bool, first: int, spread: int) -> list[Any]:
    """The op's `first` samples, `spread` more of the others up to LAST_SAMPLE, and our own."""
    seed_all()
    samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), LAST_SAMPLE if spread else first))
    others = samples[first:]
    samples[first:] = [others[(i + 1) * len(others) // spread - 1] for i in range(min(spread, len(others)))]
    own = extra_samples(op, dtype, grad)
    for sample in own if dtype == torch.float32 else ():
        args, kwargs = copy_tree(((sample.input, *sample.args), dict(sample.kwargs)), "cpu")
        op.op(*args, **kwargs)
    return samples + own


def check_op(
    op: OpInfo,
    dtype: torch.dtype,
    device: torch.device,
    samples: int,
    report: Report,
    grad: bool = True,
    layout: str = "packed",
    spread: int = 0,
) -> None:
    """Checks every form of an op with some of its samples (chosen()), in one of LAYOUTS."""
    name = op_name(op)
    with_grad = grad and has_gradient(op, dtype)
    if name in UNSUPPORTED:
        report.skipped[f"{name}: {UNSUPPORTED[name]}"] += 1
        return
    found, error = attempt(lambda: chosen(op, dtype, with_grad, samples, spread))
    if error is not None:
        report.skipped[f"{name}: no samples ({type(error).__name__})"] += 1
        return
    known = not name.startswith(UNINITIALIZED)
    known &= not (name.startswith(SUMMED_IN_FLOAT) and dtype in (torch.float16, torch.bfloat16))
    for sample in map(LAYOUTS[layout], found):
        if sections_on_cpu(name, sample):
            report.skipped[f"{name}: the sections' tensor must stay on CPU"] += 1
            continue
        values = known and moves(sample) and not is_random(op, ((sample.input, *sample.args), dict(sample.kwargs)))
        for form, call in variants(op, with_grad):
            if layout == "permuted" and form in CPU_IS_WRONG.get(name, ((), ""))[0]:
                report.skipped[f"{name}: {CPU_IS_WRONG[name][1]}"] += 1
                continue
            with_values = values and not (form == "out" and name in OUT_NOT_WRITTEN)
            try:
                outcome = check_sample(form, call, sample, device, with_values)
            except NotTransferableError as reason:
                report.skipped[f"{name}: {reason}"] += 1
                continue
            if outcome is not None and outcome[0] == "different" and "strides" in outcome[1]:
                excuse = f"{name}, {form}, {layout}"
                if excuse in STRIDES_DIFFER:
                    report.excused[excuse] += 1
                    outcome = check_sample(form, call, sample, device, with_values, strides=False)
            if outcome is None:
                report.skipped[f"{name}: CPU refuses it"] += 1
                continue
            report.add(name, *outcome)
            if with_values:
                report.compared[name] += 1
            else:
                report.skipped[f"{name}: values not compared"] += 1


# Exists only in place, which leaves that require gradients refuse.
IN_PLACE_ONLY = ("_foreach_zero",)


def has_gradient(op: OpInfo, dtype: torch.dtype) -> bool:
    if op_name(op) in IN_PLACE_ONLY:
        return False
    differentiable = dtype.is_floating_point or dtype.is_complex
    return op.supports_autograd and differentiable and dtype in op.supported_backward_dtypes("cpu")


def sections_on_cpu(name: str, sample: Any) -> bool:
    """tensor_split's sections may be a tensor, which is on CPU for every device."""
    return name == "tensor_split" and isinstance(sample.args[0], torch.Tensor)


def moves(sample: Any) -> bool:
    try:
        copy_tree((sample.input, sample.args, sample.kwargs), "cpu")
    except NotTransferableError:
        return False
    return True


# -- low level: the overloads of the op table -------------------------------------------------------------------------


def load_table() -> dict[str, dict[str, Any]]:
    """ATen's part of the op table, by overload name ("aten::add.Tensor"); the build makes the list."""
    with open(os.environ.get("TORCH_REMOTE_TEST_OP_LIST", "ir/ops/op_list.json")) as file:  # in the runfiles
        return {op["name"]: op for op in json.load(file) if op["name"].startswith("aten::")}


def cell(name: str, args: Any, kwargs: Any, otherwise: torch.dtype) -> str:
    """The key of a call: overload and dtype. The dtype is that of the first tensor, or the one that is passed."""
    leaves = tree_flatten((args, kwargs))[0]
    dtypes = [x.dtype for x in leaves if isinstance(x, torch.Tensor)]
    dtypes += [x for x in leaves if isinstance(x, torch.dtype)]
    return f"{name} {str(dtypes[0] if dtypes else otherwise).removeprefix('torch.')}"


class Capture(TorchDispatchMode):
    """Keeps the first calls of each ATen overload in each dtype, as (cell(), name, arguments). Arguments are copied
    before the call."""

    def __init__(self, dtype: torch.dtype, limit: int = CALLS_PER_OVERLOAD) -> None:
        super().__init__()
        self.dtype, self.limit = dtype, limit
        self.seen: Counter[str] = Counter()
        self.calls: list[tuple[str, str, tuple, dict]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = function.name()
        key = cell(name, args, kwargs, self.dtype)
        if name.startswith("aten::") and self.seen[key] < self.limit:
            try:
                copy = copy_tree((args, kwargs), "cpu")
            except NotTransferableError:
                pass
            else:
                self.seen[key] += 1
                copy = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, copy)
                self.calls.append((key, name, *copy))
        return function(*args, **kwargs)


def overload(name: str) -> Any:
    operator, _, suffix = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, operator), suffix or "default")


def siblings(table: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The in-place and out overloads of each functional overload."""
    result: dict[str, list[str]] = {}
    for name, op in table.items():
        if op["functional"] != name:
            result.setdefault(op["functional"], []).append(name)
    return result


def sibling_call(op: dict[str, Any], args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """The arguments of an in-place or out overload, derived from a call of the functional one."""
    if "Out" not in op["flags"]:
        return args, kwargs
    results, error = attempt(lambda: overload(op["functional"])(*copy_tree(args, "cpu"), **copy_tree(kwargs, "cpu")))
    if error is not None:
        return None
    outs = [a["name"] for a in op["args"] if a["writes"] and a["keyword_only"]]
    results = results if isinstance(results, tuple) else (results,)
    if len(outs) != len(results):
        return None
    makers = {k: v for k, v in kwargs.items() if k in [a["name"] for a in op["args"]]}
    fresh = {
        name: tree_map(lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) else t, result)
        for name, result in zip(outs, results, strict=True)
    }
    return args, {**makers, **fresh}


@torch.no_grad()
def check_call(key: str, args: tuple, kwargs: dict, device: torch.device, report: Report) -> None:
    """Replays one call of an overload on CPU and device. Results and all arguments, changed or not, must agree."""
    function = overload(key.split()[0])
    draws = torch.Tag.nondeterministic_seeded in function.tags
    values = not draws and not function.__name__.startswith(UNINITIALIZED)
    here = copy_tree((args, kwargs), "cpu")
    want, refused = attempt(lambda: function(*here[0], **here[1]))
    if refused is not None:
        return
    before = fallbacks(device)
    there = copy_tree((args, kwargs), device)

    def run_there() -> Any:
        result = function(*there[0], **there[1])
        synchronize(device)
        return result

    got, error = attempt(run_there)
    if error is not None:
        report.add(key, "refused", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return
    text = (
        difference(got, want, "result", values, device=device)
        or difference(there, here, "arguments after it", values, device=device)
        or difference_in_sharing((got, there), (want, here), "result and arguments")
    )
    shown = describe_call(args, kwargs)
    if text is not None:
        report.add(key, "different", f"{text}; called with {shown}")
        return
    report.compared[key] += values
    if fallbacks(device) != before:
        report.add(key, "fallback", "ran on the client")
    else:
        report.add(key, "equal")


def describe_call(args: tuple, kwargs: dict) -> str:
    parts = [describe(a) for a in tree_flatten(args)[0]] + [f"{k}={describe(v)}" for k, v in kwargs.items()]
    return "(" + ", ".join(parts)[:300] + ")"


class TableCheck:
    """Replays calls of overloads, and of their in-place and out variants in the op table, on CPU and device. The report
    is by cell()."""

    def __init__(self, device: torch.device, table: dict[str, dict[str, Any]], report: Report) -> None:
        self.device, self.table, self.report = device, table, report
        self.related = siblings(table)
        self.tried: Counter[str] = Counter()

    def check(self, name: str, args: tuple, kwargs: dict, otherwise: torch.dtype, seen: Counter[str]) -> None:
        """`otherwise`: the dtype of a call without one. `seen`: how often samples call each cell directly."""
        if name not in NOT_CALLED:
            check_call(cell(name, args, kwargs, otherwise), args, kwargs, self.device, self.report)
        for sibling in self.related.get(name, ()):
            beside = cell(sibling, args, kwargs, otherwise)
            if (
                sibling not in NOT_CALLED
                and self.tried[beside] < CALLS_PER_OVERLOAD
                and seen[beside] < CALLS_PER_OVERLOAD
            ):
                arguments = sibling_call(self.table[sibling], args, kwargs)
                if arguments is not None:
                    self.tried[beside] += 1
                    check_call(beside, *arguments, self.device, self.report)


def check_table(
    ops: list[OpInfo], dtype: torch.dtype, device: torch.device, samples: int, table: dict, report: Report
) -> None:
    """Captures the calls of ATen that the ops' samples make on CPU, and replays them."""
    capture = Capture(dtype)
    check = TableCheck(device, table, report)
    for op in ops:
        grad = has_gradient(op, dtype)
        found, error = attempt(lambda op=op, grad=grad: chosen(op, dtype, grad, samples, 0))
        if error is not None:
            report.skipped[f"{op_name(op)}: no samples ({type(error).__name__})"] += 1
            continue
        for sample in found:
            if not moves(sample):
                continue
            for _, call in variants(op, grad):
                with capture:
                    attempt(lambda c=call, s=sample: c(s.input, *s.args, **s.kwargs))
        for _, name, args, kwargs in capture.calls:
            check.check(name, args, kwargs, dtype, capture.seen)
        capture.calls.clear()


def check_overloads(names: Iterable[str], device: torch.device, table: dict, report: Report) -> None:
    """Replays the calls of overload_samples.py."""
    calls = overload_calls()
    check = TableCheck(device, table, report)
    for name in names:
        for args, kwargs in calls[name]:
            check.check(name, args, kwargs, torch.float32, Counter())


def op_name(op: OpInfo) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def ops_for(dtype: torch.dtype) -> list[OpInfo]:
    return [op for op in op_db if op.supports_dtype(dtype, "cpu")]


def foreach_ops_for(dtype: torch.dtype) -> list[OpInfo]:
    """Ops on lists of tensors, which op_db lacks."""
    return [op for op in FOREACH if op.supports_dtype(dtype, "cpu")]
