"""Wrong entries are refused with a message that names file, entry and fix; right ones become the right rows."""

import os
from pathlib import Path

import op_emit
import op_kernels
import op_lists
import op_relations
import pytest
from op_entries import TableError, load_table, read_vocabulary
from op_schemas import load_overloads

VOCABULARY = read_vocabulary("ir/ops/op_table.h", "ir/ops/conventions.toml")
OVERLOADS = load_overloads(Path("ir/ops/older_schemas.toml"))
LISTS = (
    "call_checks.toml", "conventions.toml", "composed.toml", "fusion.toml", "kernel_dtypes.toml", "older_schemas.toml",
    "relations.toml",
)  # fmt: skip
TABLES = [f"ir/ops/{name}" for name in os.listdir("ir/ops") if name.endswith(".toml") and name not in LISTS]


def table(tmp_path, text: str, head: str = 'title = "T"\nfamily = "pointwise"\n'):
    path = tmp_path / "some.toml"
    path.write_text(head + text)
    return {op.overload.name: op for op in load_table([str(path)], OVERLOADS, VOCABULARY)}


def error(tmp_path, text: str, **kwargs) -> str:
    with pytest.raises(TableError) as caught:
        table(tmp_path, text, **kwargs)
    return str(caught.value)


def test_one_entry_captures_all_siblings(tmp_path):
    ops = table(tmp_path, '[op]\nadd = { expression = "self + alpha * other", doc = "Sum." }')
    assert set(ops) == {"add.Tensor", "add_.Tensor", "add.out", "add.Scalar", "add_.Scalar", "add.Scalar_out"}
    assert ops["add_.Scalar"].functional == "add.Scalar"
    assert ops["add.Tensor"].flags == ["Pure"]
    assert ops["add_.Tensor"].flags == ["InPlace"]
    assert ops["add.out"].flags == ["Out"]


def test_an_in_place_name_captures_its_siblings_too(tmp_path):
    assert set(table(tmp_path, '[op]\nzero_ = { doc = "Zero." }')) == {"zero_", "zero", "zero.out"}


def test_an_op_of_ones_own_has_its_schema_in_the_entry(tmp_path):
    entry = """[op."remote::mix"]
schema = "remote::mix(Tensor self, Tensor? mask, float? scale, bool causal) -> (Tensor, Tensor[])"
structural = ["scale"]
doc = "Mixes." """
    op = table(tmp_path, entry)["remote::mix"]
    assert (op.name, op.functional, op.flags) == ("remote::mix", "remote::mix", ["Pure"])
    assert [(a.name, a.kind) for a in op.args] == [
        ("self", "Tensor"), ("mask", "OptionalTensor"), ("scale", "OptionalFloat"), ("causal", "Bool"),
    ]  # fmt: skip
    assert op.roles == ["operand", "operand", "structural", "structural"]
    assert [r.kind for r in op.overload.results] == ["Tensor", "TensorList"]
    assert op_emit.identifier(op) == "remote_mix"


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("remote::mix", "aten::mix(Tensor a) -> Tensor", "must begin with remote::"),
        ("remote::mix", "remote::mix(Tensor a -> Tensor", "is invalid"),
        ("remote::mix", "remote::other(Tensor a) -> Tensor", "has the schema of remote::other"),
        ("remote::mix_", "remote::mix_(Tensor(a!) self) -> Tensor(a!)", "must be functional"),
        ("remote::mix", "remote::mix(Stream a) -> Tensor", "cannot be recorded"),
    ],
)
def test_a_wrong_schema_is_refused(tmp_path, name, schema, message):
    text = error(tmp_path, f'[op."{name}"]\nschema = "{schema}"\ndoc = "."')
    assert f"some.toml: [op.{name}]" in text
    assert message in text


def test_overloads_restricts(tmp_path):
    ops = table(tmp_path, '[op]\nsum = { overloads = ["dim_IntList"], doc = "Sum." }')
    assert set(ops) == {"sum.dim_IntList", "sum.IntList_out"}


