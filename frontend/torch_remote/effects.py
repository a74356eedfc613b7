"""Effects of ops of programs: AOTAutograd keeps ops with effects in order by tokens; a program keeps all of its ops so."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.fx as fx

from torch_remote import _C

__all__ = ["without_tokens"]


def without_tokens(module: fx.GraphModule, on_device: Callable[[fx.Node], bool]) -> None:
    """Calls ops of the device as they are, where the graph calls them through `with_effects`.

    Args:
        module: changed in place; a token that such a call gave becomes the token that it was given.
        on_device: whether a node has a tensor of the device.
    """
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, op, *args = node.args
        if not isinstance(op, torch._ops.OpOverload) or not _C.is_whole_op(op):
            continue
        if not any(map(on_device, node.all_input_nodes)) or any(u.target is not operator.getitem for u in node.users):
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
