"""_C.pyi agrees with the native module: names, parameters, and types as far as pybind11 knows them."""

import ast
import inspect
import re
import types
from pathlib import Path
from typing import NamedTuple

import pytest

import torch_remote
from torch_remote import _C

STUB = ast.parse((Path(torch_remote.__file__).parent / "_C.pyi").read_text())


class Parameter(NamedTuple):
    name: str | None  # None: positional only, where pybind11 has no name
    keyword_only: bool
    optional: bool
    type: str


class Signature(NamedTuple):
    parameters: list[Parameter]
    result: str


def plain(annotation: ast.expr | None) -> str:
    """A type in the spelling of the stub."""
    text = "" if annotation is None else ast.unparse(annotation)
    text = re.sub(r"typing\.Annotated\[(.*?), '[^']*'\]", r"\1", text)
    text = text.replace("typing.SupportsInt | typing.SupportsIndex", "int")
    text = text.replace("typing.SupportsFloat | typing.SupportsIndex", "float")
    return text.replace("collections.abc.", "").replace("torch_remote._C.", "")


def signature(function: ast.FunctionDef) -> Signature:
    arguments = function.args
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    positional = [(a, True) for a in arguments.posonlyargs] + [(a, False) for a in arguments.args]
    required = len(positional) - len(arguments.defaults)
    found = [
        Parameter(
            None if only or re.fullmatch(r"arg\d+", argument.arg) else argument.arg,
            False,
            i >= required,
            plain(argument.annotation),
        )
        for i, (argument, only) in enumerate(positional)
        if not (i == 0 and argument.arg == "self" and not static)
    ]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(Parameter(argument.arg, True, default is not None, plain(argument.annotation)))
    return Signature(found, plain(function.returns))


def native_signature(doc: str) -> Signature:
    (function,) = ast.parse(f"def {doc.strip().splitlines()[0]}: ...").body
    return signature(function)


def matches(stub: str, native: str) -> bool:
    """Whether the stub's type equals the native one, or is more specific where the native one is only a Python
    object."""
    if native == "object":
        return stub != ""
    if native.endswith(" | None"):
        return stub.endswith(" | None") and matches(stub.removesuffix(" | None"), native.removesuffix(" | None"))
    if native in ("list", "tuple"):
        return stub.startswith(f"{native}[")
    if native == "dict":
        return stub.startswith(("dict[", "Mapping[")) or stub in TYPED_DICTS
    return stub == native


def compare(where: str, stub: ast.FunctionDef, doc: str) -> None:
    ours, its = signature(stub), native_signature(doc)
    assert [p[:3] for p in ours.parameters] == [p[:3] for p in its.parameters], f"{where}: {doc}"
    for mine, native in zip(ours.parameters, its.parameters, strict=True):
        assert matches(mine.type, native.type), f"{where}: a parameter is {mine.type}, but {native.type} in {doc}"
    assert matches(ours.result, its.result), f"{where}: it returns {ours.result}, but {its.result} in {doc}"


def is_typed_dict(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "TypedDict" for base in node.bases)


TYPED_DICTS = {node.name: node for node in STUB.body if is_typed_dict(node)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef) and node.name not in TYPED_DICTS}


def test_the_stub_has_all_names_and_no_others():
    assert {*FUNCTIONS, *CLASSES} == {name for name in dir(_C) if not name.startswith("__")}
    assert len(FUNCTIONS) > 30


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions(name):
    native = getattr(_C, name)
    assert isinstance(native, types.BuiltinFunctionType)
    compare(name, FUNCTIONS[name], native.__doc__)


def members(native: type) -> dict[str, object]:
    """The members of the class itself, without those that pybind11 adds to every class."""
    found = {name: value for name, value in vars(native).items() if not name.startswith(("__", "_pybind11"))}
    special = {name: vars(native)[name] for name in ("__call__", "__len__", "__init__") if name in vars(native)}
    # Without a constructor, __init__ is pybind11's own, which raises.
    return found | {n: f for n, f in special.items() if n != "__init__" or "self:" in (f.__doc__ or "")}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes(name):
    native = members(getattr(_C, name))
    stub = {}
    for node in CLASSES[name].body:
        if isinstance(node, ast.FunctionDef):
            stub[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            stub[ast.unparse(node.target)] = node
    assert set(stub) == set(native)
    for member, node in stub.items():
        its = native[member]
        where = f"{name}.{member}"
        if isinstance(its, property):
            result = native_signature(f"get{its.fget.__doc__}").result
            assert (its.fset is not None) == isinstance(node, ast.AnnAssign), f"{where}: can it be set?"
            assert matches(plain(node.annotation if isinstance(node, ast.AnnAssign) else node.returns), result), where
        else:
            compare(where, node, inspect.unwrap(getattr(getattr(_C, name), member)).__doc__)


@pytest.mark.parametrize(
    ("typed", "value"),
    [("_Machine", lambda: _C.machine(0)), ("_WorkerInfo", lambda: (_C.machine(0), _C.worker_info(0))[1])],
    ids=["machine", "worker_info"],
)
def test_dictionaries_have_the_keys_and_types_of_the_stub(typed, value):
    expected = {ast.unparse(node.target): ast.unparse(node.annotation) for node in TYPED_DICTS[typed].body}

    def type_of(item: object) -> str:
        name = type(item).__name__
        return f"{name}[{', '.join({type_of(part) for part in item})}]" if isinstance(item, list) else name

    assert {key: type_of(item) for key, item in value().items()} == expected


def test_a_stub_that_says_something_else_is_noticed():
    """Tests the comparison: a missing parameter, another name, another type, another result."""
    doc = "memory_limits(device: typing.SupportsInt | typing.SupportsIndex, trim: bool = False) -> tuple[int, int]\n"

    def stub(text):
        return ast.parse(f"def memory_limits{text}: ...").body[0]

    compare("right", stub("(device: int, trim: bool=False) -> tuple[int, int]"), doc)
    for wrong in (
        "(device: int) -> tuple[int, int]",
        "(device: int, /, trim: bool=False) -> tuple[int, int]",
        "(device: int, trim: bool) -> tuple[int, int]",
        "(device: str, trim: bool=False) -> tuple[int, int]",
        "(device: int, trim: bool=False) -> int",
    ):
        with pytest.raises(AssertionError):
            compare("wrong", stub(wrong), doc)