def test_roles_come_from_conventions_kinds_and_the_entry(tmp_path):
    ops = table(
        tmp_path, '[op]\npixel_shuffle = { structural = ["upscale_factor"], doc = "." }\ncumsum = { doc = "." }'
    )
    assert ops["pixel_shuffle"].roles == ["operand", "structural"]
    assert ops["cumsum"].roles == ["operand", "structural", "structural"]
    ops = table(tmp_path, '[op]\nreflection_pad1d = { values = ["padding"], doc = "." }')
    assert ops["reflection_pad1d"].roles == ["operand", "value"]


def test_an_expression_becomes_nodes_each_once(tmp_path):
    op = table(tmp_path, '[op]\nadd = { expression = "self + alpha * max(other, -self)", doc = "." }')["add_.Scalar"]
    assert [(n.op, n.operands, n.number) for n in op.tree] == [
        ("argument", (0,), 0.0), ("to_compute", (0,), 0.0),
        ("argument", (2,), 0.0), ("to_compute", (2,), 0.0),
        ("argument", (1,), 0.0), ("to_compute", (4,), 0.0),
        ("neg", (1,), 0.0), ("max", (5, 6), 0.0), ("mul", (3, 7), 0.0), ("add", (1, 8), 0.0),
        ("to_result", (9,), 0.0),
    ]  # fmt: skip


def test_facts_hold_for_the_overloads_that_they_are_about(tmp_path):
    ops = table(
        tmp_path,
        '[op]\nfill = { skips_overlap_check = ["fill_.Scalar"], shape_functions = { "fill.Scalar" = "like" },'
        ' doc = "." }',
    )
    assert [name for name, op in ops.items() if "SkipsOverlapCheck" in op.facts] == ["fill_.Scalar"]
    assert [name for name, op in ops.items() if op.shape_function != "none"] == ["fill.Scalar"]
    ops = table(tmp_path, '[op]\nnan_to_num = { noop_for = "integers", memory_format_from = "self", doc = "." }')
    assert [name for name, op in ops.items() if "NoopForIntegers" in op.facts] == ["nan_to_num_"]
    assert {name: op.memory_format_from for name, op in ops.items()} == {
        "nan_to_num": 0,
        "nan_to_num_": -1,
        "nan_to_num.out": -1,
    }


def test_wrong_facts_are_refused(tmp_path):
    assert "skips_overlap_check names the op 'fill_'" in error(
        tmp_path, '[op]\nfill = { skips_overlap_check = ["fill_"], doc = "." }'
    )
    assert "shape_function = 'fast' is unknown" in error(tmp_path, '[op]\nneg = { shape_function = "fast", doc = "." }')
    assert "noop_for = 'all' is unknown" in error(tmp_path, '[op]\nneg = { noop_for = "all", doc = "." }')
    assert "memory_format_from names 'weight'" in error(
        tmp_path, '[op]\nneg = { memory_format_from = "weight", doc = "." }'
    )


def test_hidden_writes_make_an_op_impure(tmp_path):
    entry = '[op]\nnative_batch_norm = { writes = ["running_mean"], doc = "." }'
    op = table(tmp_path, entry)["native_batch_norm"]
    assert [a.name for a, w in zip(op.overload.args, op.writes, strict=True) if w] == ["running_mean"]
    assert op.flags == ["HiddenMutation"]


def test_schemas_of_an_older_torch(tmp_path):
    older = tmp_path / "older.toml"
    older.write_text(
        'schemas = ["aten::gone(Tensor self) -> Tensor", "aten::relu(Tensor older) -> Tensor",'
        ' "aten::gone.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)"]'
    )
    overloads = load_overloads(older)
    assert overloads["gone.out"].args[1].writes
    assert set(overloads["gone"].siblings.values()) == {"gone", "gone.out"}
    assert [a.name for a in overloads["relu"].args] == ["older"]
    assert set(overloads["relu"].siblings.values()) == {"relu", "relu_", "relu.out"}  # unchanged


