"""`torch.remote.load_exported`: programs of torch.export on the device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
import torch.utils._pytree as pytree
from torch._export.utils import (
    _check_input_constraints_for_graph,
    _collect_all_valid_cia_ops,
    _get_decomp_for_cia,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.export.passes import move_to_device_pass

from torch_remote.compile.compiler import compile_graph
from torch_remote.compile.undecomposed_ops import keep_undecomposed
from torch_remote.device import _device

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class ExportedModule(torch.nn.Module):
    """An ExportedProgram as one program of the device. It is called like the exported module; inference only.

    Sizes that were exported as dynamic may differ from call to call, without a new program. Its state_dict has the
    exported parameters and buffers.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        # Names with two underscores: the exported module's parameters and submodules may have any other.
        self.__signature = program.graph_signature
        self.__call_spec = program.call_spec
        self.__constraints = program.range_constraints
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        self.__user_nodes = []
        # By placeholder: the exported name, and the module that has the tensor under the name's last part. None: a
        # user's input. Tensors are looked up in each call, because load_state_dict(assign=True) replaces them.
        self.__state: list[tuple[str, torch.nn.Module] | None] = []
        for node, spec in zip(nodes, self.__signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.__user_nodes.append(node)
                self.__state.append(None)
            elif spec.kind in _STATE:
                self.__state.append((spec.target, self.__hold(program, spec)))
            else:
                raise NotImplementedError(
                    f"torch.remote.load_exported: the program has an input of kind {spec.kind.name} ({spec.target}), "
                    "which is not supported; export a module without it"
                )
        self.__compiled = compile_graph(program.graph_module, guarded=False)

    def __hold(self, program: ExportedProgram, spec: Any) -> torch.nn.Module:
        """Registers a tensor under its exported name. Returns the module that has it."""
        tensor = program.state_dict.get(spec.target)
        if tensor is None:
            tensor = program.constants[spec.target]
        tensor = tensor.detach()
        *path, name = spec.target.split(".")
        owner: torch.nn.Module = self
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        owner.register_buffer(name, tensor, persistent=spec.target in program.state_dict)
        return owner

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Raises:
            ValueError: the arguments have another structure than the exported ones.
            RuntimeError: a size is outside of the exported range, or a tensor is on another device.
        """
        paths, spec = pytree.tree_flatten_with_path((args, self.__in_order(kwargs)))
        if spec != self.__call_spec.in_spec:
            raise ValueError(
                f"torch.remote.load_exported: the program was exported for {_describe(self.__call_spec.in_spec)}, "
                f"but was called with {_describe(spec)}"
            )
        _check_input_constraints_for_graph(self.__user_nodes, paths, self.__constraints)
        given = iter(value for _, value in paths)
        state: dict[str, Any] = {}
        inputs = []
        for entry in self.__state:
            if entry is None:
                inputs.append(next(given))
            else:
                name, owner = entry
                state[name] = getattr(owner, name.rpartition(".")[2])
                inputs.append(state[name])
        results = self.__compiled(inputs)
        outputs = []
        for result, out in zip(results, self.__signature.output_specs, strict=True):
            match out.kind:
                case OutputKind.USER_OUTPUT | OutputKind.LOSS_OUTPUT:
                    outputs.append(result)
                case OutputKind.BUFFER_MUTATION | OutputKind.PARAMETER_MUTATION:
                    state[out.target].copy_(result)
                case OutputKind.USER_INPUT_MUTATION:
                    names = [node.name for node in self.__user_nodes]
                    paths[names.index(out.target)][1].copy_(result)
                case _:
                    raise NotImplementedError(f"torch.remote.load_exported: an output of kind {out.kind.name}")
        return pytree.tree_unflatten(outputs, self.__call_spec.out_spec)

    def __in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        wanted = self.__call_spec.in_spec.child(1).context
        return {name: kwargs[name] for name in wanted} if set(wanted) == set(kwargs) else kwargs


def _describe(spec: pytree.TreeSpec) -> str:
    args, kwargs = spec.child(0), spec.child(1)
    return f"{args.num_children} positional arguments and keywords {sorted(kwargs.context) or 'none'}, as {spec}"


def load_exported(
    program: ExportedProgram | str | os.PathLike[str] | BinaryIO, device: torch.device | str = "remote"
) -> ExportedModule:
    """Puts an exported program on the device.

    Args:
        program: from torch.export.export, or a file that torch.export.save wrote. It is not changed.
        device: the device of the weights.

    Raises:
        NotImplementedError: the program has effects that need this process (tokens, custom objects).
    """
    if torch.device(device).type != "remote":
        raise ValueError(f"torch.remote.load_exported: expected a remote device, got {device}")
    exported = program if isinstance(program, ExportedProgram) else torch.export.load(program)
    # Copies the program without mutations, moves it to the device, and then decomposes ops that torch composes. The
    # order matters, because a composition may differ on the device (attention).
    exported = exported.run_decompositions({})
    exported._state_dict = dict(exported._state_dict)
    exported._constants = dict(exported._constants)
    # with an index, as tensors on the device have one
    exported = move_to_device_pass(exported, f"remote:{_device._index(device)}")
    compositions: dict[Any, Callable[..., Any]] = {op: _get_decomp_for_cia(op) for op in _collect_all_valid_cia_ops()}
    keep_undecomposed(compositions)
    return ExportedModule(exported.run_decompositions(compositions))
