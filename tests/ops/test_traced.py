"""torch.jit.trace on the device. Every module of torch.nn and every op is traced with some inputs. With other inputs,
and with other batch sizes, the graph must compute what eager code does. If torch's tracer bakes in a part of the
example (sizes that Python reads, data-dependent results), CPU's graph is wrong as well, and nothing is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import module_cases
import pytest
import torch
from harness import (
    attempt,
    chosen,
    copy_tree,
    has_gradient,
    is_random,
    op_name,
    ops_for,
    sections_on_cpu,
    seed_all,
    synchronize,
    too_far,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-9, torch.complex64: 1e-4}
SAMPLES = 3  # per module
PARTS = 8  # of the ops: tests that shards distribute
UNITS = [unit for unit in module_cases.units() if unit.dtype == torch.float32]
OPS = ops_for(torch.float32)
# Minimum number of modules and ops that are compared, for each of `grad` and `no_grad`.
LEAST_MODULES, LEAST_OPS = 125, 440


class Calls(torch.nn.Module):
    """A call as a module: `call` gets the tree with its tensors replaced."""

    def __init__(self, call: Callable[[Any], Any], tree: Any, module: torch.nn.Module | None) -> None:
        super().__init__()
        self.module = module
        self.leaves, self.shape = tree_flatten(tree)
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        others = iter(tensors)
        leaves = [next(others) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        result = tree_flatten(self.call(tree_unflatten(leaves, self.shape)))[0]
        return tuple(leaf for leaf in result if isinstance(leaf, torch.Tensor))


def other_values(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Reverses floating-point tensors, so that values stay valid for the op; other tensors stay."""
    return [t.flip(0) if t.is_floating_point() and t.dim() else t for t in tensors]


def larger_batch(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    size = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
    return [torch.cat((t, t[:1])) if t.dim() and t.shape[0] == size else t for t in tensors]


def run(
    make: Callable[[torch.device], tuple[Callable[[Any], Any], torch.nn.Module | None]],
    tree: Any,
    inputs: list[list[torch.Tensor]],
    device: torch.device,
    grad: bool,
) -> list[tuple[Any, Any]]:
    """Results of the graph and of eager code, for all inputs except the first, which is the example."""
    with torch.set_grad_enabled(grad):
        call, module = make(device)
        calls = Calls(call, tree, module)
        example, *others = copy_tree(inputs, device)
        seed_all()
        traced = torch.jit.trace(calls, tuple(example), check_trace=False, strict=False)
        results = []
        for tensors in others:
            pair = []
            for run_one in (traced, calls):
                seed_all()
                result, error = attempt(lambda run_one=run_one, tensors=tensors: run_one(*tensors))
                if error is None:
                    _, error = attempt(lambda: synchronize(device))
                pair.append(result if error is None else f"{type(error).__name__}: {str(error)[-300:]}")
            results.append(tuple(pair))
        return copy_tree(results, "cpu")


def good(pair: tuple[Any, Any]) -> str | None:
    """Describes how a graph's results differ from those of eager code."""
    got, want = pair
    if isinstance(got, str) or isinstance(want, str):  # error messages
        return None if isinstance(got, str) and isinstance(want, str) else f"{got}, not {want}"
    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in want]:
        return f"sizes {[tuple(t.shape) for t in got]}, not {[tuple(t.shape) for t in want]}"
    return too_far(got, want, ROUNDING)


def check(make: Any, tree: Any, device: torch.device, grad: bool) -> tuple[int, list[str]]:
    """How much was compared, and the differences."""
    tensors = [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]
    inputs = [tensors, *([*map(torch.clone, given(tensors))] for given in (other_values, larger_batch))]
    inputs = [[t.detach().requires_grad_(grad and t.requires_grad) for t in some] for some in inputs]
    on_cpu, refused = attempt(lambda: run(make, tree, inputs, torch.device("cpu"), grad))
    if refused is not None:
        return 0, []
    inputs = [
        inputs[0],
        *(
            some
            for some, its in zip(inputs[1:], on_cpu, strict=True)
            if not isinstance(its[1], str) and good(its) is None
        ),
    ]
    there, error = attempt(lambda: run(make, tree, inputs, device, grad))
    if error is not None:
        return 1, [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]
    return len(there), [text for text in map(good, there) if text]


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_modules(remote, grad):
    compared, failures = 0, []
    for unit in UNITS:
        samples, error = attempt(unit.samples)
        if error is not None:
            continue
        any_compared = 0
        for sample in samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]:
            tree = (list(sample.forward_input.args), dict(sample.forward_input.kwargs))
            state, error = attempt(lambda unit=unit, sample=sample: module_cases.initial_state(unit, sample))
            if error is not None or any(map(module_cases.is_packed, tree[0])):
                continue

            def make(device: torch.device, unit=unit, sample=sample, state=state) -> Any:
                module = module_cases.construct(unit, sample, device, False)
                module.load_state_dict(state)
                module.requires_grad_(grad)
                return (lambda given: module(*given[0], **given[1])), module

            count, texts = check(make, tree, remote, grad)
            any_compared += count
            failures += [f"{unit} ({sample.desc or sample.constructor_input.kwargs}): {text}" for text in texts]
        compared += any_compared > 0
    assert not failures, "\n".join(failures)
    assert compared >= LEAST_MODULES, compared


