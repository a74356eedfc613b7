"""Writes samples of calls of ATen overloads for the guard harness.

    samples.py OUT CALLS

Most are the calls that torch's OpInfo samples, and ours, make on CPU. In-place and out overloads are called like their
functional variants. Overloads that still lack a sample get one from their schema. OUT contains a list of (name,
arguments in the schema's order), at most CALLS per overload. Numbers stand for dtypes and memory formats, and DEFAULT
for arguments that are not passed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from extra_samples import extra_samples
from hand_samples import attention_samples, hand_samples
from harness import FOREACH, NotTransferableError, attempt, copy_tree, seed_all
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEFAULT = "\0default"
MOST = 24  # samples per OpInfo that are used
LARGEST = 4096  # elements of a tensor; larger samples are too slow to modify in many ways
_DTYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32"
    " bfloat16"
).split()
_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]


def schemas() -> dict[str, Any]:
    """ATen schemas for which torch has a CPU kernel, by overload name."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if (
            name.startswith("aten::")
            and torch._C._dispatch_has_kernel(name)
            and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
        ):
            found[name] = schema
    return found


def overload(name: str) -> Any:
    operator, _, suffix = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, operator), suffix or "default")


def positional(schema: Any, args: tuple, kwargs: dict) -> list[Any] | None:
    """A call's arguments in the schema's order; None if the file format cannot represent one."""
    values = []
    for i, argument in enumerate(schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, DEFAULT)
        if isinstance(value, (torch.Generator, torch.device, torch.layout)) or argument.name == "device":
            value = DEFAULT
        elif isinstance(value, str) and value == DEFAULT and not argument.has_default_value():
            return None
        values.append(value)

    def plain(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return _DTYPES.index(str(x).removeprefix("torch."))
        if isinstance(x, torch.memory_format):
            return _FORMATS.index(x)
        if isinstance(x, torch.nn.Parameter):
            return x.detach()
        if isinstance(x, torch.Tensor):
            if x.numel() > LARGEST or x.is_conj() or x.is_neg() or str(x.dtype).removeprefix("torch.") not in _DTYPES:
                raise ValueError("no form")
            return x.detach() if x.numel() else torch.empty(x.shape, dtype=x.dtype)
        if x is None or isinstance(x, (bool, int, float, str)):
            return x
        raise ValueError(f"no form of {type(x)}")

    try:
        return [plain_tree(value, plain) for value in values]
    except ValueError:
        return None


def plain_tree(value: Any, leaf: Any) -> Any:
    if isinstance(value, (list, tuple, torch.Size)):
        return [plain_tree(item, leaf) for item in value]
    return leaf(value)


def shape_of(values: list[Any]) -> str:
    """A key for calls; calls with the same key exercise the same code."""
    return str(tree_map(lambda x: (x.dtype, tuple(x.shape)) if isinstance(x, torch.Tensor) else x, values))


class Samples:
    def __init__(self, most: int) -> None:
        self.schemas = schemas()
        self.most = most  # calls per overload, with different arguments
        self.calls: dict[str, dict[str, list[Any]]] = {}

    def wants(self, name: str) -> bool:
        return name in self.schemas and len(self.calls.get(name, ())) < self.most

    def add(self, name: str, args: tuple, kwargs: dict) -> None:
        if not self.wants(name):
            return
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if any(t._is_zerotensor() for t in tensors):
            return
        try:
            args, kwargs = copy_tree((args, kwargs), "cpu")
        except NotTransferableError:
            return
        values = positional(self.schemas[name], args, kwargs)
        if values is not None:
            self.calls.setdefault(name, {})[shape_of(values)] = values

    def missing(self) -> list[str]:
        return [name for name in self.schemas if name not in self.calls]


class Capture(TorchDispatchMode):
    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.samples = samples

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.samples.add(function.name(), args, kwargs or {})
        return function(*args, **(kwargs or {}))


def forms(op: OpInfo) -> Iterator[Any]:
    yield op.op
    if op.supports_autograd:

        def gradient(*args: Any, **kwargs: Any) -> None:
            inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            outputs = [
                t for t in tree_flatten(op.op(*args, **kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            if inputs and outputs:
                torch.autograd.grad(outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True)

        yield gradient


def capture_op(op: OpInfo, dtype: torch.dtype, samples: Samples) -> None:
    grad = op.supports_autograd and dtype.is_floating_point
    seed_all()
    found, error = attempt(lambda: list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), MOST)))
    if error is not None:
        return
    found = found[:: max(1, len(found) // 8)]
    for sample in found + extra_samples(op, dtype, grad):
        for form in forms(op):
            with Capture(samples):
                attempt(lambda f=form, s=sample: f(s.input, *s.args, **s.kwargs))
        # torch decomposes some ops before a mode sees them, so the op itself is added here.
        for name in (f"aten::{op.aten_name}", f"aten::_{op.aten_name}"):
            given = ((sample.input, *sample.args), sample.kwargs)
            if (
                samples.wants(name)
                and attempt(lambda n=name, g=given: overload(n)(*copied(g)[0], **copied(g)[1]))[1] is None
            ):
                samples.add(name, *given)


def copied(given: Any) -> Any:
    return copy_tree(given, "cpu")


def functional_of(name: str, known: dict[str, Any]) -> str | None:
    """The functional overload with the same arguments as an in-place or out overload."""
    schema = known[name]
    base = schema.name.removesuffix("_") if not schema.name.endswith("__") else schema.name
    wanted = [a.name for a in schema.arguments if not a.is_out]
    for other, candidate in known.items():
        if candidate.name != base or other == name or any(a.is_out for a in candidate.arguments):
            continue
        names = [a.name for a in candidate.arguments]
        same = [str(a.type) for a in candidate.arguments if a.name in wanted] == [
            str(a.type) for a in schema.arguments if not a.is_out
        ]
        makers = {"dtype", "layout", "device", "pin_memory"}
        if same and [n for n in names if n not in makers or n in wanted] == wanted:
            return other
    return None


def add_siblings(samples: Samples) -> None:
    for name in samples.missing():
        functional = functional_of(name, samples.schemas)
        if functional not in samples.calls:
            continue
        schema = samples.schemas[name]
        names = [a.name for a in samples.schemas[functional].arguments]
        for values in list(samples.calls[functional].values()):
            given = dict(zip(names, values, strict=True))
            row = [given.get(a.name, DEFAULT) for a in schema.arguments if not a.is_out]
            outs = [a for a in schema.arguments if a.is_out]
            if outs:
                results, error = attempt(lambda f=functional, v=values: call(samples.schemas[f], f, v))
                if error is not None:
                    continue
                results = list(results) if isinstance(results, tuple) else [results]
                if len(results) != len(outs):
                    continue
                row += results
            samples.add(name, tuple(row), {})


def call(schema: Any, name: str, values: list[Any]) -> Any:
    """Calls an overload with the values of positional()."""
    args, kwargs = [], {}
    for argument, value in zip(schema.arguments, values, strict=True):
        if isinstance(value, str) and value == DEFAULT:
            continue
        text = str(argument.real_type)
        if isinstance(value, int) and "ScalarType" in text:
            value = getattr(torch, _DTYPES[value])
        if isinstance(value, int) and "MemoryFormat" in text:
            value = _FORMATS[value]
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    args, kwargs = copy_tree((tuple(args), kwargs), "cpu")
    return overload(name)(*args, **kwargs)


def of_schema(schema: Any) -> Iterator[list[Any]]:
    """Arguments that may fit the schema."""
    shapes = ((4, 4), (2, 4, 4), (2, 4, 4, 4), (4,), (1, 2, 4, 4, 4))
    for shape in shapes:
        for dtype in (torch.float32, torch.int64, torch.bool):
            for number, listed in ((1, (1, 1)), (0, (0,)), (2, (4, 4)), (1, (0, 1)), (1, ())):

                def value(argument: Any, shape=shape, dtype=dtype, number=number, listed=listed) -> Any:
                    kind = str(argument.type)
                    if argument.has_default_value() and "Tensor" not in kind:
                        return DEFAULT
                    indices = any(part in argument.name for part in ("ind", "target", "offset", "sorter"))
                    tensor = torch.ones(shape, dtype=torch.int64 if indices else dtype)
                    if "List[Tensor]" in kind or "List[Optional[Tensor]]" in kind:
                        return [tensor, tensor.clone()]
                    if kind.startswith("Optional") and "Tensor" not in kind:
                        return None
                    if "Tensor" in kind:
                        return tensor
                    if "List[int]" in kind:
                        return list(listed)
                    if "List[float]" in kind or "List[number]" in kind:
                        return [0.5, 0.5]
                    if "List[bool]" in kind:
                        return [True, True, True]
                    if kind == "float":
                        return 0.5
                    if kind == "bool":
                        return False
                    if kind in ("int", "number"):
                        return number
                    return DEFAULT

                yield [value(argument) for argument in schema.arguments]


def first_accepted(schema: Any, name: str) -> list[Any] | None:
    tried: set[str] = set()
    for values in of_schema(schema):
        key = shape_of(values)
        if key not in tried:
            tried.add(key)
            if attempt(lambda v=values: call(schema, name, v))[1] is None:
                return values
    return None


def try_all(names: list[str], samples: Samples, connection: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for name in names:
        signal.alarm(10)
        connection.send((name, None))
        values = first_accepted(samples.schemas[name], name)
        connection.send((name, None if values is None else pickle.dumps(values)))
    os._exit(0)


def add_by_schema(samples: Samples) -> None:
    """Tries calls in a child process, because torch may abort for some."""
    names = samples.missing()
    while names:
        here, there = Pipe()
        child = os.fork()
        if child == 0:
            try_all(names, samples, there)
        there.close()
        last = names[0]
        try:
            while True:
                last, values = here.recv()
                if values is not None:
                    samples.add(last, tuple(pickle.loads(values)), {})
        except EOFError:
            status = os.waitpid(child, 0)[1]
        names = names[names.index(last) + 1 :]
        if status:
            print(f"{last}: status {status}", file=sys.stderr)


def main(path: str, most: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    samples = Samples(most)
    for name, args in hand_samples():
        schema = samples.schemas[name]
        values = args + [DEFAULT] * (len(schema.arguments) - len(args))
        _, error = attempt(lambda s=schema, n=name, v=values: call(s, n, v))
        if error is not None:
            raise ValueError(f"{name}: torch refuses the sample: {error}")
        samples.add(name, tuple(args), {})
    for dtype in (torch.float32, torch.int64, torch.bool):
        for op in (*op_db, *FOREACH):
            if op.supports_dtype(dtype, "cpu"):
                capture_op(op, dtype, samples)
        print(f"{dtype}: {len(samples.calls)} of {len(samples.schemas)} overloads", file=sys.stderr)
    add_siblings(samples)
    print(f"siblings: {len(samples.calls)}", file=sys.stderr)
    add_by_schema(samples)
    add_siblings(samples)
    print(f"by schema: {len(samples.calls)}", file=sys.stderr)
    rows: list[list[Any]] = [list(row) for row in attention_samples()]
    rows += [[name, values] for name, calls in sorted(samples.calls.items()) for values in calls.values()]
    torch.save(rows, path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
