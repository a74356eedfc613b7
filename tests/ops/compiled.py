"""Runs ops compiled for the device: results, gradients and what they write must be those of CPU, not compiled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from unittest import mock

import torch
from harness import (
    LAYOUTS,
    NOT_OFFERED,
    UNINITIALISED,
    Report,
    attempt,
    copy_tree,
    difference,
    is_random,
    moves,
    op_name,
    sections_on_cpu,
    some_gradient,
    synchronize,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map

# What `dynamic=` of torch.compile is: sizes are parameters from the first call on, or from the second one on.
MODES = {"dynamic": True, "automatic": None}
# Of values; none of an op whose values are random, or whatever was in memory.
Values = dict[str, float] | None
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}
# Ops whose samples do not fit other sizes, and whose CPU kernel does not look.
ONE_SIZE = ("_segment_reduce",)
SIZES = ({"S": 5, "M": 10}, {"S": 6, "M": 9})  # that the samples are made with: torch's own, and others


@dataclass
class Case:
    """A call to compile: a function of an op, and its arguments."""

    form: str
    function: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]


@dataclass
class Watch:
    """What the backend did."""

    graphs: int = 0
    narrowed: list[str] = field(default_factory=list)  # guards of sizes that the backend itself added
    outside: Counter[str] = field(default_factory=Counter)  # nodes that no program held, and why
    torchs: list[str] = field(default_factory=list)  # what is another than on CPU because of torch


def size_symbols(module: torch.fx.GraphModule) -> set[Any]:
    """What the sizes of a graph's arguments are made of."""
    tensors = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    sizes = [size for t in tensors if isinstance(t, torch.Tensor) for size in t.shape]
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


@contextmanager
def watching() -> Iterator[Watch]:
    import torch_remote.compile.compiler as compiler

    watch = Watch()
    compile_graph = compiler.compile_graph

    def counted(module: torch.fx.GraphModule, **options: Any) -> Callable[[list[Any]], Any]:
        watch.graphs += 1
        context = torch._guards.TracingContext.try_get()
        env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
        before = len(env.guards) if env is not None else 0
        symbols = size_symbols(module)
        compiled = compile_graph(module, **options)
        if env is not None:
            watch.narrowed.extend(str(g.expr) for g in env.guards[before:] if g.expr.free_symbols & symbols)
        return compiled

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "outside" in record.msg:
                node, why = record.args
                watch.outside[f"{node.split('target=')[-1].split(']')[0]}: {why}"] += 1

    handler = Handler()
    level = compiler.log.level
    compiler.log.addHandler(handler)
    compiler.log.setLevel(logging.DEBUG)
    try:
        with mock.patch.object(compiler, "compile_graph", counted):
            yield watch
    finally:
        compiler.log.removeHandler(handler)
        compiler.log.setLevel(level)


def samples_of(op: OpInfo, dtype: torch.dtype, grad: bool, count: int) -> list[list[Any]]:
    """A list a sample: the sample with each of SIZES. They are spread over all that the op has."""
    by_sizes = []
    for sizes in SIZES[: 1 if op.name in ONE_SIZE else len(SIZES)]:
        with mock.patch.multiple(common_methods_invocations, **sizes):
            torch.manual_seed(0)
            found, error = attempt(lambda: list(op.sample_inputs("cpu", dtype, requires_grad=grad)))
        if error is None:
            by_sizes.append(found)
    if not by_sizes:
        return []
    found = by_sizes[0]
    chosen = sorted({i * (len(found) - 1) // max(count - 1, 1) for i in range(count)}) if found else []
    return [[samples[i] for samples in by_sizes if len(samples) == len(found)] for i in chosen]


def unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """For wrapper_set_seed, which Dynamo does not go through."""
    return function(*args, **kwargs)


def detached(tree: Any) -> Any:
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, tree)


def cases(op: OpInfo, sample: Any) -> Iterator[Case]:
    """The forms of an op: a function (and its gradient), in place, out=."""
    args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
    yield Case("function", op.op, args, kwargs)
    args, kwargs = detached((args, kwargs))
    if op.inplace_variant is not None:
        yield Case("in place", op.inplace_variant, args, kwargs)
    if op.supports_out:
        result, error = attempt(lambda: op.op(*copy_tree(args, "cpu"), **copy_tree(kwargs, "cpu")))
        if error is None and all(isinstance(t, torch.Tensor) for t in tree_flatten(result)[0]):
            out = tree_map(lambda t: torch.zeros(t.shape, dtype=t.dtype), result)
            yield Case("out", op.op, args, {**kwargs, "out": out})


def call(function: Callable[..., Any], case: Case, device: torch.device | str) -> Any:
    """Results, gradients and arguments afterwards."""
    args, kwargs = copy_tree((case.args, case.kwargs), device)
    result = function(*args, **kwargs)
    inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    gradients = ()
    if inputs and outputs:
        gradients = torch.autograd.grad(outputs, inputs, map(some_gradient, outputs), allow_unused=True)
    synchronize(torch.device(device))
    return {"result": result, "gradients": gradients, "arguments": (args, kwargs)}


def compiled(function: Callable[..., Any], backend: Any, dynamic: bool | None, fullgraph: bool) -> Callable[..., Any]:
    def compiled_op(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    torch._dynamo.reset()
    return torch.compile(compiled_op, backend=backend, dynamic=dynamic, fullgraph=fullgraph)


def is_foreseen(result: Any, case: Case, device: torch.device) -> bool:
    """Whether CPU's result has other sizes than torch's shape functions say for the device, and this one has those."""
    args, kwargs = copy_tree((case.args, case.kwargs), device)
    with FakeTensorMode() as mode:
        args, kwargs = tree_map(lambda t: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t, (args, kwargs))
        fake, error = attempt(lambda: case.function(*args, **kwargs))
    if error is not None:
        return False
    here, _ = attempt(lambda: case.function(*copy_tree(case.args, "cpu"), **copy_tree(case.kwargs, "cpu")))
    got, foreseen, cpu = (
        [tuple(t.shape) for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)] for x in (result, fake, here)
    )
    return got == foreseen != cpu


def on_cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, tree)


