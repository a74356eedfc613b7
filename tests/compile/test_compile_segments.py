"""How torch.compile's graphs are partitioned: where each node is computed, and which nodes form a program. No worker
runs."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_remote import _C
from torch_remote.compile.classify import NodeClass, NodePlacement, classify, is_number, table
from torch_remote.compile.rewrites import move_items
from torch_remote.compile.segment import Call, Segment, segment

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_worker(remote):
    yield
    assert not _C.is_connected(0)


def classified(function, *args):
    """By name of a node: where it is computed, and why."""
    module = make_fx(function, tracing_mode="symbolic")(*args)
    classes = classify(module, guarded=True)
    return {node.name: (its.where, its.why) for node, its in classes.of.items()}


def test_ops_of_the_device_are_in_a_program(remote):
    def function(x, y):
        return torch.relu(x @ y).sum(0)

    found = classified(function, torch.empty(3, 4, device=remote), torch.empty(4, 5, device=remote))
    assert found == {
        "x_1": (NodePlacement.INPUT, ""),
        "y_1": (NodePlacement.INPUT, ""),
        "mm": (NodePlacement.PROGRAM, ""),
        "relu": (NodePlacement.PROGRAM, ""),
        "sum_1": (NodePlacement.PROGRAM, ""),
    }


def test_what_no_program_holds_is_outside_and_says_why(remote):
    def function(x, here):
        rows = x.nonzero()
        here.add_(1)
        return rows * 2, here.sin()

    found = classified(function, torch.empty(3, device=remote), torch.empty(3))
    assert found["nonzero"] == (NodePlacement.OUTSIDE, "its results depend on data")
    assert found["mul"] == (NodePlacement.PROGRAM, "")  # on rows that the call returns
    assert found["add_"] == found["sin"] == (NodePlacement.OUTSIDE, "a tensor is on cpu")


def test_numbers_constants_and_tensors_of_the_host(remote):
    def function(x, scale):
        return x.view(x.shape[0] * x.shape[1]) * (scale * torch.tensor(2.0))

    found = classified(function, torch.empty(3, 4, device=remote), torch.empty(()))
    wheres = {}
    for name, (where, _) in found.items():
        wheres.setdefault(where, []).append(name)
    assert wheres[NodePlacement.INPUT] == ["x_1", "scale_1"] and wheres[NodePlacement.CONSTANT] == ["_tensor_constant0"]
    assert wheres[NodePlacement.PROGRAM] == ["view", "mul_2"] and wheres[NodePlacement.HOST] == [
        "lift_fresh_copy",
        "mul_1",
    ]
    assert (
        wheres[NodePlacement.NUMBER] == ["sym_size_int", "sym_size_int_1", "mul"]
        and NodePlacement.OUTSIDE not in wheres
    )


def test_an_op_whose_name_resembles_sym_size_is_no_number(remote):
    torch.library.define("segments_test::asym_count", "(Tensor x) -> SymInt")
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device=remote)
    size = graph.call_function(aten.sym_size.int, (x, 0))
    count = graph.call_function(torch.ops.segments_test.asym_count.default, (x,))
    size.meta["val"] = count.meta["val"] = 3
    assert is_number(size) and not is_number(count)


def test_what_a_program_refused_stays_outside(remote):
    module = make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.empty(3, device=remote))
    sin = module.graph.find_nodes(op="call_function", target=aten.sin.default)[0]
    classes = classify(module, guarded=True, refused={sin: "so"})
    assert classes.of[sin].where is NodePlacement.OUTSIDE and classes.of[sin].why == "so"
    assert [its.where for its in classes.of.values()] == [
        NodePlacement.INPUT,
        NodePlacement.OUTSIDE,
        NodePlacement.PROGRAM,
    ]


def test_the_table_has_a_row_a_node(remote):
    module = make_fx(lambda x: x.nonzero() + 1, tracing_mode="symbolic")(torch.empty(3, device=remote))
    assert [str(row).split() for row in table(classify(module, guarded=True))] == [
        ["x_1", "placeholder", "input"],
        ["nonzero", "aten.nonzero.default", "outside", "its", "results", "depend", "on", "data"],
        ["add", "aten.add.Tensor", "program", "0"],
    ]


def test_items_are_taken_where_their_list_is_made(remote):
    graph = fx.Graph()
    x = graph.placeholder("x")
    split = graph.call_function(aten.split.Tensor, (x, 2), name="split")
    split.meta["val"] = (1, 2)
    sin = graph.call_function(aten.sin.default, (x,), name="sin")
    items = [graph.call_function(operator.getitem, (split, i)) for i in range(2)]
    graph.output((items, sin))
    module = fx.GraphModule({}, graph)
    move_items(module)
    module.graph.lint()
    assert [node.name for node in module.graph.nodes] == ["x", "split", "getitem", "getitem_1", "sin", "output"]


class Drawn:
    """A graph, with the classification of its nodes."""

    def __init__(self):
        self.graph = fx.Graph()
        self.classes = {}

    def input(self, name):
        return self.put(self.graph.placeholder(name), NodeClass(NodePlacement.INPUT))

    def put(self, node, its):
        self.classes[node] = its
        return node

    def call(self, *args, target=aten.add.Tensor, **its):
        return self.put(self.graph.call_function(target, args), NodeClass(**its))

    def program(self, *args, **its):
        return self.call(*args, **{"where": NodePlacement.PROGRAM, "on_device": True, **its})

    def host(self, *args):
        return self.call(*args, where=NodePlacement.HOST)

    def number(self, *args):
        return self.call(*args, where=NodePlacement.NUMBER)

    def outside(self, *args, **its):
        return self.call(*args, **{"where": NodePlacement.OUTSIDE, **its})

    def steps(self, cuts=()):
        return segment(self.classes, cuts)


@pytest.fixture
def drawn():
    return Drawn()


def test_one_program_of_all(drawn):
    x = drawn.input("x")
    a = drawn.program(x, 1)
    b = drawn.program(a, drawn.number(x))
    assert drawn.steps() == [Segment(0, (a, b))]


def test_a_call_of_what_a_program_makes_is_between_two(drawn):
    a = drawn.program(drawn.input("x"))
    out = drawn.outside(a, on_device=True)
    b = drawn.program(out, a)
    assert drawn.steps() == [Segment(0, (a,)), Call(out), Segment(0, (b,))]


def test_what_has_nothing_to_do_with_the_device_runs_before(drawn):
    a = drawn.program(drawn.input("x"))
    out = drawn.outside(drawn.input("here"))
    b = drawn.program(a, out)
    assert drawn.steps() == [Call(out), Segment(0, (a, b))]


def test_a_call_on_the_device_keeps_its_place(drawn):
    x = drawn.input("x")
    a = drawn.program(x)
    out = drawn.outside(x, on_device=True)
    b = drawn.program(a)
    assert drawn.steps() == [Segment(0, (a,)), Call(out), Segment(0, (b,))]


def test_tensors_of_the_cpu_are_written_after_the_program(drawn):
    x, here = drawn.input("x"), drawn.input("here")
    a = drawn.program(x)
    write = drawn.outside(here, 1, target=aten.add_.Tensor, writes=(here,))
    b = drawn.program(a)
    assert drawn.steps() == [Segment(0, (a, b)), Call(write, must=True)]


def test_who_reads_what_was_written_is_in_the_next_program(drawn):
    x, here = drawn.input("x"), drawn.input("here")
    a = drawn.program(x)
    write = drawn.outside(here, 1, target=aten.add_.Tensor, writes=(here,))
    b = drawn.program(a, here)
    assert drawn.steps() == [Segment(0, (a,)), Call(write, must=True), Segment(0, (b,))]


def test_writing_what_a_program_makes_follows_it(drawn):
    here = drawn.input("here")
    a = drawn.program(drawn.input("x"))
    write = drawn.outside(here, a, target=aten.copy_.default, writes=(here,), on_device=True)
    b = drawn.program(a)
    assert drawn.steps() == [Segment(0, (a,)), Call(write, must=True), Segment(0, (b,))]


def test_tensors_of_the_host_alone_are_no_program(drawn):
    here = drawn.input("here")
    host = drawn.host(here)
    out = drawn.outside(host, target=aten.add_.Tensor, writes=(here,))
    assert drawn.steps() == [Call(out, must=True)]


def test_a_call_that_takes_a_tensor_of_the_host_cuts_nothing(drawn):
    x, here = drawn.input("x"), drawn.input("here")
    host = drawn.host(here)
    a = drawn.program(x, host)
    out = drawn.outside(host)
    b = drawn.program(a, out)
    assert drawn.steps() == [Call(out), Segment(0, (host, a, b))]


def test_a_number_of_sizes_inside_that_a_program_must_be_given_cuts(drawn):
    a = drawn.program(drawn.input("x"))
    size = drawn.number(drawn.number(a))
    b = drawn.program(a, size)
    assert drawn.steps() == [Segment(0, (a, b))]  # an expression of the program
    drawn.classes[b] = NodeClass(NodePlacement.PROGRAM, program_inputs=(size,))
    assert drawn.steps() == [Segment(0, (a,)), Segment(0, (b,))]


def test_a_program_is_on_one_device(drawn):
    x = drawn.input("x")
    a = drawn.program(x)
    b = drawn.program(a, device=1)
    c = drawn.program(a, b)
    assert drawn.steps() == [Segment(0, (a,)), Segment(1, (b,)), Segment(0, (c,))]


def test_cuts(drawn):
    a = drawn.program(drawn.input("x"))
    b = drawn.program(a)
    assert drawn.steps({b}) == [Segment(0, (a,)), Segment(0, (b,))]


def test_control_flow_has_effects(drawn):
    a = drawn.program(drawn.input("x"))
    flow = drawn.outside(1, target=torch.ops.higher_order.cond)
    b = drawn.program(a)
    assert drawn.steps() == [Segment(0, (a,)), Call(flow, must=True), Segment(0, (b,))]