def test_expressions_by_overload(tmp_path):
    entry = '[op._foreach_add]\ndoc = "."\nexpressions = { Scalar = "self + scalar", ScalarList = "self + scalars" }'
    ops = table(tmp_path, entry)
    assert ops["_foreach_add_.Scalar"].expression == "self + scalar"
    assert ops["_foreach_add_.ScalarList"].expression == "self + scalars"
    assert ops["_foreach_add.List"].expression == ""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('nosuchop = { doc = "." }', "is not in native_functions.yaml; correct the name"),
        ('add = { overloads = ["Nope"], doc = "." }', "overload 'add.Nope' is not in native_functions.yaml; there are"),
        ('add = { doc = "" }', "has no doc line; add doc"),
        ('view = { doc = "." }', "is a view: views are metadata"),
        ('matmul = { doc = "." }', "is CompositeImplicit"),
        ('add = { family = "pointy", doc = "." }', "family = 'pointy' is unknown; use one of attention, composite"),
        ('add = { shape_rule = "round", doc = "." }', "shape_rule = 'round' is unknown; use one of addmm"),
        ('add = { shape_rule = "in_place", doc = "." }', "shape_rule = 'in_place' is unknown"),
        ('add = { docs = ".", doc = "." }', "key 'docs' is unknown"),
        (
            'add = { structural = ["beta"], doc = "." }',
            "names 'beta', which no overload has; there are alpha",
        ),
        ('add = { writes = ["alpha"], doc = "." }', "writes names 'alpha', which is not a tensor"),
        ('cumsum = { values = ["dtype"], doc = "." }', "values names 'dtype', a DType: only numbers can be values"),
        ('relu = { expression = "max(self, zero)", doc = "." }', "uses 'zero'; the arguments are self"),
        ('relu = { expression = "max(self)", doc = "." }', "calls max/1; the notation has abs/1"),
        ('relu = { expression = "max(self,", doc = "." }', "does not parse"),
        ('relu = { expression = "self ** 2", doc = "." }', "only numbers, arguments, + - * /"),
        ('mul = { expression = "self * self", doc = "." }', "does not use the tensor 'other' of 'mul.Tensor'"),
        ('mm = { in_place_only = true, doc = "." }', "is in_place_only but has no in-place overload"),
        ('mul = { cuda = "topk", doc = "." }', "'topk' is not a function; write 'file.function'"),
        ('mul = { cuda = { any = "a.b", real = "a.c" }, doc = "." }', "use 'any' alone, or 'real' and 'complex'"),
        ('mul = { aten = "a.b", doc = "." }', "captures no overload 'mul'; it captures mul.Scalar, "),
        ('mm = { aten = "a.b", aten_if = "a.b", doc = "." }', "aten and aten_if both name a function for 'mm'"),
        ('mm = { fails_midway = "any", doc = "." }', "fails_midway is for in-place overloads"),
        ('mm = { computes_in = { half = "float32" }, doc = "." }', "computes_in names the dtypes ['half']"),
        ('mul = { expressions = { X = "self" }, doc = "." }', "expressions names the overload 'X'; there are Scalar"),
    ],
)
def test_wrong_entries_are_refused(tmp_path, entry, message):
    text = error(tmp_path, "[op]\n" + entry)
    assert text.startswith(f"ir/ops/some.toml: [op.{entry.split(' ')[0]}]: ")
    assert message in text


def test_an_overload_has_one_entry(tmp_path):
    text = error(tmp_path, '[op]\nadd = { doc = "." }\n"add.Tensor" = { doc = "." }')
    assert "captures 'add.Tensor', and so does [op.add] in some.toml; delete one" in text


