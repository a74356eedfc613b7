"""Runs ops compiled for the device. Results, gradients and writes to arguments must equal those of eager CPU.

compiled.json lists where torch's own compiler differs from eager CPU, too. Only those differences are allowed:

compiled.py                                runs ops in all FORMS and writes the list (half an hour on one core)
compiled.py float32-packed int64-packed    runs only these; the other entries stay
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from harness import (
    LAYOUTS,
    UNINITIALIZED,
    UNSUPPORTED,
    Report,
    attempt,
    copy_tree,
    difference,
    has_gradient,
    is_random,
    moves,
    op_name,
    ops_for,
    sections_on_cpu,
    some_gradient,
    synchronize,
)
from predicted_layout import PREDICTED_LAYOUT
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

# Values of torch.compile's `dynamic=`: sizes become parameters on the first call, or on the second one.
MODES = {"dynamic": True, "automatic": None}
# Tolerances of values; None for ops whose values are random or uninitialized.
Values = dict[str, float] | None
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
}
# Ops whose samples do not fit other sizes, and whose CPU kernel does not check.
ONE_SIZE = ("_segment_reduce",)
SIZES = ({"S": 5, "M": 10}, {"S": 6, "M": 9})  # for making samples: torch's defaults, and others
# While tracing, torch knows the values of 0-dim CPU tensors, but not of tensors on devices. Errors of its tracer for
# that reason occur on every device.
TRACED_ON_CPU = torch._dynamo.exc.InternalTorchDynamoError
SAMPLES = 2  # per op, one in each of MODES
FORMS = (
    (torch.float32, "packed"),
    (torch.float32, "permuted"),
    (torch.int64, "packed"),
    (torch.bfloat16, "permuted"),
    (torch.complex64, "packed"),
    (torch.bool, "packed"),
    (torch.float64, "permuted"),
)
EVERY = 6  # every sixth op runs in dtypes other than float32
LIST = "tests/ops/compiled.json"


@dataclass
class Case:
    """A call to compile: one form of an op, and its arguments."""

    form: str
    function: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]


@dataclass
class Watch:
    """Records what the backend did."""

    graphs: int = 0
    narrowed: list[str] = field(default_factory=list)  # size guards that the backend itself added
    torch_difference: str = ""  # how torch's own compiler differs from CPU, too: reason and text


def size_symbols(module: torch.fx.GraphModule) -> set[Any]:
    """The symbols in the sizes of a graph's arguments."""
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

    with mock.patch.object(compiler, "compile_graph", counted):
        yield watch


def samples_of(op: OpInfo, dtype: torch.dtype, grad: bool, count: int) -> list[list[Any]]:
    """One list per sample: the sample with each of SIZES. The samples are spread over all of the op's."""
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
    """Replaces wrapper_set_seed, which Dynamo cannot trace."""
    return function(*args, **kwargs)


def detached(tree: Any) -> Any:
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, tree)


def cases(op: OpInfo, sample: Any) -> Iterator[Case]:
    """The forms of an op: function (with its gradient), in place, out=."""
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
    """Results, gradients, and the arguments after the call."""
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


def differences(got: dict[str, Any], want: dict[str, Any], values: Values, strides: bool = True) -> str | None:
    for part in want:
        text = difference(got[part], want[part], part, values is not None, values, strides)
        if text is not None:
            return text
    return None


def geometry(tree: Any) -> list[tuple[Any, ...]]:
    tensors = [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]
    return [(tuple(t.shape), tuple(t.stride()) if t.numel() > 1 else (), t.dtype) for t in tensors]


