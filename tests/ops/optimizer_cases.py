"""Compares optimizers of torch's optim_db on the device with CPU: parameters and state after some steps, in all ways to
call them.

    bazel run //tests/ops:optimizers -- --only Adam        prints differences
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from harness import attempt, copy_tree, difference, seed_all, some_gradient, synchronize, too_far
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db
from torch.utils._pytree import tree_map

STEPS = 6
OPTIMIZERS = {info.name: info for info in optim_db}
IMPLEMENTATIONS = ("default", "loop", "foreach", "fused", "differentiable")
# Whether generated kernels run, whose rounding differs from CPU. Op by op, results equal CPU's bit for bit.
FUSED = os.environ.get("TORCH_REMOTE_FUSION") != "0"
# Relative to the largest element of a tensor. Tensor-valued steps and learning rates are float32.
ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-7, torch.bfloat16: 0.05, torch.complex64: 1e-4}
ROUNDING_OF_LBFGS = {torch.float32: 1e-2, torch.float64: 1e-6, torch.complex64: 1e-2}
KINDS = {
    "dense": torch.float32,
    "double": torch.float64,
    "half": torch.bfloat16,
    "complex": torch.complex64,
    "sparse": torch.float32,
}


@dataclass(frozen=True)
class Case:
    name: str  # of the optimizer
    options: str  # the sample's description
    implementation: str
    kind: str  # of parameters and gradients

    def __str__(self) -> str:
        return f"{self.name}, {self.options}, {self.implementation}, {self.kind}"

    @property
    def info(self) -> OptimizerInfo:
        return OPTIMIZERS[self.name]

    def arguments(self, device: torch.device) -> dict[str, Any]:
        (given,) = (sample.kwargs for sample in samples(self.info) if sample.desc == self.options)
        arguments = deepcopy(given)
        if self.kind == "sparse":
            arguments = {**self.info.metadata_for_sparse[0], **arguments}
        if self.implementation != "default" and "foreach" in self.info.supported_impls:
            arguments["foreach"] = self.implementation == "foreach"
        if self.implementation in ("fused", "differentiable"):
            arguments[self.implementation] = True
        if arguments.get("capturable") or self.implementation == "fused":
            arguments = copy_tree(arguments, device)
        return arguments


@contextmanager
def as_on_devices() -> Iterator[None]:
    """Makes CPU behave as devices do in torch: steps are tensors, and `foreach` is the default."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            for function in ("_get_capturable_supported_devices", "_get_foreach_kernels_supported_devices"):
                if name.startswith("torch.optim.") and hasattr(module, function):
                    stack.enter_context(mock.patch.object(module, function, lambda *_, **__: ["cpu", "remote"]))
        yield


def samples(info: OptimizerInfo) -> list[Any]:
    """Samples including torch's CUDA ones, with unique descriptions."""
    found: dict[str, Any] = {}
    for sample in info.optim_inputs_func("cuda"):
        desc, count = sample.desc, 2
        while sample.desc in found:
            sample.desc, count = f"{desc} {count}", count + 1
        found[sample.desc] = sample
    return list(found.values())


def cases() -> Iterator[Case]:
    for name, info in OPTIMIZERS.items():
        kinds = ["dense", "double", "half"]
        kinds = ["sparse"] if info.only_supports_sparse_grads else kinds
        kinds += ["complex"] if info.supports_complex else []
        kinds += ["sparse"] if info.supports_sparse else []
        implementations = ["default"]
        if "foreach" in info.supported_impls:
            implementations += ["loop", "foreach"]
        implementations += [name for name in ("fused", "differentiable") if name in info.supported_impls]
        if FUSED and info.step_requires_closure:
            kinds.remove("half")  # rounding determines the result of LBFGS in half types
        for sample in samples(info):
            for kind in kinds:
                for implementation in implementations if kind == "dense" else implementations[:1]:
                    yield Case(name, sample.desc, implementation, kind)
                if kind in ("complex", "double") and "foreach" in implementations:
                    yield Case(name, sample.desc, "foreach", kind)


# -- what is optimised -----------------------------------------------------------------------------------------------


