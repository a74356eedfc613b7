"""Reads ir/ops/*.toml and checks every entry against torch's schemas. A wrong entry is an error that names file, entry
and fix; nothing is guessed."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from op_schemas import Arg, Overload
from torchgen.model import SchemaKind

_FILE_KEYS = {"title", "family", "shape", "op"}
_ENTRY_KEYS = {
    "overloads", "family", "shape", "structural", "values", "writes", "overwrites", "expression", "expressions",
    "decomposition", "commutative", "dynamic", "random", "in_place_only", "doc",
}  # fmt: skip
_NUMBERS = {
    "Int", "OptionalInt", "IntList", "OptionalIntList", "Float", "OptionalFloat", "FloatList", "OptionalFloatList",
    "Bool", "OptionalBool", "BoolList", "Scalar", "OptionalScalar",
}  # fmt: skip
_TENSORS = {"Tensor", "OptionalTensor", "TensorList", "OptionalTensorList"}
_STRUCTURAL_ONLY = {"Bool", "OptionalBool", "BoolList", "String", "OptionalString", "DType", "MemoryFormat"}


class TableError(Exception):
    pass


@dataclass(frozen=True)
class Vocabulary:
    """The names that op_table.h gives to families and shape rules, in snake_case, and the expression notation."""

    families: frozenset[str]
    shape_rules: frozenset[str]
    structural_names: frozenset[str]  # arguments that are structural in every op
    ignored_names: frozenset[str]
    functions: dict[str, int]  # of the expression notation: name to arity


@dataclass
class Op:
    """One row of the table."""

    overload: Overload
    entry: str
    file: str
    title: str
    family: str
    shape: str
    args: list[Arg]  # the schema's, and a generator if the op draws random numbers without one
    roles: list[str]  # one an argument, an ir::ArgRole in snake_case without its k
    writes: list[bool]
    overwrites: list[bool]
    flags: list[str]
    expression: str
    decomposition: str
    doc: str
    functional: str = ""  # name of the functional sibling in the table, or its own

    @property
    def name(self) -> str:
        return "aten::" + self.overload.name


def camel(snake: str) -> str:
    return "".join(part.capitalize() for part in snake.split("_"))


def _enum_names(header: str, enum: str) -> frozenset[str]:
    body = re.search(rf"enum class {enum} : uint8_t {{(.*?)}};", header, re.DOTALL)
    if body is None:
        raise TableError(
            f"ir/op_table.h: there is no 'enum class {enum} : uint8_t'; adapt op_entries.py to its new form"
        )
    names = re.findall(r"\bk([A-Z]\w*)", re.sub(r"//.*", "", body.group(1)))
    return frozenset(re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in names)


def read_vocabulary(header_path: str, conventions_path: str) -> Vocabulary:
    with open(header_path, encoding="utf-8") as file:
        header = file.read()
    with open(conventions_path, "rb") as file:
        conventions = tomllib.load(file)
    return Vocabulary(
        families=_enum_names(header, "Family"),
        shape_rules=_enum_names(header, "ShapeRule"),
        structural_names=frozenset(conventions["roles"]["structural"]),
        ignored_names=frozenset(conventions["roles"]["ignored"]),
        functions={name: value["arity"] for name, value in conventions["functions"].items()},
    )


class _Entry:
    """One [op.NAME] of one file."""

    def __init__(
        self,
        path: str,
        file_keys: dict,
        name: str,
        data: dict,
        overloads: dict[str, Overload],
        vocabulary: Vocabulary,
    ):
        self.where = f"ir/ops/{os.path.basename(path)}: [op.{name}]"
        self.file = os.path.basename(path)
        self.title = file_keys.get("title", "")
        self.name = name
        self.data = data
        self.overloads = overloads
        self.vocabulary = vocabulary
        self._check_one_of("", set(data), _ENTRY_KEYS)
        self.family = data.get("family", file_keys.get("family"))
        self.shape = data.get("shape", file_keys.get("shape", "none"))
        self._check_one_of("family", {self.family}, vocabulary.families - {"opaque"})
        self._check_one_of("shape", {self.shape}, vocabulary.shape_rules - {"in_place"})
        if not data.get("doc"):
            self.fail('has no doc line; add doc = "..."')

    def fail(self, message: str):
        raise TableError(f"{self.where}: {message}")

    def _check_one_of(self, key: str, got: Iterable, allowed: Iterable):
        for value in got:
            if value not in allowed:
                what = f"{key} = {value!r}" if key else f"key {value!r}"
                self.fail(f"{what} is unknown; use one of {', '.join(sorted(allowed))}")

    def select(self) -> list[Overload]:
        """The overloads that it captures: those asked for, with their in-place, out and functional siblings."""
        if "overloads" in self.data:
            seeds = []
            for overload in self.data["overloads"]:
                name = f"{self.name}.{overload}" if overload else self.name
                if name not in self.overloads:
                    known = sorted(o.name for o in self.overloads.values() if o.base == self.name)
                    self.fail(f"overload {name!r} is not in native_functions.yaml; there are {', '.join(known)}")
                seeds.append(self.overloads[name])
            explicit = True
        elif "." in self.name:
            explicit = True
            seeds = [self.overloads[self.name]] if self.name in self.overloads else []
        else:
            explicit = False
            seeds = [o for o in self.overloads.values() if o.base == self.name]
        if not seeds:
            self.fail("is not in native_functions.yaml; correct the name (the part after aten::) or delete the entry")
        chosen: dict[str, Overload] = {}
        reason = ""
        for seed in seeds:
            if seed.view:
                reason = "is a view: views are metadata and are never recorded; delete the entry"
            elif seed.composite:
                reason = "is CompositeImplicit: torch takes it apart before the recorder sees it; delete the entry"
            elif any(a.kind == "Unsupported" for a in seed.args):
                reason = "has an argument of a type that cannot be recorded; delete the entry"
            elif any(r.kind == "Unsupported" for r in seed.results):
                reason = "has a result of a type that cannot be recorded; delete the entry"
            else:
                for name in seed.siblings.values():
                    if not self.overloads[name].composite and not self.overloads[name].view:
                        chosen[name] = self.overloads[name]
                continue
            if explicit:
                self.fail(f"{seed.name!r} {reason}")
        if not chosen:
            self.fail(reason)
        if self.data.get("in_place_only"):
            chosen = {name: overload for name, overload in chosen.items() if overload.kind is SchemaKind.inplace}
            if not chosen:
                self.fail("is in_place_only but has no in-place overload; delete one of the two")
        return list(chosen.values())

    def rows(self) -> list[Op]:
        chosen = self.select()
        for key in ("structural", "values", "writes", "overwrites"):
            for name in self.data.get(key, []):
                if not any(o.arg(name) for o in chosen):
                    known = sorted({a.name for o in chosen for a in o.args})
                    self.fail(f"{key} names {name!r}, which no overload has; there are {', '.join(known)}")
        known = [self._overload_suffix(o) for o in chosen]
        for suffix in self.data.get("expressions", {}):
            if suffix not in known:
                self.fail(f"expressions names the overload {suffix!r}; there are {', '.join(sorted(set(known)))}")
        return [self._row(overload) for overload in chosen]

    def _overload_suffix(self, overload: Overload) -> str:
        """Of the functional sibling: "Tensor" for add_.Tensor."""
        name = overload.siblings.get(SchemaKind.functional, overload.name)
        return name.partition(".")[2]

    def _expression(self, overload: Overload) -> str:
        """What computes one element of the result; in-place and out overloads have their functional sibling's."""
        text = self.data.get("expressions", {}).get(self._overload_suffix(overload), self.data.get("expression", ""))
        if text:
            self._check_expression(text, overload)
        return text

    def _row(self, overload: Overload) -> Op:
        args = self._args(overload)
        writes = [arg.writes for arg in args]
        hidden = False
        for i, arg in enumerate(args):
            if arg.name not in self.data.get("writes", []):
                continue
            if arg.kind not in _TENSORS:
                self.fail(f"writes names {arg.name!r}, which is no tensor")
            if arg.writes and overload.kind is SchemaKind.functional:
                self.fail(f"writes names {arg.name!r}, which the schema annotates already; delete it there")
            hidden = hidden or not arg.writes
            writes[i] = True
        new_results = any(r.alias < 0 for r in overload.results)
        return Op(
            overload=overload,
            entry=self.name,
            file=self.file,
            title=self.title,
            family=self.family,
            shape=self.shape if new_results else "in_place",
            args=args,
            roles=[self._role(arg.name, arg.kind, arg.default) for arg in args],
            writes=writes,
            overwrites=self._overwrites(overload, args),
            flags=self._flags(overload, args, writes, hidden),
            expression=self._expression(overload),
            decomposition=self.data.get("decomposition", ""),
            doc=self.data["doc"],
        )

    def _overwrites(self, overload: Overload, args: list[Arg]) -> list[bool]:
        """Which arguments are filled without being read: what an out overload returns, and what the entry names."""
        returned = {r.alias for r in overload.results} if overload.kind is SchemaKind.out else set()
        named = self.data.get("overwrites", [])
        for arg in args:
            if arg.name in named and not arg.writes and overload.kind is SchemaKind.inplace:
                self.fail(f"overwrites names {arg.name!r}, which {overload.name!r} does not write")
        return [arg.writes and (i in returned or arg.name in named) for i, arg in enumerate(args)]

    def _args(self, overload: Overload) -> list[Arg]:
        given = any(arg.kind == "Generator" for arg in overload.args)
        if given or not self.data.get("random", "nondeterministic_seeded" in overload.tags):
            return overload.args
        # Draws from the default generator: its seed and offset are parameters all the same.
        return [*overload.args, Arg("generator", "Generator", writes=False, keyword_only=True, default="None")]

    def _flags(self, overload: Overload, args: list[Arg], writes: list[bool], hidden: bool) -> list[str]:
        flags = []
        if any(a.kind == "Generator" for a in args):
            flags.append("Random")
        # torchgen's own out variants lack the tag.
        tagged = any("dynamic_output_shape" in self.overloads[name].tags for name in overload.siblings.values())
        dynamic = self.data.get("dynamic", tagged)
        if dynamic:
            flags.append("DynamicShape")
        if any(r.kind not in ("Tensor", "TensorList") for r in overload.results):
            flags.append("HostResult")
        if overload.kind is SchemaKind.inplace:
            flags.append("InPlace")
        if overload.kind is SchemaKind.out:
            flags.append("Out")
        if "Random" not in flags and not any(writes):
            flags.append("Pure")
        if hidden:
            flags.append("HiddenMutation")
        if self.data.get("commutative") and overload.kind is SchemaKind.functional:
            kinds = [a.kind for a in overload.args[:2]]
            if kinds == ["Tensor", "Tensor"]:
                flags.append("Commutative")
        return flags

    def _role(self, name: str, kind: str, default: str | None) -> str:
        if kind in _TENSORS:
            return "operand"
        if kind == "Generator":
            return "random"
        if kind in ("Layout", "Device"):
            return "ignored"
        if name in self.vocabulary.ignored_names:
            if default is None:
                self.fail(f"argument {name!r} is ignored everywhere but has no default here; adapt conventions.toml")
            return "ignored"
        if name in self.data.get("structural", []):
            if kind == "ScalarList":
                self.fail(f"structural names {name!r}, a list of scalars: these can be values only")
            return "structural"
        if name in self.data.get("values", []):
            if kind not in _NUMBERS and kind != "ScalarList":
                self.fail(f"values names {name!r}, a {kind}: only numbers can be values")
            return "value"
        if kind in _STRUCTURAL_ONLY or (name in self.vocabulary.structural_names and kind in _NUMBERS):
            return "structural"
        return "value"

    def _check_expression(self, text: str, overload: Overload):
        functional = self.overloads[overload.siblings.get(SchemaKind.functional, overload.name)]
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            self.fail(f"expression {text!r} does not parse: {error.msg}")
        self._check_node(tree, text, {a.name for a in functional.args})
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        for arg in functional.args:
            if arg.kind in ("Tensor", "TensorList") and arg.name not in used and functional.base != "fill":
                self.fail(f"expression {text!r} does not use the tensor {arg.name!r} of {functional.name!r}")

    def _check_node(self, node: ast.expr, text: str, names: set[str]):
        functions = self.vocabulary.functions
        match node:
            case ast.Constant(value=int() | float()):
                return
            case ast.Name(id=name):
                if name not in names:
                    self.fail(f"expression {text!r} uses {name!r}; the arguments are {', '.join(sorted(names))}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check_node(operand, text, names)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
                self._check_node(left, text, names)
                self._check_node(right, text, names)
            case ast.Compare(left=left, ops=[_], comparators=[right]):
                self._check_node(left, text, names)
                self._check_node(right, text, names)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if functions.get(name) != len(args):
                    known = ", ".join(f"{f}/{n}" for f, n in sorted(functions.items()))
                    self.fail(f"expression {text!r} calls {name}/{len(args)}; the notation has {known}")
                for arg in args:
                    self._check_node(arg, text, names)
            case _:
                self.fail(f"expression {text!r}: only numbers, arguments, + - * /, comparisons and calls are allowed")


def load_table(paths: list[str], overloads: dict[str, Overload], vocabulary: Vocabulary) -> list[Op]:
    """All rows, by name. Raises TableError for the first wrong entry."""
    ops: dict[str, Op] = {}
    for path in sorted(paths):
        with open(path, "rb") as file:
            try:
                data = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise TableError(f"ir/ops/{os.path.basename(path)}: {error}") from None
        unknown = set(data) - _FILE_KEYS
        if unknown or "title" not in data or "family" not in data:
            raise TableError(
                f"ir/ops/{os.path.basename(path)}: a file has title, family, shape (optional) and [op.NAME] tables"
                + (f"; unknown: {', '.join(sorted(unknown))}" if unknown else "")
            )
        for name, entry_data in data.get("op", {}).items():
            entry = _Entry(path, data, name, entry_data, overloads, vocabulary)
            for op in entry.rows():
                other = ops.setdefault(op.overload.name, op)
                if other is not op:
                    entry.fail(
                        f"captures {op.overload.name!r}, and so does [op.{other.entry}] in {other.file}; delete one, or"
                        " name what each captures in overloads"
                    )
    for op in ops.values():
        functional = op.overload.siblings.get(SchemaKind.functional, "")
        op.functional = functional if functional in ops else op.overload.name
    return [ops[name] for name in sorted(ops)]