def in_dtypes_of(want: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    leaves, structure = tree_flatten(got)
    pairs = zip(leaves, tree_flatten(want)[0], strict=True)
    return tree_unflatten([g.to(w.dtype) if isinstance(g, torch.Tensor) else g for g, w in pairs], structure)


def explain_by_torch(
    got: dict[str, Any] | None, error: Exception | None, sizes: list[Case], mode: str, values: Values, fullgraph: bool
) -> tuple[str, Exception | None]:
    """Why torch's compiler is the cause of a difference from CPU, and the error that it raises. `got` or `error` is the
    outcome of the last case, after the others. The reason is one of:

    - "refused": torch's compiler raises, too.
    - "computed": it computes our values.
    - "strides": our strides are those of its shape functions.
    - "on devices": our strides and dtypes are those that its shape functions state for this device; values are CPU's.
    - "": torch's compiler is not the cause.
    """

    def torchs(backend: Any, where: str) -> tuple[Any, Exception | None]:
        function = compiled(sizes[0].function, backend, MODES[mode], fullgraph)
        return [attempt(lambda case=case: call(function, case, where)) for case in sizes][-1]

    here, refused = torchs("aot_eager", "cpu")
    if error is not None:
        if refused is None and type(error) is TRACED_ON_CPU:
            refused = torchs("aot_eager", "remote")[1]
        return ("refused" if type(refused) is type(error) else ""), refused
    if refused is not None:
        return "", refused
    if differences(got, here, values) is None:
        return "computed", None
    here, refused = torchs(PREDICTED_LAYOUT, "cpu")
    if refused is None and differences(got, here, values) is None:
        return "strides", None
    want, _ = attempt(lambda: call(sizes[-1].function, sizes[-1], "cpu"))
    there, refused = torchs(PREDICTED_LAYOUT, "remote")
    same = refused is None and all(geometry(got[part]) == geometry(there[part]) for part in got)
    same = same and differences(in_dtypes_of(want, got), want, values, strides=False) is None
    return ("on devices" if same else ""), None


def check_case(
    sizes: list[Case], mode: str, device: torch.device, values: Values, watch: Watch, fullgraph: bool = True
) -> tuple[str, str] | None:
    """(outcome, message) of one form of a sample, with several sizes; None if CPU accepts none of them. The oracle is
    eager CPU. Differences that torch's own compiler has, too, are noted in `watch`."""
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
                return None  # on every device but CPU, a factory with out= requires device=
            text = message(error) if error is not None else differences(got, want, values)
            if text is not None:
                why, refused = explain_by_torch(got, error, sizes[:count], mode, values, fullgraph)
                if refused is not None and fullgraph:
                    return check_case(sizes, mode, device, values, watch, fullgraph=False)
                if why:
                    watch.torch_difference = f"{why}: {text}"
                    return outcome
                beside = "" if refused is None else f"; torch's own compiler: {message(refused)}"
                return "different" if error is None else "refused", f"{where}: {text}{beside}"
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
    return f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}"


def check_compiled(
    op: OpInfo, dtype: torch.dtype, device: torch.device, report: Report, layout: str = "packed"
) -> dict[str, str]:
    """Compiles every form of an op with some samples, in one of LAYOUTS and alternating modes. Returns where torch's
    own compiler differs from CPU, by form; these differences are not in the report."""
    name = op_name(op)
    torchs: dict[str, str] = {}
    if name in UNSUPPORTED:
        report.skipped[f"{name}: {UNSUPPORTED[name]}"] += 1
        return torchs
    torch._logging.set_logs(all=logging.CRITICAL)  # errors of torch are compared, not logged
    grad = has_gradient(op, dtype)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True),
        mock.patch.object(common_methods_invocations, "wrapper_set_seed", unseeded),
    ):
        for mode, sized in zip(cycle(MODES), samples_of(op, dtype, grad, SAMPLES), strict=False):
            if any(sections_on_cpu(name, sample) for sample in sized):
                report.skipped[f"{name}: the sections' tensor must stay on CPU"] += 1
                continue
            if not all(is_trusted(name, sample) for sample in sized):
                report.skipped[f"{name}: fractions that are not between 0 and 1, which CPU trusts"] += 1
                continue
            if not all(moves(sample) for sample in sized):
                report.skipped[f"{name}: a sample that is not strided"] += 1
                continue
            sized = list(map(LAYOUTS[layout], sized))
            for of_sizes in zip(*(cases(op, sample) for sample in sized), strict=False):
                random = is_random(op, (of_sizes[0].args, of_sizes[0].kwargs))
                known = not name.startswith(UNINITIALIZED) and not random
                values = TOLERANCES.get(dtype, {}) if known else None
                with watching() as watch:
                    outcome = check_case(list(of_sizes), mode, device, values, watch)
                if watch.torch_difference:
                    torchs[of_sizes[0].form] = watch.torch_difference
                if outcome is not None:
                    report.add(name, *outcome)
                    report.compared[name] += values is not None and outcome[0] == "equal"
    torch._dynamo.reset()
    return torchs


