"""Third step of compiling a graph: builds the programs, and orders the steps of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.utils._python_dispatch import _disable_current_modes

from torch_remote import _C
from torch_remote.compile import random_states
from torch_remote.compile.classify import Classes, NodePlacement, offer
from torch_remote.compile.segment import Call, Segment

__all__ = ["UnsupportedNode", "make_plan"]

# Replacements for torch functions that run outside of programs.
_REPLACEMENTS = {run_and_save_rng_state: random_states.run_and_save, run_with_rng_state: random_states.run_with}

FinishProgram = Callable[..., _C.CompiledGraph]


class UnsupportedNode(Exception):
    """The program of a segment does not support one of the segment's nodes."""

    def __init__(self, node: fx.Node, why: str) -> None:
        super().__init__(f"{node.format_node()}: {why}")
        self.node, self.why = node, why


@dataclass(slots=True)
class _Step:
    """A step of a call, with nodes as placeholders for its arguments and results."""

    call: Callable[..., Any] | _C.Lowering
    args: Any
    kwargs: Any
    results: Sequence[fx.Node]  # for a lowering: the results that its program can return
    must: bool


class _Planner:
    """Orders the steps, and adds the steps that each one needs before it."""

    def __init__(self, classes: Classes, fixed: dict[fx.Node, tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        self.classes = classes
        self.fixed = fixed
        self.steps: list[_Step] = []
        # The values that a call has before the next step.
        self.has = {node for node, its in classes.of.items() if its.where is NodePlacement.INPUT}

    def can_have(self, node: fx.Node) -> bool:
        """Whether the node's value can be available for the next step."""
        if node in self.has or self.classes.of[node].where is NodePlacement.CONSTANT:
            return True
        lazy = self.classes.of[node].where in (NodePlacement.NUMBER, NodePlacement.HOST)
        return lazy and all(map(self.can_have, node.all_input_nodes))

    def need(self, node: fx.Node) -> None:
        if node not in self.has:
            self.call(node)

    def call(self, node: fx.Node, must: bool = False) -> None:
        """Adds a step that computes the node in Python."""
        target: Any = node.target
        args, kwargs = node.args, node.kwargs
        fx.map_arg((args, kwargs), self.need)
        if node.op == "get_attr":
            target, args = self.attribute(node), ()
        elif target in _REPLACEMENTS:
            target = _REPLACEMENTS[target]
        # equivalent, but implemented in Python: some 30 µs
        elif target is torch.ops.prims.convert_element_type.default:
            target, args, kwargs = torch.ops.aten._to_copy.default, args[:1], {"dtype": args[1]}
        self.steps.append(_Step(target, args, kwargs, [node], must))
        self.has.add(node)

    def attribute(self, node: fx.Node) -> Callable[[], Any]:
        """A function that returns the value of the attribute that a node stands for."""
        value, copy = self.fixed.get(node, (self.classes.constants[node], None))
        if copy is not None:
            return functools.partial(_C.restored, value, copy)
        return lambda: value

    def before_writing(self, node: fx.Node) -> None:
        """Computes all HOST nodes before `node`, because `node` modifies CPU tensors that they may be derived from."""
        for earlier, its in self.classes.of.items():
            if earlier is node:
                return
            if its.where is NodePlacement.HOST:
                self.need(earlier)

    def run(self, segment: Segment, lowering: _C.Lowering) -> None:
        """Adds a step that runs a program."""
        made = [node for node in segment.nodes if self.classes.of[node].where is NodePlacement.PROGRAM]
        if len(lowering) == 0:  # only views, and uninitialized memory
            for node in made:
                self.need(node)
            return
        inputs = list(lowering.inputs)
        for node in inputs:
            self.need(node)
        self.steps.append(_Step(lowering, (inputs,), {}, made, must=True))
        self.has.update(made)

    def finish(self, results: Any, finish_program: FinishProgram) -> _C.Plan:
        """Finishes the plan. `results`: the return value of a call, with nodes in it."""
        fx.map_arg(results, self.need)
        needed: set[fx.Node] = set()
        fx.map_arg(results, needed.add)
        steps: list[tuple[_Step, list[fx.Node]]] = []  # with the values that no later step needs
        for step in reversed(self.steps):
            if not step.must and needed.isdisjoint(step.results):
                continue
            used: dict[fx.Node, None] = {}
            fx.map_arg((step.args, step.kwargs), used.setdefault)
            if isinstance(step.call, _C.Lowering):
                step.results = [node for node in step.results if node in needed]
            steps.append((step, [node for node in used if node not in needed]))
            needed.update(used)
        slots = {
            node: i
            for i, node in enumerate(n for n, its in self.classes.of.items() if its.where is NodePlacement.INPUT)
        }

        def slot_of(node: fx.Node) -> Any:
            return _C.Slot(slots[node])

        plan = _C.Plan(len(slots))
        for step, last in reversed(steps):
            call = step.call
            if isinstance(call, _C.Lowering):
                call = finish_program(call, list(step.results), None)
            args, kwargs = _with_slots((step.args, step.kwargs), slot_of)
            places = [slots.setdefault(node, len(slots)) for node in step.results]
            plan.add(call, args, kwargs, places, [slots[node] for node in last])
        plan.finish(len(slots), _with_slots(results, slot_of))
        return plan


def _with_slots(value: Any, slot_of: Callable[[fx.Node], Any]) -> Any:
    """A copy of an argument with slots instead of nodes."""
    if isinstance(value, fx.Node):
        return slot_of(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_with_slots(item, slot_of) for item in value)
    if isinstance(value, dict):
        return {key: _with_slots(item, slot_of) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_with_slots(item, slot_of) for item in (value.start, value.stop, value.step)))
    return value


def _fixed(classes: Classes) -> dict[fx.Node, tuple[torch.Tensor, torch.Tensor | None]]:
    """The tensors that are the same in every call. Tensors on a worker come with a CPU copy, because the worker may be
    lost."""
    with _disable_current_modes():
        return {
            node: (value, value.cpu() if value.device.type == "remote" else None)
            for node, value in classes.constants.items()
            if isinstance(value, torch.Tensor)
        }


def _lower(part: Segment, planner: _Planner, guarded: bool) -> _C.Lowering:
    """Lowers a segment to its program."""
    nodes = set(part.nodes)
    lowering = _C.Lowering(part.device, guarded)
    for node in planner.classes.of:
        if node not in nodes and planner.can_have(node):
            offer(lowering, node, planner.classes)
    for node in part.nodes:
        if not lowering.add(node):
            raise UnsupportedNode(node, lowering.why_not)
    return lowering


def make_plan(
    classes: Classes, steps: Sequence[Segment | Call], results: Any, *, guarded: bool, finish_program: FinishProgram
) -> tuple[_C.CompiledGraph | _C.Plan, int]:
    """Builds what a call runs: a single program if nothing else is needed, otherwise a plan.

    Args:
        classes, steps: from the graph.
        results: the return value of a call, with nodes in it.
        guarded: see classify.
        finish_program: makes a program from a lowering, from the nodes that it returns and, for a single program, from
            the positions of its inputs among a call's arguments.

    Returns:
        The program or plan, and its number of programs and of ops on the device outside of programs.

    Raises:
        UnsupportedNode: a segment's program does not support one of its nodes.
    """
    inside: dict[int, set[fx.Node]] = {device: set() for device in classes.lowerings}
    for node, its in classes.of.items():
        if its.where in (NodePlacement.PROGRAM, NodePlacement.HOST):
            inside[its.device].add(node)
    fixed = _fixed(classes)
    planner = _Planner(classes, fixed)
    parts = 0

    def lower(part: Segment) -> _C.Lowering:
        tried = classes.lowerings[part.device]
        if set(part.nodes) == inside[part.device] and all(map(planner.can_have, tried.inputs)):
            return tried
        return _lower(part, planner, guarded)

    segments = [step for step in steps if isinstance(step, Segment)]
    if isinstance(results, list | tuple) and len(segments) == len(steps) <= 1:
        lowering = classes.lowerings[segments[0].device] if segments else next(iter(classes.lowerings.values()))
        arguments = [node for node, its in classes.of.items() if its.where is NodePlacement.INPUT]
        places = {**{node: i for i, node in enumerate(arguments)}, **fixed}
        if all(lowering.returns(node) for node in results if isinstance(node, fx.Node)) and all(
            node in places for node in lowering.inputs
        ):
            return finish_program(lowering, list(results), places), 1
    for step in steps:
        if isinstance(step, Segment):
            lowering = lower(step)
            planner.run(step, lowering)
            parts += len(lowering) > 0
        else:
            its = classes.of[step.node]
            if its.writes:
                planner.before_writing(step.node)
            planner.call(step.node, step.must)
            parts += its.on_device
    return planner.finish(results, finish_program), parts
