"""`torch.compile(backend="remote")`.

Dynamo captures a graph, AOTAutograd makes a functional forward and backward graph of it, and a call of the compiled
function records the graph's ops as eager code would, without Python's share of eager execution: the program key, the
passes and the session are those of the main path, so sizes that change build nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

import torch_remote.remote as remote

__all__ = ["backend"]

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


def _compile(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(graph.forward)


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
