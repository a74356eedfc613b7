"""torch.compile(model) without a backend: graphs on this device are compiled by backend="remote".

Torch hard-codes Inductor as torch.compile's default backend. It generates code for the device types that it knows and
otherwise fails (KeyError: 'remote'). All of its paths lead through _inductor/compile_fx.py, compile_fx.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

import torch

from torch_remote.integrations.upstream import existing, replace

__all__ = ["bridge"]

log = logging.getLogger(__name__)

# torch.compile's modes arrive as Inductor's settings. This maps them to our options.
OPTIONS = {"triton.cudagraphs": "low_latency", "max_autotune": "tune"}
# Other settings of modes; they have no meaning here.
IGNORED = {"coordinate_descent_tuning"}


def bridge(module: ModuleType) -> None:
    """Changes torch._inductor.compile_fx."""
    (original,) = existing(module, "compile_fx")

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_device(model_, example_inputs_):
            return original(model_, example_inputs_, *args, **kwargs)
        from torch_remote.compile.compiler import backend

        settings = kwargs.get("config_patches") or {}
        options = {ours: True for theirs, ours in OPTIONS.items() if settings.get(theirs)}
        unknown = sorted(settings.keys() - OPTIONS.keys() - IGNORED)
        if unknown:
            log.warning(
                "remote: torch.compile's options %s are Inductor's; backend='remote', which compiles this graph, "
                "ignores them",
                ", ".join(unknown),
            )
        return backend(model_, example_inputs_, options=options)

    replace(module, "compile_fx", compile_fx)


def _on_device(graph: Any, inputs: Any) -> bool:
    """Whether a graph from Dynamo takes or makes a tensor on the device."""
    values = list(inputs)
    if isinstance(graph, torch.fx.GraphModule):
        values += [node.meta.get("example_value") for node in graph.graph.nodes]
        values += [*graph.parameters(), *graph.buffers()]
    return any(isinstance(value, torch.Tensor) and value.device.type == "remote" for value in values)