def differences(got: dict[str, Any], want: dict[str, Any], values: Values, strides: bool = True) -> str | None:
    for part in want:
        text = difference(got[part], want[part], part, values is not None, values, strides)
        if text is not None:
            return text
    return None


def check_case(
    sizes: list[Case], mode: str, device: torch.device, values: Values, watch: Watch, fullgraph: bool = True
) -> tuple[str, str] | None:
    """(outcome, message) of one form of a sample, with several sizes; None if torch does not compile it for CPU."""

    def torchs(count: int, where: torch.device | str) -> tuple[Any, Exception | None]:
        """What torch does by itself with all sizes up to this one."""
        function = compiled(sizes[0].function, "aot_eager", MODES[mode], fullgraph)
        outcomes = [attempt(lambda case=case: call(function, case, where)) for case in sizes[:count]]
        return outcomes[-1]

    there = compiled(sizes[0].function, "remote", MODES[mode], fullgraph)
    outcome = None
    for count, case in enumerate(sizes, 1):
        want, refused = attempt(lambda case=case: call(case.function, case, "cpu"))
        if refused is not None:
            continue
        for again in (False, True):
            where = f"{case.form}, {mode}" + (", again" if again else "")
            before, graphs = torch.remote.stats(), watch.graphs
            got, error = attempt(lambda case=case: call(there, case, device))
            after = torch.remote.stats()
            if error is not None and "does not match device type of out parameter" in str(error):
                return None  # a factory with out= wants device=, on every device but CPU
            text = message(error) if error is not None else differences(got, want, values)
            if error is None and text is not None and differences(got, want, values, strides=False) is None:
                watch.torchs.append(f"{where}: {text}")  # they are those of torch's shape functions
                text = None
            if text is not None:
                here, refused = torchs(count, "cpu")
                if refused is not None and fullgraph:
                    return check_case(sizes, mode, device, values, watch, fullgraph=False)
                if refused is not None or (error is None and differences(got, here, values) is None):
                    return outcome
                there_too, refused = torchs(count, device)
                shapes = error is None and is_foreseen(got["result"], case, device)
                same = shapes or (
                    refused is None and error is None and differences(got, on_cpu(there_too), values) is None
                )
                if same or (refused is not None and type(refused) is type(error)):
                    watch.torchs.append(f"{where}: {text}")
                    return outcome
                return "different", f"{where}: {text}"
            if watch.narrowed:
                return "different", f"{where}: the backend narrowed sizes: {watch.narrowed}"
            if again and watch.graphs != graphs:
                return "different", f"{where}: compiled again"
            same_graph = fullgraph and count > 1 and not again and watch.graphs == graphs
            if same_graph and after["programs_built"] != before["programs_built"]:
                return "different", f"{where}: built a program for other sizes"
            if after["client_fallbacks"] != before["client_fallbacks"]:
                outcome = "fallback", f"{where}: ran on the client"
            outcome = outcome or ("equal", "")
    return outcome


def message(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def check_compiled(
    op: OpInfo, dtype: torch.dtype, device: torch.device, samples: int, report: Report, layout: str = "packed"
) -> Counter[str]:
    """Every form of an op with some samples in one of LAYOUTS, compiled in one mode or the other; the nodes that no
    program held."""
    name = op_name(op)
    if name in NOT_OFFERED:
        report.skipped[f"{name}: {NOT_OFFERED[name]}"] += 1
        return Counter()
    torch._logging.set_logs(all=logging.CRITICAL)  # what torch refuses is compared, not shown
    grad = (
        op.supports_autograd
        and dtype in op.supported_backward_dtypes("cpu")
        and (dtype.is_floating_point or dtype.is_complex)
    )
    outside: Counter[str] = Counter()
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True),
        mock.patch.object(common_methods_invocations, "wrapper_set_seed", unseeded),
    ):
        for mode, sized in zip(cycle(MODES), samples_of(op, dtype, grad, samples), strict=False):
            if any(sections_on_cpu(name, sample) for sample in sized):
                report.skipped[f"{name}: the sections' tensor must stay on CPU"] += 1
                continue
            if not all(moves(sample) for sample in sized):
                report.skipped[f"{name}: a sample that is not strided"] += 1
                continue
            sized = list(map(LAYOUTS[layout], sized))
            for of_sizes in zip(*(cases(op, sample) for sample in sized), strict=False):
                random = is_random(op, (of_sizes[0].args, of_sizes[0].kwargs))
                known = not name.startswith(UNINITIALISED) and not random
                values = TOLERANCES.get(dtype, {}) if known else None
                with watching() as watch:
                    outcome = check_case(list(of_sizes), mode, device, values, watch)
                outside.update(watch.outside)
                for text in watch.torchs:
                    report.skipped[f"{name}: as torch has it for devices: {text}"] += 1
                if outcome is None and not watch.torchs:
                    report.skipped[f"{name}: torch does not compile it"] += 1
                elif outcome is not None:
                    report.add(name, *outcome)
    torch._dynamo.reset()
    return outside
