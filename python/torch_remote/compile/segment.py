"""Second step of compiling a graph: decides which nodes form a program, and which are called before, between and
after."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
import torch.fx as fx

from torch_remote.compile.classify import NodeClass, NodePlacement

__all__ = ["Call", "Segment", "segment"]


@dataclass(frozen=True)
class Segment:
    """The nodes of one program."""

    device: int
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Call:
    """A node that is called in this process. `must`: even if its result is unused."""

    node: fx.Node
    must: bool = False


class _OpenSegment:
    """The program that is being assembled."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.nodes: dict[fx.Node, None] = {}
        # values that only the program knows: its nodes, and numbers derived from their sizes
        self.inside: set[fx.Node] = set()
        self.later: dict[fx.Node, None] = {}  # nodes that modify CPU tensors and run after the program
        self.written: set[fx.Node] = set()  # these tensors, and the nodes of `later`


def segment(classes: Mapping[fx.Node, NodeClass], cuts: Collection[fx.Node] = ()) -> list[Segment | Call]:
    """The steps of a call, in order. Numbers are in no step, and tensors of the host only in programs: a call computes
    them where they are needed.

    Nodes keep their order, except nodes that do not depend on the device. These run before the program that is being
    assembled or, if they modify tensors, after it.

    Args:
        classes: the nodes' classes, in order.
        cuts: nodes that must not be in one program with earlier nodes.
    """
    steps: list[Segment | Call] = []
    now = _OpenSegment(0)

    def close(device: int) -> _OpenSegment:
        if any(classes[node].where is NodePlacement.PROGRAM for node in now.nodes):
            steps.append(Segment(now.device, tuple(now.nodes)))
        steps.extend(Call(node, must=True) for node in now.later)
        return _OpenSegment(device)

    for node, its in classes.items():
        inputs = node.all_input_nodes
        needs = not now.inside.isdisjoint(inputs)
        if its.device != now.device or not now.written.isdisjoint(inputs):  # a program is on one device
            now, needs = close(its.device), False
        if its.where is NodePlacement.NUMBER:
            if needs:
                now.inside.add(node)
        elif its.where in (NodePlacement.PROGRAM, NodePlacement.HOST):
            if node in cuts or not now.inside.isdisjoint(its.program_inputs):
                now = close(its.device)
            now.nodes[node] = None
            if its.where is NodePlacement.PROGRAM:
                now.inside.add(node)
        elif its.where is NodePlacement.OUTSIDE:
            if its.writes and not needs and not its.on_device:
                now.later[node] = None
                now.written.update((node, *its.writes))
                continue
            effect = bool(its.writes) or isinstance(node.target, torch._ops.HigherOrderOperator)
            if needs or effect or its.on_device:
                now = close(its.device)
            steps.append(Call(node, must=effect or node.is_impure()))
    close(0)
    return steps
