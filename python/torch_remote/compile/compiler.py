"""`torch.compile(backend="remote")`.

Dynamo captures a graph, AOTAutograd makes a functional forward and backward graph of it, and each becomes an ir::Graph
(frontend/compile/lowering.h) and then a program, by the passes that recorded traces go through. A call sends the
program's parameters: one message. Sizes that Dynamo left symbolic are parameters, so other sizes build nothing.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.utils._python_dispatch import _disable_current_modes

import torch_remote.compile.random_states as random_states
from torch_remote import _C
from torch_remote.compile.plan import PlanBuilder
from torch_remote.compile.rewrites import move_constants, remove_checks, remove_tokens
from torch_remote.compile.whole_ops import whole_ops
from torch_remote.remote import _device, amp, memory, streams

__all__ = ["backend"]

log = logging.getLogger(__name__)

# Names that `options=` may have, all bools, with what each says.
OPTIONS: dict[str, str] = {
    "low_latency": "client and worker wait busily, up to a millisecond, for what comes next: calls are cheaper and "
    "answered sooner, for some of a core",
    "tune": "the worker times the first runs with one and with several threads and keeps the faster for each op; last "
    "bits may then differ between processes",
    "verify": "check the FX graph (torch.fx.Graph.lint) before it is compiled",
}
# What torch.compile's modes ask for. (Inductor's CUDA graphs are what makes calls cheap there.)
MODES: dict[str, dict[str, bool]] = {
    "default": {},
    "reduce-overhead": {"low_latency": True},
    "max-autotune": {"low_latency": True, "tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}


class RemoteInterface(DeviceInterface):
    """What Dynamo asks a device."""

    device = _device.device
    Event = streams.Event
    Stream = streams.Stream

    current_device = staticmethod(_device.current_device)
    set_device = staticmethod(_device.set_device)
    device_count = staticmethod(_device.device_count)
    is_available = staticmethod(_device.is_available)
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(_device.synchronize)
    get_device_properties = staticmethod(_device.get_device_properties)
    memory_allocated = staticmethod(memory.memory_allocated)
    is_bf16_supported = staticmethod(amp.is_bf16_supported)

    class Worker:
        set_device = staticmethod(_device.set_device)
        current_device = staticmethod(_device.current_device)
        get_device_properties = staticmethod(_device.get_device_properties)

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = _device.current_device()
        if device >= 0:
            _device.set_device(device)
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
    for index in range(_device.device_count()):
        register_interface_for_device(f"remote:{index}", RemoteInterface)


@dataclass(frozen=True)
class ProgramOptions:
    """See OPTIONS."""

    low_latency: bool = False
    tune: bool = False


def _check_options(mode: str | None, options: dict[str, Any] | None) -> dict[str, bool]:
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='remote'): mode={mode!r} is unknown; use one of {', '.join(MODES)}")
    for name, value in (options or {}).items():
        if name not in OPTIONS:
            known = "; ".join(f"{option} ({text})" for option, text in OPTIONS.items())
            raise ValueError(f"torch.compile(backend='remote'): options has an unknown name {name!r}; known: {known}")
        if not isinstance(value, bool):
            raise TypeError(f"torch.compile(backend='remote'): options[{name!r}] must be True or False, got {value!r}")
    return {**MODES[mode or "default"], **(options or {})}


class _Splitter:
    """Turns an FX graph into programs and, where it must be, what runs between them in this process.

    A node that no program can hold (another device, results whose size depends on data, numbers for Python, higher
    order operators) is called as eager code would call it. Nodes keep their order, but for those that have nothing to
    do with the device: they run before the program that is being built, or after it if they write.
    """

    def __init__(self, module: fx.GraphModule, guarded: bool, options: ProgramOptions) -> None:
        self.module = module
        self.guarded = guarded
        self.options = options
        self.plan = PlanBuilder()
        self.values: dict[fx.Node, None] = {}  # what a call has, beside the results of the program
        self.numbers: dict[fx.Node, None] = {}  # that follow from the sizes of values; a call computes them if needed
        self.constants: dict[fx.Node, torch.Tensor] = {}  # 0-dim, on the CPU
        # The same at every call; with a copy on the CPU of what a worker holds, and might lose.
        self.fixed: dict[fx.Node, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.effects = False  # whether the plan has something that must run
        self.parts = 0  # programs, and ops on the device that run outside of them
        self.several = _device.device_count() > 1
        self.device = _device.current_device()  # of the program at hand
        self.begin()

    def begin(self) -> None:
        self.program = _C.Lowering(self.device, self.guarded)
        self.members: dict[fx.Node, None] = {}  # of the program
        self.inner_numbers: dict[fx.Node, None] = {}  # that follow from the sizes of members
        self.later: dict[fx.Node, None] = {}  # that write to the CPU's tensors
        self.written: set[fx.Node] = set()  # those tensors, and the nodes of `later`
        for node in self.values:
            self.offer(node)
        for node in self.numbers:
            self.program.offer(node, tells_size=False)

    def offer(self, node: fx.Node) -> None:
        if node in self.constants:
            self.program.constant(node, self.constants[node])
        else:
            self.program.offer(node)

    def run(self) -> Callable[[list[Any]], Any]:
        remove_checks(self.module)
        remove_tokens(self.module, _on_device)
        move_constants(self.module, _on_device)
        random_states.add_examples(self.module)
        nodes = self.module.graph.nodes
        arguments: dict[fx.Node, int] = {}
        for node in nodes:
            if node.op == "placeholder":
                arguments[node] = len(arguments)
                self.plan.input(node)
                self.have(node)
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.take(node)
        results: Any = self.module.graph.output_node().args[0]
        if self.is_whole(arguments, results):
            compiled = self.finish(list(results), {**arguments, **self.fixed})
            compiled._boxed_call = True  # it takes its arguments out of a list
            _C.count_compiled_graph(0)
            return compiled
        self.close()
        fx.map_arg(results, self.need)
        _C.count_compiled_graph(max(self.parts - 1, 0))
        return self.plan.finish(results)

    def finish(self, outputs: list[Any], places: dict[fx.Node, Any] | None) -> Any:
        return self.program.finish(outputs, places, low_latency=self.options.low_latency, tune=self.options.tune)

    def is_whole(self, arguments: dict[fx.Node, int], results: Any) -> bool:
        """Whether the program is all that there is to do."""
        if self.effects or self.later or not isinstance(results, list | tuple):
            return False
        if not all(self.program.returns(node) for node in results if isinstance(node, fx.Node)):
            return False
        return all(node in arguments or node in self.fixed for node in self.program.inputs)

    def add(self, node: fx.Node) -> bool:
        if node.op != "call_function" or not self.program.add(node):
            return False
        self.members[node] = None
        return True

    def take(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        if self.several:
            self.go_to(next((index for n in (node, *inputs) for index in _devices(n)), self.device))
        if any(i in self.written for i in inputs):
            self.close()
        if type(node.meta.get("val")) in _NUMBERS and not _reads_data(node):
            if self.needs_program(inputs):
                self.inner_numbers[node] = None
            else:
                self.numbers[node] = None
                self.program.offer(node, tells_size=False)
            return
        if self.add(node):
            return
        reason = self.program.why_not if node.op == "call_function" else node.op
        needs = self.needs_program(inputs)
        written = _written(node)
        near = _on_device(node) or any(_on_device(i) for i in inputs)
        if written and not needs and not near:
            self.later[node] = None
            self.written.update([node, *written])
            return
        effect = bool(written) or isinstance(node.target, torch._ops.HigherOrderOperator)
        if needs or effect or (near and node.op != "get_attr"):
            log.debug("a program ends before %s: %s", node.format_node(), reason)
            self.close()
            if self.add(node):  # it only could not be in the program before
                return
        log.debug("%s runs outside of a program: %s", node.format_node(), reason)
        self.parts += near
        self.emit(node, effect)

    def needs_program(self, inputs: list[fx.Node]) -> bool:
        """Whether one of them is computed by the program at hand, and by nothing else."""
        return any((i in self.members and not self.program.is_host(i)) or i in self.inner_numbers for i in inputs)

    def go_to(self, device: int) -> None:
        """A program is on one device."""
        if device != self.device:
            self.close()
            self.device = device
            self.begin()

    def have(self, node: fx.Node) -> None:
        self.values[node] = None
        self.offer(node)

    def emit(self, node: fx.Node, effect: bool = False) -> None:
        """Has a call compute it in Python."""
        target: Any = node.target
        args, kwargs = node.args, node.kwargs
        fx.map_arg((args, kwargs), self.need)
        if node.op == "get_attr":
            target, args = self.attribute(node), ()
        elif target in _OURS:
            target = _OURS[target]
        elif target is torch.ops.prims.convert_element_type.default:  # the same, but Python: some 30 µs
            target, args, kwargs = torch.ops.aten._to_copy.default, args[:1], {"dtype": args[1]}
        must = effect or node.is_impure()
        self.effects |= must
        self.plan.call(node, target, args, kwargs, must=must)
        self.have(node)

    def attribute(self, node: fx.Node) -> Callable[[], Any]:
        """What gives the module's attribute that a node stands for."""
        value = operator.attrgetter(str(node.target))(self.module)
        if not isinstance(value, torch.Tensor):
            return lambda: value
        if value.device.type == "remote":
            with _disable_current_modes():
                copy = value.cpu()
            self.fixed[node] = value, copy
            return functools.partial(_C.restored, value, copy)
        self.fixed[node] = value, None
        if value.device.type == "cpu" and value.dim() == 0:
            self.constants[node] = value
        return lambda: value

    def need(self, node: fx.Node) -> None:
        if node not in self.values:  # a number, or one of the CPU's that a program computes for itself
            self.emit(node)

    def close(self) -> None:
        """Ends the program; the plan calls it."""
        for node in list(self.members):
            if isinstance(node.meta.get("val"), list | tuple):
                for user in node.users:
                    if user.target is operator.getitem and user not in self.members and self.program.add(user):
                        self.members[user] = None
        if len(self.program) > 0 and any(not self.program.is_host(node) for node in self.members):
            self.call()
        for node in self.later:
            self.emit(node, effect=True)
        self.numbers.update(self.inner_numbers)
        self.begin()

    def call(self) -> None:
        outputs = [
            node
            for node in self.members
            if not isinstance(node.meta.get("val"), list | tuple)
            and any(user not in self.members for user in node.users)
            and self.program.returns(node)
        ]
        compiled = self.finish(outputs, None)
        self.parts += 1
        inputs = list(self.program.inputs)
        for node in inputs:
            self.need(node)
        self.plan.program(compiled, inputs, outputs)
        self.effects = True
        for node in outputs:
            self.values[node] = None


