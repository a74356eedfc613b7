"""`torch.compile(backend="remote")`.

Dynamo captures a graph, and AOTAutograd derives a functional forward and backward graph. Each of them becomes an
ir::Graph (frontend/compile/lowering.h) and then a program, by the passes that recorded traces go through. A call sends
only the program's parameters, in one message. Sizes that Dynamo left symbolic are parameters, so new sizes do not build
a program.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from torch_remote import _C
from torch_remote.compile import random_states
from torch_remote.compile.classify import NodePlacement, classify, devices, on_device, table
from torch_remote.compile.plan import UnsupportedNode, make_plan
from torch_remote.compile.rewrites import move_constants, move_items, remove_checks, remove_tokens
from torch_remote.compile.segment import segment
from torch_remote.compile.undecomposed_ops import undecomposed_ops
from torch_remote.device import _device, amp, memory, streams
from torch_remote.profiling.explanation import note_graph

__all__ = ["backend"]

log = logging.getLogger(__name__)

# Names of `options=`, all bools, and their descriptions.
OPTIONS: dict[str, str] = {
    "low_latency": "client and worker spin for up to a millisecond before they sleep, which lowers latency and costs "
    "part of a core",
    "tune": "the worker times the first runs: ops with one and with several threads, groups with several kernels and "
    "op by op; it keeps the fastest choice, for groups also for later processes; the last bits of results may then "
    "differ between processes",
    "verify": "check the FX graph (torch.fx.Graph.lint) before it is compiled",
}
# The options that torch.compile's modes select. (In Inductor, CUDA graphs reduce the cost of calls.)
MODES: dict[str, dict[str, bool]] = {
    "default": {},
    "reduce-overhead": {"low_latency": True},
    "max-autotune": {"low_latency": True, "tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}


class RemoteInterface(DeviceInterface):
    """Answers Dynamo's queries about the device."""

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


def compile_graph(
    module: fx.GraphModule, *, guarded: bool, options: ProgramOptions = ProgramOptions()
) -> Callable[[list[Any]], Any]:
    """Compiles a functional graph of ATen ops to a function of a list of inputs; the function empties the list. It runs
    programs and, where necessary, other ops between them in this process.

    Args:
        module: the graph; each node has its example value in meta["val"].
        guarded: the graph is called only with sizes in the ranges of its ShapeEnv.
        options: the options of the programs.
    """

    def finish_program(lowering: _C.Lowering, outputs: list[Any], places: dict[fx.Node, Any] | None) -> Any:
        return lowering.finish(outputs, places, low_latency=options.low_latency, tune=options.tune)

    remove_checks(module)
    remove_tokens(module, devices)
    move_constants(module, on_device)
    move_items(module)
    random_states.add_examples(module)
    results: Any = module.graph.output_node().args[0]
    made: Any
    cuts: set[fx.Node] = set()
    refused: dict[fx.Node, str] = {}
    while True:
        classes = classify(module, guarded=guarded, refused=refused)
        steps = segment(classes.of, cuts)
        try:
            made, parts = make_plan(classes, steps, results, guarded=guarded, finish_program=finish_program)
            break
        except UnsupportedNode as refusal:  # the segment's program refused the node; a program with all nodes would not
            if refusal.node in cuts:
                refused[refusal.node] = refusal.why
            cuts.add(refusal.node)
    for node, its in classes.of.items():
        if its.where is NodePlacement.OUTSIDE:
            log.debug("%s runs outside of a program: %s", node.format_node(), its.why)
    note_graph(lambda: table(classes))
    made._boxed_call = True  # AOTAutograd then passes the arguments in a list
    _C.count_compiled_graph(max(parts - 1, 0))
    return made


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
        graph: the graph from Dynamo; sizes that it did not specialize are SymInts.
        example_inputs: fake tensors, and SymInts.
        mode: one of MODES; selects some of the options.
        options: values by the names of OPTIONS.

    Raises:
        ValueError: the mode or an option is unknown; the message lists the known ones.
        TypeError: an option is not a bool.
    """
    chosen = _check_options(mode, options)
    if chosen.pop("verify", False):
        graph.graph.lint()
    with undecomposed_ops():
        return _with_aot(ProgramOptions(**chosen))(graph, example_inputs)


_register_interfaces()
