"""Rewrites of AOTAutograd's graphs before they become programs. Each function changes the graph in place."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.fx as fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_remote import _C

__all__ = ["move_constants", "move_items", "remove_checks", "remove_tokens"]

_aten = torch.ops.aten


def remove_checks(module: fx.GraphModule) -> None:
    """Removes the assertions of torch.export on dtypes and devices, which are the same in every call."""
    for node in module.graph.find_nodes(op="call_function", target=_aten._assert_tensor_metadata.default):
        module.graph.erase_node(node)


def remove_tokens(module: fx.GraphModule, devices: Callable[[fx.Node], list[int]]) -> None:
    """Replaces `with_effects` calls of the device's ops by direct calls.

    AOTAutograd orders ops with effects by tokens; a program keeps all of its ops in order anyway. A replaced call
    passes its input token on.

    Args:
        module: a graph of AOTAutograd.
        devices: the indices of the remote devices of a node's tensors.
    """
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, op, *args = node.args
        indices = {index for each in node.all_input_nodes for index in devices(each)}
        if not indices or not isinstance(op, torch._ops.OpOverload):
            continue
        if not all(_C.is_program_op(op, i) for i in indices) or any(
            u.target is not operator.getitem for u in node.users
        ):
            continue
        with graph.inserting_before(node):
            call = graph.call_function(op, tuple(args), node.kwargs)
        call.meta = dict(node.meta)
        _, *values = node.meta["val"]
        several = len(op._schema.returns) > 1
        call.meta["val"] = tuple(values) if several else values[0]
        for user in list(node.users):
            index = user.args[1]
            if index > 0 and several:
                user.args = (call, index - 1)
            else:
                user.replace_all_uses_with(call if index > 0 else token)
                graph.erase_node(user)
        graph.erase_node(node)


def move_constants(module: fx.GraphModule, on_device: Callable[[fx.Node], bool]) -> None:
    """Moves constants to the device that the graph would copy there in each call: `torch.tensor([1.0]).to(x.device)`.

    Args:
        module: a graph of AOTAutograd.
        on_device: whether a node has a tensor of the device.
    """
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_aten._to_copy.default):
        lifted = source = node.args[0]
        if source.target is _aten.lift_fresh_copy.default:
            source = source.args[0]
        if source.op != "get_attr" or not on_device(node):
            continue
        constant = operator.attrgetter(source.target)(module)
        if not isinstance(constant, torch.Tensor) or constant.dim() == 0:  # a number becomes a parameter
            continue
        with _disable_current_modes():
            moved = _aten._to_copy.default(constant, **node.kwargs)
        name = f"_moved_{node.name}"
        module.register_buffer(name, moved, persistent=False)
        with graph.inserting_before(node):
            there = graph.get_attr(name)
            there.meta = dict(node.meta)
            # the graph may return it, and the caller may modify it
            copy = graph.call_function(_aten.clone.default, (there,))
        copy.meta = dict(node.meta)
        node.replace_all_uses_with(copy)
        graph.erase_node(node)
        if lifted is not source and not lifted.users:
            graph.erase_node(lifted)


def move_items(module: fx.GraphModule) -> None:
    """Moves `getitem` calls right behind the nodes that make lists, so that no list leaves a program."""
    for node in module.graph.nodes:
        if isinstance(node.meta.get("val"), list | tuple):
            for user in reversed(node.users):
                if user.target is operator.getitem:
                    node.append(user)