# What runs outside of programs in place of torch's own.
_OURS = {run_and_save_rng_state: random_states.run_and_save, run_with_rng_state: random_states.run_with}
_NUMBERS = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _devices(node: fx.Node) -> list[int]:
    """Of its tensors, as far as they are on our devices."""
    value = node.meta.get("val")
    tensors = [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, torch.Tensor)]
    return [_device._index(v.device) for v in tensors if v.device.type == "remote"]


def _on_device(node: fx.Node) -> bool:
    return bool(_devices(node))


def _written(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors it changes."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    found: list[fx.Node] = []
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            fx.map_arg(value, found.append)
    return found


def _reads_data(node: fx.Node) -> bool:
    """Whether a number comes out of a tensor's elements, not of its sizes."""
    tensors = any(isinstance(i.meta.get("val"), torch.Tensor) for i in node.all_input_nodes)
    return tensors and not (isinstance(node.target, torch._ops.OpOverload) and "sym_" in node.target.name())


def compile_graph(
    module: fx.GraphModule, *, guarded: bool, options: ProgramOptions = ProgramOptions()
) -> Callable[[list[Any]], Any]:
    """A functional graph of ATen ops, each node with its example value in meta["val"], as a function of a list, which
    it empties. `guarded`: it is called only with sizes in the ranges that its ShapeEnv knows."""
    return _Splitter(module, guarded, options).run()


@functools.cache
def _with_aot(options: ProgramOptions) -> Callable[..., Any]:
    def compile_(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(module, guarded=True, options=options)

    return aot_autograd(
        fw_compiler=compile_,
        bw_compiler=compile_,
        inference_compiler=compile_,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


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
        mode: one of MODES: some of the options.
        options: by names of OPTIONS.

    Raises:
        ValueError: an unknown mode or option; the message lists what is known.
        TypeError: an option that is no bool.
    """
    chosen = _check_options(mode, options)
    if chosen.pop("verify", False):
        graph.graph.lint()
    with whole_ops():
        return _with_aot(ProgramOptions(**chosen))(graph, example_inputs)


_register_interfaces()