def values(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameters(case: Case, device: torch.device) -> list[torch.nn.Parameter]:
    """Parameters with several layouts and sizes."""
    dtype = KINDS[case.kind]
    if case.name == "Muon" or case.kind == "sparse":
        shapes: list[tuple[int, ...]] = [(5, 4), (3, 7), (4, 4)]
    else:
        shapes = [(5, 4), (7,), (), (2, 3, 4), (2, 3, 2, 2), (0, 3)]
    if case.name == "Adafactor":
        shapes.remove((0, 3))  # the mean of an empty tensor fails, on CPU, too
    made = []
    for i, shape in enumerate(shapes):
        packed = case.info.step_requires_closure  # LBFGS concatenates all parameters
        value = values(*shape, seed=i, dtype=dtype)
        if len(shape) == 3 and not packed:
            value = value.transpose(0, 2).contiguous().transpose(0, 2)
        if len(shape) == 4 and not packed:
            value = value.contiguous(memory_format=torch.channels_last)
        made.append(torch.nn.Parameter(value.to(device)))
    return made


def gradient(case: Case, parameter: torch.Tensor, index: int, step: int) -> torch.Tensor | None:
    """Some parameters lack a gradient in some steps; one has zeros at first."""
    first = case.implementation == "fused"  # fused optimizers need momentum for all parameters or none
    if (index, step) in ((1, first), (1, 3), (2, 2)):
        return None
    shape = tuple(parameter.shape)
    value = values(*shape, seed=100 + 10 * step + index, dtype=parameter.dtype)
    if index == 0 and step == 0 and case.kind != "sparse":
        value.zero_()
    if case.kind == "sparse":
        rows = torch.tensor([[0, 2, 0]])  # a duplicate row, so it is not coalesced
        return torch.sparse_coo_tensor(rows, value[:3], shape).to(parameter.device)
    return torch.empty_strided(shape, parameter.stride(), dtype=parameter.dtype).copy_(value).to(parameter.device)


def groups(case: Case, made: list[torch.nn.Parameter]) -> Any:
    if not case.info.supports_param_groups:
        return made
    own = {"lr": 0.02} if case.implementation != "foreach" else {}
    return [{"params": made[:2]}, {"params": made[2:], **own}]


def with_closure(optimizer: torch.optim.Optimizer, made: list[torch.nn.Parameter]) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum(((p - 0.5).abs() ** 2 * (1 + i)).sum() + (p.abs() ** 4).sum() for i, p in enumerate(made))
        loss.backward()
        return loss

    return closure


def change_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor


def through_file(state: Any, device: torch.device | str) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=True)


def run(case: Case, device: torch.device, steps: int = STEPS) -> dict[str, Any]:
    """Runs some steps, changes the learning rates in between, and saves the state and loads it into another
    optimizer."""
    seed_all()
    leaves = made = parameters(case, device)
    if case.implementation == "differentiable":
        made = [leaf.clone() for leaf in leaves]
    arguments = case.arguments(device)

    def make() -> torch.optim.Optimizer:
        return case.info.optim_cls(groups(case, made), **arguments)

    optimizer = make()
    scheduler = None
    if not isinstance(arguments.get("lr"), torch.Tensor):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    losses = []
    for step in range(steps):
        if step == STEPS // 2 and case.implementation != "differentiable":
            state = through_file(optimizer.state_dict(), "cpu" if case.implementation == "default" else device)
            optimizer = make()
            optimizer.load_state_dict(state)
            scheduler = None
        if case.info.step_requires_closure:
            losses.append(optimizer.step(with_closure(optimizer, made)).detach())
        else:
            for i, parameter in enumerate(made):
                parameter.grad = gradient(case, parameter, i, step)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        elif step == STEPS - 2:
            change_rates(optimizer, 0.5)
    if case.implementation == "differentiable":  # backpropagates through all steps
        torch.autograd.backward(made, [some_gradient(p) for p in made])
    synchronize(device)
    return {
        "parameters": [p.detach() for p in made],
        "gradients": [leaf.grad for leaf in leaves],
        "state": tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, optimizer.state_dict()["state"]),
        "losses": losses,
    }


@dataclass
class Tally:
    failures: list[str] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # refused by CPU, too


def check(case: Case, device: torch.device, tally: Tally) -> None:
    for steps in (STEPS, 1):  # not every optimizer can be differentiated through more than one step
        with as_on_devices():
            want, refused = attempt(lambda steps=steps: run(case, torch.device("cpu"), steps))
        got, error = attempt(lambda steps=steps: run(case, device, steps))
        if error is not None:
            attempt(lambda: synchronize(device))
        if refused is None or type(refused) is not type(error) or case.implementation != "differentiable":
            break
    if refused is not None:
        tally.refused.add(str(case))
        if type(error) is not type(refused) or beginning(error) != beginning(refused):
            tally.failures.append(f"{case}: {error!r}, on CPU {refused!r}")
        return
    if error is not None:
        tally.failures.append(f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
        return
    if FUSED and case.info.step_requires_closure:  # the number of iterations of LBFGS depends on rounding
        got, want = ({"parameters": found["parameters"]} for found in (got, want))
    exact = not FUSED and case.kind != "sparse"  # duplicate rows of sparse gradients are added in another order
    text = difference(got, want, "after it", values=exact)
    text = text or difference(got["parameters"], want["parameters"], "parameters", values=False, device=device)
    if not text and not exact:
        text = too_far(got, want, ROUNDING_OF_LBFGS if len(got) == 1 else ROUNDING)
    tally.compared.add(str(case))
    if text:
        tally.failures.append(f"{case}: {text}")


def beginning(error: Exception | None) -> str:
    """The message without names of types, which differ on a device."""
    return str(error).split("[")[0].split("\n")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if args.device != "cpu":
        import torch_remote  # noqa: F401
    tally = Tally()
    for case in cases():
        if args.only in str(case):
            before = len(tally.failures)
            check(case, torch.device(args.device), tally)
            for text in tally.failures[before:]:
                print(f"FAIL {text}", flush=True)
    print(f"{len(tally.failures)} differ; compared {len(tally.compared)}; CPU refuses {sorted(tally.refused)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
