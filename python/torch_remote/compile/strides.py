"""Examples in a graph get the strides that eager code gives its tensors.

AOTAutograd's examples come from torch's Python shape functions. Some of these lay results out otherwise than the
kernels do, for permuted or expanded operands: indexing, batch norm, pooling, a few binary ops. A compiled function
returns tensors with the strides of the examples, so the shape functions of eager code correct these here.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from torch_remote import _C

__all__ = ["take_eager_strides"]


class _Unknown(Exception):
    """A size is known only at the call, or a tensor is elsewhere."""


def _number(value: Any) -> Any:
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    hint = value.node.hint
    if hint is None:  # an unbacked symbol
        raise _Unknown
    return hint


def _like(value: Any) -> Any:
    """An example as a shape function takes it."""
    if not isinstance(value, torch.Tensor):
        return _number(value)
    if value.device.type not in ("remote", "cpu"):
        raise _Unknown
    sizes, strides = ([_number(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)  # no memory before it is used


def _alike(sizes: list[int], a: list[int], b: list[int]) -> bool:
    """Whether elements lie at the same places."""
    return 0 in sizes or all(x == y for size, x, y in zip(sizes, a, b, strict=True) if size > 1)


def _with_strides(example: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """The example with these strides; symbolic sizes get symbolic ones, where the tensor is dense."""
    sizes = [_number(size) for size in example.shape]
    if _alike(sizes, [_number(s) for s in example.stride()], strides):
        return example
    wanted: list[Any] = list(strides)
    if any(isinstance(size, torch.SymInt) for size in example.shape):
        step: Any = 1
        for d in sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d])):
            wanted[d] = step
            step = step * example.shape[d]
        if not _alike(sizes, [_number(s) for s in wanted], strides):
            return example
    return torch.empty_strided(example.shape, wanted, dtype=example.dtype, device=example.device)


def _corrected(node: fx.Node, arguments: Any, example: Any) -> Any:
    """The example of a node's result, laid out as in eager code."""
    with _disable_current_modes():
        try:
            args, kwargs = tree_map(_like, arguments)
            found = _C.eager_strides(node.target, *args, **kwargs)
        except (_Unknown, RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
            return example  # not a call of eager code's
    several = isinstance(example, list | tuple)
    examples = list(example) if several else [example]
    if found is None or len(found) != len(examples):
        return example
    for i, (each, strides) in enumerate(zip(examples, found, strict=True)):
        if isinstance(each, torch.Tensor) and each.layout == torch.strided and each.dim() == len(strides):
            examples[i] = _with_strides(each, strides)
    return type(example)(examples) if several else examples[0]


def _mode(value: Any) -> Any:
    tensors = value if isinstance(value, list | tuple) else [value]
    return next((t.fake_mode for t in tensors if hasattr(t, "fake_mode")), None)


def _is_changed(new: Any, old: Any) -> bool:
    if isinstance(new, list | tuple):
        return any(_is_changed(a, b) for a, b in zip(new, old, strict=True))
    return new is not old


def take_eager_strides(module: fx.GraphModule) -> None:
    """Corrects meta["val"] of the nodes in place; of all of them, or of none where a view cannot be taken then."""
    changed: dict[fx.Node, Any] = {}

    def example_of(node: fx.Node) -> Any:
        return changed.get(node, node.meta.get("val"))

    for node in module.graph.nodes:
        old = node.meta.get("val")
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            if node.args[0] in changed:
                changed[node] = changed[node.args[0]][node.args[1]]
            continue
        mode = _mode(old)
        if mode is None or not isinstance(node.target, torch._ops.OpOverload):
            continue
        arguments = fx.map_arg((node.args, node.kwargs), example_of)
        new = old
        with mode:
            if any(input in changed for input in node.all_input_nodes):
                try:
                    new = node.target(*arguments[0], **arguments[1])
                except Exception:  # a view that only the examples' strides allow
                    return
            if all(result.alias_info is None for result in node.target._schema.returns):
                new = _corrected(node, arguments, new)
        if _is_changed(new, old):
            changed[node] = new
    for node, example in changed.items():
        node.meta["val"] = example