def is_trusted(name: str, sample: Any) -> bool:
    """Whether the kernel may assume that the sample is valid."""
    fractions = sample.kwargs.get("_random_samples") if "fractional_max_pool" in name else None
    return fractions is None or bool(((fractions >= 0) & (fractions <= 1)).all())


# -- the list --------------------------------------------------------------------------------------------------------

Excused = dict[str, dict[str, dict[str, str]]]  # by form_name(), op, form: reason and difference


def form_name(dtype: torch.dtype, layout: str) -> str:
    return f"{str(dtype)[6:]}-{layout}"


def ops_of(dtype: torch.dtype, layout: str) -> list[OpInfo]:
    """The ops that run in this form."""
    ops = sorted(ops_for(dtype), key=op_name)
    return ops if dtype == torch.float32 else ops[FORMS.index((dtype, layout)) % EVERY :: EVERY]


def load(path: str = LIST) -> Excused:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def not_as_listed(name: str, found: dict[str, str], listed: dict[str, str]) -> list[str]:
    """Forms of an op that the list excuses without need or for another reason, or does not excuse, as text."""
    words = []
    for form in sorted({*found, *listed}):
        now, then = (of.get(form, "equal").partition(":")[0] for of in (found, listed))
        if now != then:
            words.append(f"{name}, {form}: {then} in {LIST}, now {found.get(form, now)}; run //tests/ops:compiled")
    return words


def measure(dtype: torch.dtype, layout: str, device: torch.device) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Where torch's compiler differs, by op and form, and the failures of the device."""
    report = Report()
    excused = {}
    for op in ops_of(dtype, layout):
        found = check_compiled(op, dtype, device, report, layout)
        if found:
            excused[op_name(op)] = {form: shortened(text) for form, text in found.items()}
    return excused, report.failures()


def shortened(text: str) -> str:
    """The text without parts that differ between processes, and without torch's wording around an error."""
    why, _, what = " ".join(text.split()).partition(": ")
    what = re.sub(r" when making fake tensor call Explanation: .*? got (\w+Error\()?", ": ", what)
    what = re.sub(r"0x[0-9a-f]+", "0x...", re.sub(r"\b[su]\d+\b", "s", what.replace("remote:0", "remote")))
    return f"{why}: {what[:160]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", help=f"of {', '.join(form_name(*form) for form in FORMS)}; none: all")
    args = parser.parse_args()
    for name in set(args.forms) - {form_name(*form) for form in FORMS}:
        parser.error(f"there is no form {name!r}")
    import torch_remote  # noqa: F401

    file = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")) / LIST
    failed = 0
    for form in FORMS:
        name = form_name(*form)
        if args.forms and name not in args.forms:
            continue
        begin = time.perf_counter()
        excused, failures = measure(*form, torch.device("remote"))
        for text in failures:
            print(f"FAIL {name} {text}", flush=True)
        failed += len(failures)
        everything = {**load(str(file)), name: excused}
        file.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        seconds = time.perf_counter() - begin
        print(f"{name}: {sum(map(len, excused.values()))} excused, {len(failures)} failed, {seconds:.0f} s", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