def test_a_file_needs_title_and_family(tmp_path):
    assert "a file has title, family" in error(tmp_path, "", head='title = "T"\n')
    assert "unknown: famly" in error(tmp_path, "", head='title = "T"\nfamly = "norm"\n')


def test_a_signature_is_what_client_and_worker_must_agree_on(tmp_path):
    def signature(entry):
        return op_emit.signature_hash(table(tmp_path, "[op]\n" + entry)["cumsum"])

    first = signature('cumsum = { doc = "Running sum." }')
    assert signature('cumsum = { doc = "Sum so far." }') == first
    assert signature('cumsum = { family = "reduction", expression = "self", doc = "Running sum." }') == first
    assert signature('cumsum = { cuda = "sort.topk", aten = "sort.topk", doc = "Running sum." }') == first
    assert signature('cumsum = { values = ["dim"], doc = "Running sum." }') != first
    assert signature('cumsum = { random = true, doc = "Running sum." }') != first


def test_every_table_of_the_project_is_read():
    ops = load_table(TABLES, OVERLOADS, VOCABULARY)
    assert len(ops) > 1500
    assert op_emit.source(ops) == op_emit.source(load_table(TABLES[::-1], OVERLOADS, VOCABULARY))


def test_every_name_of_the_conventions_is_used():
    args = {
        (arg.name, role)
        for op in load_table(TABLES, OVERLOADS, VOCABULARY)
        for arg, role in zip(op.args, op.roles, strict=True)
        if arg.kind not in ("Bool", "OptionalBool") or role == "client_only"
    }
    assert {name for name in VOCABULARY.structural_names if (name, "structural") not in args} == set()
    assert {name for name in VOCABULARY.client_only_names if (name, "client_only") not in args} == set()


def test_lists_beside_the_table_are_checked(tmp_path):
    ops = load_table(TABLES, OVERLOADS, VOCABULARY)

    def wrong(write, text: str) -> str:
        path = tmp_path / "list.toml"
        path.write_text(text)
        with pytest.raises(TableError) as caught:
            write(path)
        return str(caught.value)

    def composed(path):
        return op_lists.composed(path, "ir/ops/op_table.h", ops, OVERLOADS)

    def dtypes(path):
        return op_lists.kernel_dtypes(path, OVERLOADS)

    def graph(row: str) -> str:
        return f"[own_kernels]\n[kernels]\n[graph]\n{row}\n"

    assert '{"aten::clone", true, ComposedKind::kFill' in composed(Path("ir/ops/composed.toml"))
    assert "'emty' is not in native_functions" in wrong(composed, graph('emty = { kind = "empty" }'))
    assert "kind = 'nil' is unknown" in wrong(composed, graph('empty_like = { kind = "nil" }'))
    assert "op = 'fill' is not in the op table" in wrong(composed, graph('ones = { kind = "fill", op = "fill" }'))
    assert "arguments names 'valve'" in wrong(
        composed, graph('full = { kind = "fill", op = "fill_.Scalar", arguments = ["valve"] }')
    )
    assert "twice" in wrong(composed, '[own_kernels]\na = ["view"]\nb = ["view"]\n[kernels]\n[graph]\n')
    assert '{"aten::bmm", "bmm", kBool | kComplexHalf},' in dtypes(Path("ir/ops/kernel_dtypes.toml"))
    assert '{"aten::mode", "mode_cpu", kComplex, true},' in dtypes(Path("ir/ops/kernel_dtypes.toml"))
    row = '[unsupported]\nbmm = [{ kernel = "bmm", dtypes = ["bits"] }]'
    assert "dtypes ['bits'] are unknown" in wrong(dtypes, row)
    assert "'bmmm' is not in native_functions" in wrong(dtypes, row.replace("bmm =", "bmmm ="))


