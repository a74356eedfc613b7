"""Reads ir/ops/*.toml and checks every entry against torch's schemas. A wrong entry is an error that names file, entry
and fix; nothing is guessed."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import op_columns
from op_schemas import Arg, Overload, full_name, own_overload
from torchgen.model import SchemaKind

_FILE_KEYS = {"title", "family", "shape_rule", "op"}
_ENTRY_KEYS = {
    "overloads", "family", "shape_rule", "shape_function", "shape_functions", "structural", "values", "writes",
    "overwrites", "expression", "expressions", "commutative", "dynamic", "random", "in_place_only",
    "accepts_cpu_scalars", "accepts_cpu_indices", "wraps_number", "skips_overlap_check", "resizes_self", "noop_for",
    "meta_wrong_if_empty", "cpu_only", "memory_format_from", "may_reuse_first", "schema", "cuda", "aten", "aten_if",
    "fails_by_data", "fails_midway", "computes_in", "index_error", "data_error", "doc",
}  # fmt: skip
_NOOP_FACTS = {"integers": "NoopForIntegers", "reals": "NoopForReals"}
_NUMBERS = {
    "Int", "OptionalInt", "IntList", "OptionalIntList", "Float", "OptionalFloat", "FloatList", "OptionalFloatList",
    "Bool", "OptionalBool", "BoolList", "Scalar", "OptionalScalar",
}  # fmt: skip
_TENSORS = {"Tensor", "OptionalTensor", "TensorList", "OptionalTensorList"}
_STRUCTURAL_ONLY = {"Bool", "OptionalBool", "BoolList", "String", "OptionalString", "DType", "MemoryFormat"}


_NODES = {"argument", "number", "to_compute", "to_result"}
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt",
    ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_MOST_NODES = 256  # ir::kMaxScalarNodes


class TableError(Exception):
    pass


@dataclass(frozen=True)
class Vocabulary:
    """The names that op_table.h gives to families and shape rules, in snake_case, and the expression notation."""

    families: frozenset[str]
    shape_rules: frozenset[str]
    shape_functions: frozenset[str]
    scalar_ops: frozenset[str]
    structural_names: frozenset[str]  # arguments that are structural in every op
    client_only_names: frozenset[str]
    functions: dict[str, int]  # functions of the expression notation: name to arity


@dataclass(frozen=True)
class ScalarNode:
    """One node of an expression: an ir::ScalarNode."""

    op: str  # an ir::ScalarOp in snake_case
    operands: tuple[int, ...] = ()  # earlier nodes; for "argument": its position
    number: float = 0.0


@dataclass
class Op:
    """One row of the table."""

    overload: Overload
    entry: str
    file: str
    title: str
    family: str
    shape_rule: str
    shape_function: str  # an ir::ShapeFunction in snake_case
    args: list[Arg]  # the schema's arguments, and a generator if the op draws random numbers without one
    roles: list[str]  # one for each argument, an ir::ArgRole in snake_case without its k
    writes: list[bool]
    overwrites: list[bool]
    flags: list[str]  # OpFlags without their kOp
    facts: list[str]  # OpFacts without their kFact
    memory_format_from: int
    expression: str
    tree: list[ScalarNode]
    cuda: tuple[str, str]  # plans of CUDA kernels for real and complex dtypes; "" if there is none
    aten: str  # the ATen plugin's function that computes the op; "" if there is none
    aten_if: str  # the function that chooses one for a node; "" if there is none
    hazard: str  # how the op may fail after it has written: an aten::Hazard in snake_case; "" if it cannot
    computes_in: dict[str, str]  # dtypes that CPU's kernel lacks, and those in which it computes them
    index_error: str  # the message of an index out of bounds, if it is the op's own
    data_error: str  # the message of an operand with an invalid value
    doc: str
    functional: str = ""  # name of the functional sibling in the table, or its own
    single: str = ""  # for a multi-tensor op: name of the op in the table that processes one tensor

    @property
    def name(self) -> str:
        return full_name(self.overload.name)


def camel(snake: str) -> str:
    return "".join(part.capitalize() for part in snake.split("_"))


def enum_names(header: str, enum: str, path: str = "ir/ops/op_table.h") -> frozenset[str]:
    body = re.search(rf"enum class {enum} : uint8_t {{(.*?)}};", header, re.DOTALL)
    if body is None:
        raise TableError(f"{path}: there is no 'enum class {enum} : uint8_t'; adapt op_entries.py to its new form")
    names = re.findall(r"\bk([A-Z]\w*)", re.sub(r"//.*", "", body.group(1)))
    return frozenset(re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in names)


def read_vocabulary(header_path: str, conventions_path: str) -> Vocabulary:
    with open(header_path, encoding="utf-8") as file:
        header = file.read()
    with open(conventions_path, "rb") as file:
        conventions = tomllib.load(file)
    with open(os.path.join(os.path.dirname(header_path), "scalar_tree.h"), encoding="utf-8") as file:
        scalar_ops = enum_names(file.read(), "ScalarOp")
    functions = set(conventions["functions"])
    if functions != scalar_ops - _NODES - set(_OPERATORS.values()) - {"neg"}:
        raise TableError(
            "ir/ops/conventions.toml and ir::ScalarOp in ir/ops/scalar_tree.h name different functions: "
            f"{', '.join(sorted(functions ^ (scalar_ops - _NODES - set(_OPERATORS.values()) - {'neg'})))}"
        )
    return Vocabulary(
        families=enum_names(header, "Family"),
        shape_rules=enum_names(header, "ShapeRule"),
        shape_functions=enum_names(header, "ShapeFunction"),
        scalar_ops=scalar_ops,
        structural_names=frozenset(conventions["roles"]["structural"]),
        client_only_names=frozenset(conventions["roles"]["client_only"]),
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
        self.functions: dict[str, dict[str, str]] = {"aten": {}, "aten_if": {}}  # by column, then by overload
        self._check_one_of("", set(data), _ENTRY_KEYS)
        self.family = data.get("family", file_keys.get("family"))
        self.shape_rule = data.get("shape_rule", file_keys.get("shape_rule", "none"))
        self._check_one_of("family", {self.family}, vocabulary.families - {"opaque"})
        self._check_one_of("shape_rule", {self.shape_rule}, vocabulary.shape_rules - {"in_place"})
        self.shape_function = data.get(
            "shape_function", self.shape_rule if self.shape_rule in vocabulary.shape_functions else "none"
        )
        self._check_one_of(
            "shape_function",
            {self.shape_function, *data.get("shape_functions", {}).values()},
            vocabulary.shape_functions,
        )
        self._check_one_of("noop_for", {data["noop_for"]} if "noop_for" in data else (), _NOOP_FACTS)
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
        """The overloads that the entry captures: those named, with their in-place, out and functional siblings."""
        if "schema" in self.data:
            return [self._own()]
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

    def _own(self) -> Overload:
        """The overload of an op that is not torch's."""
        try:
            overload = own_overload(self.data["schema"])
        except ValueError as error:
            self.fail(f"schema {self.data['schema']!r} is invalid: {error}")
        if overload.name != self.name:
            self.fail(f"has the schema of {overload.name}")
        if overload.kind is not SchemaKind.functional:
            self.fail("writes its arguments: an op of this project must be functional")
        if any(x.kind == "Unsupported" for x in (*overload.args, *overload.results)):
            self.fail("has an argument or a result of a type that cannot be recorded")
        self.overloads[overload.name] = overload
        return overload

    def rows(self) -> list[Op]:
        chosen = self.select()
        for key in ("structural", "values", "writes", "overwrites"):
            for name in self.data.get(key, []):
                if not any(o.arg(name) for o in chosen):
                    known = sorted({a.name for o in chosen for a in o.args})
                    self.fail(f"{key} names {name!r}, which no overload has; there are {', '.join(known)}")
        for key in ("shape_functions", "skips_overlap_check"):
            for name in self.data.get(key, []):
                if all(o.name != name for o in chosen):
                    self.fail(f"{key} names the op {name!r}; it captures {', '.join(sorted(o.name for o in chosen))}")
        if "memory_format_from" in self.data and all(o.arg(self.data["memory_format_from"]) is None for o in chosen):
            self.fail(f"memory_format_from names {self.data['memory_format_from']!r}, which no overload has")
        known = [self._overload_suffix(o) for o in chosen]
        for suffix in self.data.get("expressions", {}):
            if suffix not in known:
                self.fail(f"expressions names the overload {suffix!r}; there are {', '.join(sorted(set(known)))}")
        names = [o.name for o in chosen]
        for key in self.functions:
            self.functions[key] = self._column(key, lambda value: op_columns.by_overload(value, self.name, names), {})
        if "fails_midway" in self.data and all(o.kind is not SchemaKind.inplace for o in chosen):
            self.fail("fails_midway is for in-place overloads, and it captures none")
        if twice := self.functions["aten"].keys() & self.functions["aten_if"].keys():
            self.fail(f"aten and aten_if both name a function for {min(twice)!r}")
        return [self._row(overload) for overload in chosen]

    def _overload_suffix(self, overload: Overload) -> str:
        """The overload name of the functional sibling: "Tensor" for add_.Tensor."""
        name = overload.siblings.get(SchemaKind.functional, overload.name)
        return name.partition(".")[2]

    def _expression(self, overload: Overload) -> str:
        """The formula of one element of the result; in-place and out overloads have their functional sibling's."""
        text = self.data.get("expressions", {}).get(self._overload_suffix(overload), self.data.get("expression", ""))
        if text:
            self._check_expression(text, overload)
        return text

    def _facts(self, overload: Overload, shape_rule: str) -> list[str]:
        """The facts about an op that the recorder needs: ir::OpFacts without their kFact."""
        data = self.data
        in_place = overload.kind is SchemaKind.inplace
        facts = []
        if data.get(
            "accepts_cpu_scalars",
            self.family in ("pointwise", "multi_tensor") or data.get("accepts_cpu_indices", False),
        ):
            facts.append("AcceptsCpuScalars")
        if data.get("accepts_cpu_indices"):
            facts.append("AcceptsCpuIndices")
        scalar = "Scalar" in overload.name or "_scalar" in overload.name
        if shape_rule in ("pointwise", "comparison") and scalar and data.get("wraps_number", True):
            facts.append("WrapsNumber")
        if overload.name in data.get("skips_overlap_check", []):
            facts.append("SkipsOverlapCheck")
        if data.get("resizes_self") and in_place:
            facts.append("ResizesSelf")
        if overload.base.startswith("_foreach_"):
            facts.append("PerTensor")
        if "noop_for" in data and in_place:
            facts.append(_NOOP_FACTS[data["noop_for"]])
        if data.get("meta_wrong_if_empty") and overload.kind is not SchemaKind.out:
            facts.append("MetaWrongIfEmpty")
        if data.get("cpu_only"):
            facts.append("CpuOnly")
        return facts

    def _shape_function(self, overload: Overload) -> str:
        """The shape function. In-place and out overloads have none: their functional sibling's is used."""
        if overload.kind in (SchemaKind.inplace, SchemaKind.out):
            return "none"
        return self.data.get("shape_functions", {}).get(overload.name, self.shape_function)

    def _memory_format_from(self, overload: Overload) -> int:
        if overload.kind in (SchemaKind.inplace, SchemaKind.out):
            return -1
        return next((i for i, a in enumerate(overload.args) if a.name == self.data.get("memory_format_from")), -1)

    def _tree(self, text: str, overload: Overload) -> list[ScalarNode]:
        """The expression as nodes: operands come before their users, and equal nodes appear once."""
        nodes: dict[ScalarNode, int] = {}
        positions = {arg.name: i for i, arg in enumerate(overload.args)}

        def add(op: str, *operands: int, number: float = 0.0) -> int:
            return nodes.setdefault(ScalarNode(op, operands, number), len(nodes))

        def visit(node: ast.expr) -> int:
            match node:
                case ast.Constant(value=value) | ast.UnaryOp(operand=ast.Constant(value=value)):
                    return add("number", number=float(value if isinstance(node, ast.Constant) else -value))
                case ast.Name(id=name):
                    return add("to_compute", add("argument", positions[name]))
                case ast.UnaryOp(operand=operand):
                    return add("neg", visit(operand))
                case ast.BinOp(op=op, left=left, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
                    return add(_OPERATORS[type(op)], visit(left), visit(right))
                case ast.Call(func=ast.Name(id=name), args=args):
                    return add(name, *[visit(arg) for arg in args])
            raise AssertionError(ast.dump(node))  # _check_expression refuses everything else

        if not text:
            return []
        add("to_result", visit(ast.parse(text, mode="eval").body))
        if len(nodes) > _MOST_NODES:
            self.fail(f"expression {text!r} has {len(nodes)} nodes; the limit is {_MOST_NODES}")
        return list(nodes)

    def _row(self, overload: Overload) -> Op:
        args = self._args(overload)
        writes = [arg.writes for arg in args]
        hidden = False
        for i, arg in enumerate(args):
            if arg.name not in self.data.get("writes", []):
                continue
            if arg.kind not in _TENSORS:
                self.fail(f"writes names {arg.name!r}, which is not a tensor")
            if arg.writes and overload.kind is SchemaKind.functional:
                self.fail(f"writes names {arg.name!r}, which the schema annotates already; delete it there")
            hidden = hidden or not arg.writes
            writes[i] = True
        new_results = any(r.alias < 0 for r in overload.results)
        shape_rule = self.shape_rule if new_results else "in_place"
        expression = self._expression(overload)
        return Op(
            overload=overload,
            entry=self.name,
            file=self.file,
            title=self.title,
            family=self.family,
            shape_rule=shape_rule,
            shape_function=self._shape_function(overload),
            args=args,
            roles=[self._role(arg.name, arg.kind, arg.default) for arg in args],
            writes=writes,
            overwrites=self._overwrites(overload, args),
            flags=self._flags(overload, args, writes, hidden),
            facts=self._facts(overload, shape_rule),
            memory_format_from=self._memory_format_from(overload),
            expression=expression,
            tree=self._tree(expression, overload),
            cuda=self._column("cuda", op_columns.cuda_plans, ("", "")),
            aten=self.functions["aten"].get(overload.name, ""),
            aten_if=self.functions["aten_if"].get(overload.name, ""),
            hazard=self.data.get("fails_midway", "") if overload.kind is SchemaKind.inplace else "",
            computes_in=self._column("computes_in", op_columns.wider_dtypes, {}),
            index_error=self._column("index_error", op_columns.message, ""),
            data_error=self._column("data_error", op_columns.message, ""),
            doc=self.data["doc"],
        )

    def _column(self, key: str, read: Callable, otherwise: object):
        try:
            return read(self.data[key]) if key in self.data else otherwise
        except ValueError as error:
            self.fail(str(error))

    def _overwrites(self, overload: Overload, args: list[Arg]) -> list[bool]:
        """Whether each argument is filled without being read: one that an out overload returns, or the entry names."""
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
        # The op draws from the default generator. Its seed and offset are parameters nevertheless.
        return [*overload.args, Arg("generator", "Generator", writes=False, keyword_only=True, default="None")]

    def _flags(self, overload: Overload, args: list[Arg], writes: list[bool], hidden: bool) -> list[str]:
        flags = []
        if any(a.kind == "Generator" for a in args):
            flags.append("Random")
        # The out variants that torchgen generates lack the tag.
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
        if self.data.get("may_reuse_first"):
            flags.append("MayReuseFirst")
        if self.data.get("fails_by_data"):
            flags.append("FailsByData")
        return flags

    def _role(self, name: str, kind: str, default: str | None) -> str:
        if kind in _TENSORS:
            return "operand"
        if kind == "Generator":
            return "random"
        if kind in ("Layout", "Device"):
            return "client_only"
        if name in self.vocabulary.client_only_names:
            if default is None:
                self.fail(
                    f"argument {name!r} is client-only everywhere but has no default here; adapt conventions.toml"
                )
            return "client_only"
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
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | set(self.data.get("overwrites", ()))
        for arg in functional.args:
            if arg.kind in ("Tensor", "TensorList") and arg.name not in used:
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


def _single(op: Op, ops: dict[str, Op]) -> str:
    """The op that CPU calls for each tensor of a multi-tensor op: add_.Tensor for _foreach_add_.List."""
    if "PerTensor" not in op.facts:
        return ""
    base = op.overload.name.removeprefix("_foreach_").partition(".")[0]
    base = re.sub("^minimum", "clamp_max", re.sub("^maximum", "clamp_min", base))
    kinds = [
        a.kind.removesuffix("List") if a.kind in ("TensorList", "ScalarList") else a.kind for a in op.overload.args
    ]
    for overload in (".Tensor", ".Scalar", ".Tensor_Tensor", ".Tensor_Scalar", ""):
        single = ops.get(base + overload)
        if single is None or len(single.overload.results) != 1:
            continue
        if [a.kind for a in single.overload.args[: len(kinds)]] == kinds:
            return single.overload.name
    return ""


def load_table(paths: list[str], overloads: dict[str, Overload], vocabulary: Vocabulary) -> list[Op]:
    """Returns all rows, sorted by name. Raises TableError for the first wrong entry."""
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
                f"ir/ops/{os.path.basename(path)}: a file has title, family, shape_rule (optional) and [op.NAME] tables"
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
        op.single = _single(op, ops)
        functional = op.overload.siblings.get(SchemaKind.functional, "")
        op.functional = functional if functional in ops else op.overload.name
    return [ops[name] for name in sorted(ops, key=full_name)]
