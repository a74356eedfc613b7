"""Reads each overload's properties from its schema: argument kinds, results, aliases, siblings, tags.

Schemas of ATen's ops are in the native_functions.yaml inside the installed torch. Only those that an older supported
torch has differently are written down, in older_schemas.toml.
Schemas of this project's own ops are in the table.
"""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torchgen
from torchgen.gen import parse_native_yaml
from torchgen.model import Argument, BackendIndex, DispatchKey, FunctionSchema, NativeFunction, SchemaKind

# Base types by their name in a schema: (kind, optional, list, optional elements of a list).
_KINDS = {
    "Tensor": ("Tensor", "OptionalTensor", "TensorList", "OptionalTensorList"),
    "int": ("Int", "OptionalInt", "IntList", None),
    "SymInt": ("Int", "OptionalInt", "IntList", None),
    "float": ("Float", "OptionalFloat", "FloatList", None),
    "bool": ("Bool", "OptionalBool", "BoolList", None),
    "Scalar": ("Scalar", "OptionalScalar", "ScalarList", None),
    "str": ("String", "OptionalString", None, None),
    "ScalarType": ("DType", "DType", None, None),
    "Layout": ("Layout", "Layout", None, None),
    "Device": ("Device", "Device", None, None),
    "MemoryFormat": ("MemoryFormat", "MemoryFormat", None, None),
    "Generator": ("Generator", "Generator", None, None),
}
_OPTIONAL_LISTS = {"IntList": "OptionalIntList", "FloatList": "OptionalFloatList"}
_RESULT_KINDS = {
    "Tensor": "Tensor",
    "Tensor[]": "TensorList",
    "int": "Int",
    "SymInt": "Int",
    "float": "Float",
    "bool": "Bool",
    "Scalar": "Scalar",
}


@dataclass(frozen=True)
class Arg:
    name: str
    kind: str  # an ir::ArgKind without its k
    writes: bool
    keyword_only: bool
    default: str | None


@dataclass(frozen=True)
class Result:
    kind: str  # an ir::ResultKind without its k
    alias: int  # index of the argument that it is, or -1


@dataclass
class Overload:
    """One overload of native_functions.yaml, or an op of this project's own."""

    name: str  # "add_.Tensor"; with its namespace if that is not ATen's: "remote::attention"
    schema: str
    kind: SchemaKind
    args: list[Arg]
    results: list[Result]
    tags: frozenset[str] = frozenset()
    composite: bool = False  # CompositeImplicit: torch decomposes it before any backend sees it
    view: bool = False
    structured: bool = False  # has an at::meta:: function
    siblings: dict[SchemaKind, str] = field(default_factory=dict)  # by kind, itself included

    @property
    def base(self) -> str:
        return self.name.split(".")[0]

    def arg(self, name: str) -> Arg | None:
        return next((arg for arg in self.args if arg.name == name), None)


def _arg_kind(text: str) -> str:
    """The ArgKind of a schema type such as "SymInt[2]?"."""
    optional = text.endswith("?")
    core = text.removesuffix("?")
    is_list = core.endswith("]")
    if is_list:
        core = core[: core.index("[")]
    optional_elements = core.endswith("?")
    core = core.removesuffix("?")
    plain, opt, lst, opt_list = _KINDS.get(core, (None,) * 4)
    if not is_list:
        kind = opt if optional else plain
    elif optional_elements:
        kind = None if optional else opt_list
    else:
        kind = _OPTIONAL_LISTS.get(lst) if optional else lst
    return kind or "Unsupported"


def full_name(name: str) -> str:
    """The name with its namespace."""
    return name if "::" in name else f"aten::{name}"


def _arguments(func: FunctionSchema) -> tuple[list[Arg], list[Result]]:
    flat: list[Argument] = list(func.schema_order_arguments())
    keyword_only = {a.name for a in func.arguments.flat_kwarg_only} | {a.name for a in func.arguments.out}
    args = [Arg(a.name, _arg_kind(str(a.type)), a.is_write, a.name in keyword_only, a.default) for a in flat]
    by_alias = {str(a.annotation): i for i, a in enumerate(flat) if a.annotation is not None and a.is_write}
    results = [
        Result(
            _RESULT_KINDS.get(str(r.type), "Unsupported"),
            by_alias.get(str(r.annotation), -1) if r.annotation is not None else -1,
        )
        for r in func.returns
    ]
    return args, results


def _from_schema(name: str, schema: str, func: FunctionSchema, **properties: Any) -> Overload:
    args, results = _arguments(func)
    return Overload(name=name, schema=schema, kind=func.kind(), args=args, results=results, **properties)


def own_overload(schema: str) -> Overload:
    """The overload for a schema of this project's own, "remote::name(Tensor a, ...) -> ..."; raises ValueError."""
    namespace, found, rest = schema.partition("::")
    if not found or namespace != "remote":
        raise ValueError("it must begin with remote::")
    try:
        func = FunctionSchema.parse(rest)
    except Exception as error:  # torchgen asserts
        raise ValueError(str(error)) from None
    name = f"{namespace}::{func.name}"
    return _from_schema(name, f"{namespace}::{func}", func, siblings={func.kind(): name})


def _overload(function: NativeFunction, cpu_kernels: BackendIndex) -> Overload:
    func = function.func
    structured = function.structured or function.structured_delegate is not None
    return _from_schema(
        str(func.name),
        f"aten::{func}",
        func,
        tags=frozenset(function.tags),
        # A few composite ops have a CPU kernel and an autograd formula, too (silu_backward), and can be captured.
        composite=function.has_composite_implicit_autograd_kernel
        and not structured
        and not cpu_kernels.has_kernel(function),
        view=function.is_view_op,
        structured=structured,
    )


def _follow_older_torch(path: Path, overloads: dict[str, Overload], groups: dict[str, dict[SchemaKind, str]]) -> None:
    """Gives overloads the schemas in the file; adds those that the installed torch lacks."""
    for schema in tomllib.loads(path.read_text(encoding="utf-8"))["schemas"]:
        func = FunctionSchema.parse(schema.removeprefix("aten::"))
        name = str(func.name)
        if name in overloads:
            overloads[name].schema = schema
            overloads[name].args, overloads[name].results = _arguments(func)
            continue
        siblings = groups.setdefault(str(func.signature()), {})
        siblings[func.kind()] = name
        overloads[name] = _from_schema(name, schema, func, siblings=siblings)


def load_overloads(older_schemas: Path) -> dict[str, Overload]:
    """All overloads of the installed torch by name, including those that torchgen generates (`autogen:`), with the
    schemas in older_schemas.toml."""
    folder = os.path.join(os.path.dirname(torchgen.__file__), "packaged", "ATen", "native")
    parsed = parse_native_yaml(os.path.join(folder, "native_functions.yaml"), os.path.join(folder, "tags.yaml"))
    overloads: dict[str, Overload] = {}
    groups: dict[str, dict[SchemaKind, str]] = {}
    for function in parsed.native_functions:
        overload = _overload(function, parsed.backend_indices[DispatchKey.CPU])
        overloads[overload.name] = overload
        overload.siblings = groups.setdefault(str(function.func.signature()), {})
        overload.siblings[overload.kind] = overload.name
    _follow_older_torch(older_schemas, overloads, groups)
    return overloads


def torch_version() -> str:
    """The version without the part after the plus, which names the build variant."""
    return importlib.metadata.version("torch").partition("+")[0]