def test_call_checks_are_of_known_ops(tmp_path):
    def wrong(always: str, without_shape_function: str = "") -> str:
        path = tmp_path / "list.toml"
        path.write_text(f"[always]\n{always}\n[without_shape_function]\n{without_shape_function}\n")
        with pytest.raises(TableError) as caught:
            op_lists.call_checks(path, OVERLOADS)
        return str(caught.value)

    header = op_lists.call_checks(Path("ir/ops/call_checks.toml"), OVERLOADS)
    assert '{"mm", CheckWhen::kWithoutShapeFunction, checks::mm},' in header
    assert '{"put", CheckWhen::kAlways, checks::put},' in header  # covers put_, too
    assert header.count("void cumulative(") == 1
    assert header.count("checks::foreach}") > 40
    assert (
        '{"_foreach_copy", CheckWhen::kAlways, checks::foreach_copy},' in header
    )  # not `foreach`, whose name is "_foreach_*"
    rows = [line.split('"')[1] for line in header.splitlines() if line.startswith('    {"')]
    assert rows == sorted(rows) and len(set(rows)) == len(rows)
    assert "no op of native_functions.yaml is called 'mmm'" in wrong('mm = ["mmm"]')
    assert "no op of native_functions.yaml is called 'nothing_*'" in wrong('mm = ["nothing_*"]')
    assert "'mm' has a check already" in wrong('mm = ["mm"]', 'other = ["mm"]')


def test_relations_are_of_known_ops_and_arguments(tmp_path):
    ops = load_table(TABLES, OVERLOADS, VOCABULARY)

    def made(text: str, allowed: str = "aten::relu_x\n") -> str:
        (tmp_path / "allowed_ops.txt").write_text(allowed)
        path = tmp_path / "relations.toml"
        path.write_text(text)
        return op_relations.relations(path, ops, OVERLOADS)

    def relation(op: str, need: str) -> str:
        return f'[[relation]]\nops = ["{op}"]\nneeds = ["{need}"]\n'

    def wrong(*args: str) -> str:
        with pytest.raises(TableError) as caught:
            made(*args)
        return str(caught.value)

    header = op_relations.relations(Path("ir/ops/relations.toml"), ops, OVERLOADS)
    assert '{"aten::_cummax_helper", {relate_' in header and '{"remote::attention_backward", {relate_' in header
    rows = [line.split('"')[1] for line in header.splitlines() if line.startswith('    {"')]
    assert rows == sorted(rows) and len(set(rows)) == len(rows)
    # Optional tensors, results and kinds.
    code = made(relation("native_layer_norm_backward", "numel(weight) == product(normalized_shape)"))
    assert "need(!relations::defined(a[5]) || ((relations::numel(a[5]) == relations::product(a[2]))), op," in code
    assert code.count("relate_0, false}") == 2  # the op, and its out overload
    code = made(relation("_logcumsumexp", "same_dtype(result, self)"))
    assert (
        "r == nullptr || (relations::same_dtype(r[0], a[0]))" in code and "(relations::same_dtype(a[2], a[0]))" in code
    )
    assert "relate_0, true}" in made(relation("nll_loss_backward", "labels(target, size(self, -1), ignore_index)"))
    assert "'_cummax_help' is not in native_functions" in wrong(relation("_cummax_help", "same(self, values)"))
    assert "'same(self, value)' fits no overload" in wrong(relation("_cummax_helper", "same(self, value)"))
    assert "cannot read 'same(self)'" in wrong(relation("_cummax_helper", "same(self)"))
    assert "aten::relu is in the op table" in wrong(relation("lcm", "not_lowest(self)"), "aten::relu\n")
    assert "must be sorted" in wrong(relation("lcm", "not_lowest(self)"), "aten::b\naten::a\n")


