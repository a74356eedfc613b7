"""What a call of a compiled graph runs where that is more than one program: programs and Python's calls, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

__all__ = ["Plan", "PlanBuilder"]


class _Slot:
    """Stands in arguments for a value that a call has."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _nodes_in(value: Any) -> list[fx.Node]:
    """Each once, in order."""
    found: dict[fx.Node, None] = {}
    fx.map_arg(value, found.setdefault)
    return list(found)


def _replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """A copy of an argument in which `by` gives what stands for each object of this kind."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, list):
        return [_replaced(item, kind, by) for item in value]
    if isinstance(value, tuple):
        return tuple([_replaced(item, kind, by) for item in value])
    if isinstance(value, dict):
        return {key: _replaced(item, kind, by) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[_replaced(item, kind, by) for item in (value.start, value.stop, value.step)])
    return value


@dataclass(slots=True)
class _Step:
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]  # where they go
    several: bool  # the call returns a list of them
    last: tuple[int, ...] = ()  # values that nothing needs after its arguments are taken


class Plan:
    """A function of a list, which it empties; values die as soon as nothing needs them. Any thread, one call at a time
    each."""

    def __init__(self, size: int, steps: Sequence[_Step], results: Any) -> None:
        self._size = size
        self._steps = steps
        self._results = results
        self._boxed_call = True  # for AOTAutograd: it takes its arguments out of a list

    def __call__(self, arguments: list[Any]) -> Any:
        values: list[Any] = [None] * self._size
        values[: len(arguments)] = arguments
        arguments.clear()

        def value_of(slot: _Slot) -> Any:
            return values[slot.index]

        for step in self._steps:
            args, kwargs = _replaced(step.args, _Slot, value_of), _replaced(step.kwargs, _Slot, value_of)
            for index in step.last:
                values[index] = None
            result = step.call(*args, **kwargs)
            if step.several:
                for index, item in zip(step.results, result, strict=True):
                    values[index] = item
            else:
                values[step.results[0]] = result
            del args, kwargs, result
        return _replaced(self._results, _Slot, value_of)


@dataclass(slots=True)
class _Wish:
    call: Callable[..., Any]
    args: Any  # with nodes
    kwargs: Any
    nodes: Sequence[fx.Node]  # that its results are
    several: bool
    must: bool


class PlanBuilder:
    """Makes a plan of calls, in the order in which they are wished for. Values are named by FX nodes."""

    def __init__(self) -> None:
        self._inputs: list[fx.Node] = []
        self._wishes: list[_Wish] = []

    def input(self, node: fx.Node) -> None:
        """The next argument of a call."""
        self._inputs.append(node)

    def call(self, node: fx.Node, call: Callable[..., Any], args: Any, kwargs: Any, *, must: bool) -> None:
        """What `node` is. `must`: it runs even if nothing needs the result."""
        self._wishes.append(_Wish(call, args, kwargs, [node], several=False, must=must))

    def program(
        self, call: Callable[[list[Any]], list[Any]], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ) -> None:
        """One that takes and returns lists."""
        self._wishes.append(_Wish(call, (list(inputs),), {}, outputs, several=True, must=True))

    def finish(self, results: Any) -> Plan:
        """`results`: what a call returns, with nodes in it."""
        needed: set[fx.Node] = set()
        fx.map_arg(results, needed.add)
        steps: list[tuple[_Wish, list[fx.Node]]] = []
        for wish in reversed(self._wishes):
            if not wish.must and needed.isdisjoint(wish.nodes):
                continue
            used = _nodes_in((wish.args, wish.kwargs))
            steps.append((wish, [node for node in used if node not in needed]))
            needed.update(used)
        slots = {node: i for i, node in enumerate(self._inputs)}

        def slot_of(node: fx.Node) -> _Slot:
            return _Slot(slots[node])

        made: list[_Step] = []
        for wish, last in reversed(steps):
            args, kwargs = _replaced((wish.args, wish.kwargs), fx.Node, slot_of)
            places = tuple(slots.setdefault(node, len(slots)) for node in wish.nodes)
            made.append(_Step(wish.call, args, kwargs, places, wish.several, tuple(slots[node] for node in last)))
        return Plan(len(slots), made, _replaced(results, fx.Node, slot_of))
