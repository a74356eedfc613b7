"""First step of compiling a graph: decides where each node is computed, and why."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
import torch.fx as fx

from torch_remote import _C
from torch_remote.device import _device
from torch_remote.profiling.explanation import GraphNode

__all__ = ["Classes", "NodeClass", "NodePlacement", "classify", "devices", "on_device", "table"]


class NodePlacement(Enum):
    INPUT = "input"  # an argument of the call
    CONSTANT = "constant"  # an attribute of the module
    PROGRAM = "program"  # a program of the device `NodeClass.device` holds it
    HOST = "host"  # like PROGRAM, but a 0-dim tensor of the CPU; the call also computes it where this process needs it
    NUMBER = "number"  # derived from sizes; computed like HOST
    OUTSIDE = "outside"  # the call computes it as eager code would, between programs


@dataclass(frozen=True)
class NodeClass:
    where: NodePlacement
    device: int = 0  # the index of the `remote` device of its tensors or, if it has none, of the current program
    why: str = ""  # OUTSIDE: the reason why no program holds it
    # PROGRAM, HOST: inputs that the program needs for this node but not for earlier ones
    program_inputs: tuple[fx.Node, ...] = ()
    writes: tuple[fx.Node, ...] = ()  # OUTSIDE: the nodes whose tensors it modifies
    on_device: bool = False  # it returns or takes tensors of the device


@dataclass
class Classes:
    """The classes of a graph's nodes in order, without the output node."""

    of: dict[fx.Node, NodeClass] = field(default_factory=dict)
    constants: dict[fx.Node, Any] = field(default_factory=dict)  # values of attributes
    # by device: a lowering of all nodes that it may hold
    lowerings: dict[int, _C.Lowering] = field(default_factory=dict)


_NUMBERS = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def devices(node: fx.Node) -> list[int]:
    """The indices of the remote devices of the node's tensors."""
    value = node.meta.get("val")
    tensors = [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, torch.Tensor)]
    return [_device._index(v.device) for v in tensors if v.device.type == "remote"]


def on_device(node: fx.Node) -> bool:
    return bool(devices(node))


def is_number(node: fx.Node) -> bool:
    """Whether the node is a number that is derived from sizes, not from a tensor's elements."""
    if type(node.meta.get("val")) not in _NUMBERS:
        return False
    if not any(isinstance(i.meta.get("val"), torch.Tensor) for i in node.all_input_nodes):
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return False
    return node.target.name().partition("::")[2].startswith("sym_")  # sym_size, sym_stride, ...


def written_by(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose tensors it changes."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return ()
    found: list[fx.Node] = []
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            fx.map_arg(value, found.append)
    return tuple(found)


def offer(lowering: _C.Lowering, node: fx.Node, classes: Classes) -> None:
    """Registers the node as a possible input of the lowering."""
    value = classes.constants.get(node)
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
        lowering.constant(node, value)
    else:
        lowering.offer(node, determines_size=classes.of[node].where not in (NodePlacement.NUMBER, NodePlacement.HOST))


def classify(module: fx.GraphModule, *, guarded: bool, refused: dict[fx.Node, str] | None = None) -> Classes:
    """Decides where each node is computed.

    The lowering to IR decides whether a program can hold a node; it is tried with all nodes in one program per device.

    Args:
        module: a functional graph of ATen ops; each node has its example value in meta["val"].
        guarded: the graph is called only with sizes in the ranges of its ShapeEnv.
        refused: nodes that no program may hold, and the reasons.
    """
    classes = Classes()
    several = _device.device_count() > 1
    device = _device.current_device()

    def lowering_on(index: int) -> _C.Lowering:
        if index not in classes.lowerings:
            classes.lowerings[index] = lowering = _C.Lowering(index, guarded)
            for node in classes.of:
                offer(lowering, node, classes)
        return classes.lowerings[index]

    def add(node: fx.Node, its: NodeClass, inside: _C.Lowering | None = None) -> None:
        classes.of[node] = its
        for lowering in classes.lowerings.values():
            if lowering is not inside:
                offer(lowering, node, classes)

    lowering_on(device)
    taken: dict[int, int] = {}  # by device: the number of the lowering's inputs that nodes of programs have used
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if several:
            device = next((index for n in (node, *inputs) for index in devices(n)), device)
        touches_device = on_device(node) or any(map(on_device, inputs))
        if node.op == "output":
            break
        if node.op == "placeholder":
            add(node, NodeClass(NodePlacement.INPUT, device))
        elif node.op == "get_attr":
            classes.constants[node] = operator.attrgetter(str(node.target))(module)
            add(node, NodeClass(NodePlacement.CONSTANT, device))
        elif is_number(node):
            add(node, NodeClass(NodePlacement.NUMBER, device, on_device=touches_device))
        elif node.op == "call_function" and node not in (refused or ()) and (lowering := lowering_on(device)).add(node):
            where = NodePlacement.HOST if lowering.is_host(node) else NodePlacement.PROGRAM
            program_inputs = tuple(lowering.inputs[taken.get(device, 0) :])
            taken[device] = len(lowering.inputs)
            add(node, NodeClass(where, device, program_inputs=program_inputs, on_device=touches_device), lowering)
        else:
            why = (refused or {}).get(node) or (lowering.why_not if node.op == "call_function" else node.op)
            add(node, NodeClass(NodePlacement.OUTSIDE, device, why, writes=written_by(node), on_device=touches_device))
    return classes


def table(classes: Classes) -> list[GraphNode]:
    """The table that `torch.remote.explain` shows."""
    return [
        GraphNode(
            node.name,
            str(node.target) if node.op == "call_function" else node.op,
            f"program {its.device}" if its.where is NodePlacement.PROGRAM else its.where.value,
            its.why,
        )
        for node, its in classes.of.items()
    ]