def test_expansions_are_of_known_ops_and_kinds(tmp_path):
    ops = load_table(TABLES, OVERLOADS, VOCABULARY)
    right = Path("ir/ops/fusion.toml").read_text(encoding="utf-8")

    def wrong(before: str, after: str) -> str:
        path = tmp_path / "list.toml"
        path.write_text(right.replace(before, after))
        with pytest.raises(TableError) as caught:
            op_lists.expansions(path, "ir/ops/op_table.h", ops)
        return str(caught.value)

    source = op_lists.expansions(Path("ir/ops/fusion.toml"), "ir/ops/op_table.h", ops)
    assert source.count("Expansion::kSoftmax,") == 1
    assert source.count("    Expansion::k") == len(ops)
    assert "differ in soft_max, softmax" in wrong("\nsoftmax = [", "\nsoft_max = [")
    assert "'_softmaxx' is not in the op table" in wrong('"_softmax"', '"_softmaxx"')
    assert "'relu' has an expression already" in wrong('"_softmax"', '"relu"')
    assert "'mean' is named twice" in wrong('"_softmax"', '"mean"')


def kernels_outside(folder: Path, rows: str, allowed: str) -> Path:
    """Writes composed.toml, with rows for ops outside the table, and allowed_ops.txt with one op."""
    (folder / "allowed_ops.txt").write_text(f"{allowed}\n")
    path = folder / "composed.toml"
    path.write_text(f"[kernels]\n{rows}\n")
    return path


def test_cuda_plans_are_declared_and_listed(tmp_path):
    entries = """[op]
topk = { cuda = "sort.topk", doc = "." }
alias_copy = { cuda = { any = "view.copy" }, doc = "." }
sum = { cuda = { real = "reduce.sum", complex = "complex.sum" }, doc = "." }
"""
    ops = list(table(tmp_path, entries).values())

    def header(kernels: str) -> str:
        return op_kernels.cuda_plans(kernels_outside(tmp_path, kernels, "aten::sort"), ops)

    text = header('sort = { cuda = "sort.sort" }')
    form = "Status {}(OpNode& node, PlanBuilder& plan);\n"
    assert "namespace sort_plans {\n" + form.format("sort") + form.format("topk") + "}" in text
    plans = ["sort.topk", "view.copy", "reduce.sum", "complex.sum", "sort.sort"]
    lines = text.splitlines()
    listed = [line for line in lines if "_plans::" in line]
    assert sorted(listed) == sorted(
        f'    {{"{plan}", {plan.replace(".", "_plans::")}, {str(plan in plans[1::2]).lower()}}},' for plan in plans
    )
    number = {line.split('"')[1]: f"&kPlans[{i}]" for i, line in enumerate(listed)}
    row = {op.overload.name: opcode for opcode, op in enumerate(ops)}
    copy = number["view.copy"]
    assert f"    {{{row['topk']}, {number['sort.topk']}, nullptr}},  // aten::topk" in lines
    assert f"    {{{row['alias_copy']}, {copy}, {copy}}},  // aten::alias_copy" in lines
    assert f"    {{{row['sum']}, {number['reduce.sum']}, {number['complex.sum']}}},  // aten::sum" in lines
    assert f'    {{"aten::sort", {number["sort.sort"]}, nullptr}},' in lines
    for kernels, message in {
        'msort = { cuda = "sort.sort" }': "names 'aten::msort', which allowed_ops.txt does not list",
        "sort = { gpu = 1 }": "[kernels.aten::sort] has ['gpu']; use aten, cuda, data_error",
        'sort = { cuda = "sort" }': "[kernels]: 'sort' is not a function",
    }.items():
        with pytest.raises(TableError) as caught:
            header(kernels)
        assert message in str(caught.value)


