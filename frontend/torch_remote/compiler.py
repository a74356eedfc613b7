"""`torch.compile(backend="remote")`.

Dynamo captures a graph, AOTAutograd makes a functional forward and backward graph of it, and each becomes an ir::Graph
(frontend/lowering.h) and then a program, by the passes that recorded traces go through. A call sends the program's
parameters: one message. Sizes that Dynamo left symbolic are parameters, so other sizes build nothing.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

import torch_remote.remote as remote
from torch_remote import _C

__all__ = ["backend"]

log = logging.getLogger(__name__)

# Modes that torch.compile knows. Programs are cached by structure in all of them, and none asks for more.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Names that `options=` may have, with what each says.
OPTIONS: dict[str, str] = {
    "verify": "bool: check the FX graph (torch.fx.Graph.lint) before it is compiled",
}


class RemoteInterface(DeviceInterface):
    """What Dynamo asks a device."""

    device = remote.device
    Event = remote.Event
    Stream = remote.Stream

    current_device = staticmethod(remote.current_device)
    set_device = staticmethod(remote.set_device)
    device_count = staticmethod(remote.device_count)
    is_available = staticmethod(remote.is_available)
    stream = staticmethod(remote.stream)
    current_stream = staticmethod(remote.current_stream)
    set_stream = staticmethod(remote.set_stream)
    synchronize = staticmethod(remote.synchronize)
    get_device_properties = staticmethod(remote.get_device_properties)
    memory_allocated = staticmethod(remote.memory_allocated)
    is_bf16_supported = staticmethod(remote.is_bf16_supported)

    class Worker:
        set_device = staticmethod(remote.set_device)
        current_device = staticmethod(remote.current_device)
        get_device_properties = staticmethod(remote.get_device_properties)

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = remote.current_device()
        if device >= 0:
            remote.set_device(device)
        return previous

    maybe_exchange_device = exchange_device

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        return 0

    @staticmethod
    def get_compute_capability(device: Any = None) -> int:
        return 0

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True


def _register_interfaces() -> None:
    register_interface_for_device("remote", RemoteInterface)
    for index in range(remote.device_count()):
        register_interface_for_device(f"remote:{index}", RemoteInterface)


def _check_options(mode: str | None, options: dict[str, Any] | None) -> dict[str, Any]:
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='remote'): mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    for name in options or {}:
        if name not in OPTIONS:
            known = "; ".join(f"{option} ({text})" for option, text in OPTIONS.items())
            raise ValueError(f"torch.compile(backend='remote'): options has an unknown name {name!r}; known: {known}")
    return dict(options or {})


class _Splitter:
    """Turns an FX graph into programs and, where it must be, what runs between them in this process.

    A node that no program can hold (another device, results whose size depends on data, numbers for Python, higher
    order operators) is called as eager code would call it. Nodes keep their order, but for one that has nothing to do
    with the device: it runs before the program that is being built.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.outer = fx.Graph(module)
        self.calls: set[fx.Node] = set()  # of programs
        self.values: dict[fx.Node, fx.Node] = {}  # what the outer graph has, by the module's nodes
        self.begin()

    def begin(self) -> None:
        self.program = _C.Lowering(remote.current_device())
        self.members: dict[fx.Node, None] = {}  # of the program
        self.numbers: dict[fx.Node, None] = {}  # that follow from the sizes of members
        for node in self.values:
            self.program.offer(node)

    def run(self) -> Callable[..., Any]:
        nodes = self.module.graph.nodes
        for node in nodes:
            if node.op == "placeholder":
                self.emit(node)
        arguments = {node: i for i, node in enumerate(self.values)}
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.take(node)
        results = self.module.graph.output_node().args[0]
        if len(self.values) == len(arguments) and isinstance(results, list | tuple):
            compiled = self.program.finish(list(results), arguments)
            compiled._boxed_call = True  # it takes its arguments out of a list
            return compiled
        self.close()
        self.outer.output(fx.map_arg(results, self.outer_node))
        self.outer.eliminate_dead_code(is_impure_node=lambda node: node in self.calls or node.is_impure())
        return make_boxed_func(fx.GraphModule(self.module, self.outer).forward)

    def take(self, node: fx.Node) -> None:
        if node.op == "call_function" and self.program.add(node):
            self.members[node] = None
            return
        reason = self.program.why_not if node.op == "call_function" else node.op
        if any(i in self.members or i in self.numbers for i in node.all_input_nodes):
            if isinstance(
                node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
            ) and not _reads_data(node):
                self.numbers[node] = None
                return
            self.close()
        elif _writes(node) or _on_device(node) or any(_on_device(i) for i in node.all_input_nodes):
            if node.op != "get_attr":
                self.close()
        if node.op == "call_function" and not self.members and self.program.add(node):
            self.members[node] = None  # it only could not be in the program before
            return
        log.debug("%s runs outside of a program: %s", node.format_node(), reason)
        self.emit(node)

    def emit(self, node: fx.Node) -> None:
        self.values[node] = self.outer.node_copy(node, self.outer_node)
        self.program.offer(node)

    def outer_node(self, node: fx.Node) -> fx.Node:
        return self.values[node]

    def close(self) -> None:
        """Ends the program; the outer graph calls it."""
        for node in list(self.members):
            if isinstance(node.meta.get("val"), list | tuple):
                for user in node.users:
                    if user.target is operator.getitem and user not in self.members and self.program.add(user):
                        self.members[user] = None
        if len(self.program) == 0:  # nothing but views
            emitted = [*self.members, *self.numbers]
            emitted.sort()
            for node in emitted:
                self.values[node] = self.outer.node_copy(node, self.outer_node)
            self.begin()
            return
        outputs = [
            node
            for node in self.members
            if not isinstance(node.meta.get("val"), list | tuple) and any(u not in self.members for u in node.users)
        ]
        compiled = self.program.finish(outputs, None)

        def program(arguments: list[Any]) -> list[Any]:
            return compiled(arguments)

        call = self.outer.call_function(program, ([self.values[node] for node in self.program.inputs],))
        self.calls.add(call)
        for i, node in enumerate(outputs):
            self.values[node] = self.outer.call_function(operator.getitem, (call, i))
        for node in self.numbers:
            self.values[node] = self.outer.node_copy(node, self.outer_node)
        self.begin()


def _on_device(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.device.type == "remote" for v in values)


def _writes(node: fx.Node) -> bool:
    return not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable


def _reads_data(node: fx.Node) -> bool:
    """Whether a number comes out of a tensor's elements, not of its sizes."""
    tensors = any(isinstance(i.meta.get("val"), torch.Tensor) for i in node.all_input_nodes)
    return tensors and not (isinstance(node.target, torch._ops.OpOverload) and "sym_" in node.target.name())


def _compile(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return _Splitter(module).run()


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured.

    Args:
        graph: as Dynamo gives it; sizes that it does not specialise are SymInts.
        example_inputs: fake tensors, and SymInts.
        mode: one of MODES; all mean the same here.
        options: names of OPTIONS.

    Raises:
        ValueError: an unknown mode or option; the message lists what is known.
    """
    if _check_options(mode, options).get("verify"):
        graph.graph.lint()
    return _AOT(graph, example_inputs)


_AOT = aot_autograd(
    fw_compiler=_compile,
    bw_compiler=_compile,
    inference_compiler=_compile,
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
)

_register_interfaces()