def ops_compared(remote: torch.device, ops: list[Any], grad: bool) -> tuple[int, list[str]]:
    compared, failures = 0, []
    for op in ops:
        samples, error = attempt(
            lambda op=op: chosen(op, torch.float32, grad and has_gradient(op, torch.float32), 2, 0)
        )
        if error is not None:
            continue
        any_compared = 0
        for sample in samples[:2]:
            tree = [sample.input, *sample.args], dict(sample.kwargs)
            if (
                sections_on_cpu(op_name(op), sample)
                or attempt(lambda tree=tree: copy_tree(tree, "cpu"))[1] is not None
                or is_random(op, tree)
            ):
                continue

            def make(device: torch.device, op=op, tree=tree) -> Any:
                with_names = copy_tree(tree, device)  # names of devices are replaced, too
                others = tree_flatten(with_names)[0]

                def call(given: Any) -> Any:
                    leaves, shape = tree_flatten(given)
                    leaves = [a if isinstance(a, torch.Tensor) else b for a, b in zip(leaves, others, strict=True)]
                    args, kwargs = tree_unflatten(leaves, shape)
                    return op.op(*args, **kwargs)

                return call, None

            count, texts = check(make, tree, remote, grad)
            any_compared += count
            failures += [f"{op_name(op)}: {text}" for text in texts]
        compared += any_compared > 0
    return compared, failures


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_ops(remote, grad, part):
    compared, failures = ops_compared(remote, OPS[part::PARTS], grad)
    assert not failures, "\n".join(failures)
    assert compared >= LEAST_OPS // PARTS - 8, compared


@pytest.mark.parametrize(
    "kind", ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
)
@pytest.mark.parametrize("frozen", [True, False])
def test_convolutions_of_a_graph_are_recorded_and_trained(remote, kind, frozen):
    dims = int(kind[-2])
    net = torch.nn.Sequential(getattr(torch.nn, kind)(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(1, -1)).to(remote)
    net.requires_grad_(not frozen)
    size = (6,) * dims
    traced = torch.jit.trace(net, torch.randn(2, 3, *size, device=remote))
    names = [node.kind() for node in traced.inlined_graph.nodes()]
    assert names.count("aten::_convolution") == 1
    for batch in (2, 5):
        for _ in range(3):  # the graph changes during its first runs
            x = torch.randn(batch, 3, *size, device=remote, requires_grad=True)
            results = []
            for run_net in (traced, net):
                loss = run_net(x).square().sum()
                results.append((loss, *torch.autograd.grad(loss, [x, *(p for p in net.parameters() if not frozen)])))
            for got, want in zip(*results, strict=True):
                torch.testing.assert_close(got.cpu(), want.cpu())


def test_a_graph_that_was_traced_on_the_cpu_runs_here(remote, tmp_path):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1, stride=2, bias=False), torch.nn.Tanh())
    torch.jit.trace(net, torch.randn(1, 3, 6, 6)).save(tmp_path / "net.pt")
    there = torch.jit.load(tmp_path / "net.pt", map_location=remote)
    x = torch.randn(4, 3, 9, 7)
    torch.testing.assert_close(there(x.to(remote)).cpu(), net(x))


def test_a_result_that_the_tracer_does_not_see_is_found():
    """Tests the comparison: an op that the graph lacks leaves the result of the example."""

    def make(device: torch.device) -> Any:
        return (lambda tree: torch.from_numpy(tree[0].numpy() * 2) + 1), None

    x = torch.randn(3)
    (pair,) = run(make, [x], [[x], other_values([x])], torch.device("cpu"), False)
    assert "off by" in str(good(pair))
    assert good(((x,), (x,))) is None
    assert "sizes" in str(good(((x,), (x[:2],))))