def test_a_cuda_plan_can_have_an_argument(tmp_path):
    entries = """[op]
mul = { cuda = { complex = "complex.binary(ComplexOp::kMultiply)" }, doc = "." }
sum = { cuda = "reduce.parts(ir::ops::aten_sum)", doc = "." }
"""
    path = kernels_outside(tmp_path, 'sort = { cuda = "sort.sort" }', "aten::sort")
    lines = op_kernels.cuda_plans(path, list(table(tmp_path, entries).values())).splitlines()
    for line in (
        '#include "ir/ops/op_table_generated.h"',
        '#include "worker/targets/cuda/kernels/complex_arguments.h"',
        "Status binary(OpNode& node, PlanBuilder& plan, ComplexOp);",
        "Status parts(OpNode& node, PlanBuilder& plan, ir::Opcode);",
        '    {"complex.binary(ComplexOp::kMultiply)", plan_with<complex_plans::binary, ComplexOp::kMultiply>, true},',
        '    {"reduce.parts(ir::ops::aten_sum)", plan_with<reduce_plans::parts, ir::ops::aten_sum>, false},',
    ):
        assert line in lines


def test_the_aten_plugin_gets_kernels_hazards_and_casts(tmp_path):
    lists = kernels_outside(tmp_path, 'rand = { aten = "random.rand" }', "aten::rand")
    entries = """[op]
uniform_ = { aten = "random.uniform", doc = "." }
mm = { aten = { "mm.dtype" = "matmul.product" }, doc = "." }
nansum = { aten_if = "nansum.choose", doc = "." }
put = { fails_midway = "flat_indices", doc = "." }
abs = { computes_in = { bool = "uint8" }, doc = "." }
[op."remote::mix"]
schema = "remote::mix(Tensor self) -> Tensor"
doc = "." """
    ops = list(table(tmp_path, entries).values())
    row = {op.overload.name: opcode for opcode, op in enumerate(ops)}
    text = op_kernels.aten_kernels(lists, ops)
    assert "namespace random_kernels {\nvoid rand(const SpecialCall& call);\nvoid uniform(const" in text
    assert "namespace nansum_kernels {\nSpecial choose(const ir::Node& node, const ir::Graph& graph);\n}" in text
    lines = text.splitlines()
    assert [line for line in lines if "_kernels::" in line] == [
        f"    {{{row['mm.dtype']}, matmul_kernels::product, nullptr}},  // aten::mm.dtype",
        f"    {{{row['nansum']}, nullptr, nansum_kernels::choose}},  // aten::nansum",
        f"    {{{row['uniform_']}, random_kernels::uniform, nullptr}},  // aten::uniform_",
        '    {"aten::rand", random_kernels::rand},',
    ]
    assert '    "remote::mix(Tensor self) -> Tensor",' in lines
    hazards = [line for line in op_kernels.hazards(ops).splitlines() if "Hazard::k" in line]
    assert hazards == [f"    {{{row['put_']}, Hazard::kFlatIndices}},  // aten::put_"]
    casts = op_kernels.casts(ops).splitlines()[1:]
    assert casts == [
        f"    {{{row[name]}, ScalarType::Bool, ScalarType::Byte}},  // aten::{name}"
        for name in ("abs", "abs.out", "abs_")
    ]


def test_messages_of_data_errors_are_sorted_by_op(tmp_path):
    lists = kernels_outside(tmp_path, 'rand = { data_error = "none" }', "aten::rand")
    entries = """[op]
take = { index_error = "no {index} of {size}", doc = "." }
bmm = { data_error = "it's \\"bad\\"", overloads = [""], doc = "." }
"""
    text = op_kernels.data_errors(lists, list(table(tmp_path, entries).values()))
    assert text.splitlines()[1:] == [
        '    {"aten::bmm", "it\'s \\"bad\\"", "RuntimeError"},',
        '    {"aten::bmm.out", "it\'s \\"bad\\"", "RuntimeError"},',
        '    {"aten::rand", "none", "RuntimeError"},',
        '    {"aten::take", "no {index} of {size}", "IndexError"},',
        '    {"aten::take.out", "no {index} of {size}", "IndexError"},',
    ]
    wrong = error(tmp_path, '[op]\ntake = { index_error = "{dim}", doc = "." }')
    assert "names ['dim']; it can name 'index' and 'size'" in wrong
