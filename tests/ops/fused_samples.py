"""Samples of torch's op_db as cases: an op with neighbors, its result and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fused_cases import Case, unchanged
from harness import (
    UNINITIALIZED,
    UNSUPPORTED,
    attempt,
    chosen,
    has_gradient,
    is_random,
    moves,
    op_name,
    ops_for,
    sections_on_cpu,
    some_gradient,
)
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

# Not compared: op, optionally dtype, and the reason.
LEFT_OUT = {
    "nn.functional.linear_cross_entropy.chunked": "torch's Python code sums in float32 on CPU only",
    "nn.functional.hardsigmoid float64": "torch's gradient multiplies by 1 / 6 in float32",
}


def cases_of(op: OpInfo, dtype: torch.dtype, first: int) -> Iterator[Case]:
    name = op_name(op)
    if name in UNSUPPORTED or name.startswith((*UNINITIALIZED, "jiterator")):
        return
    if name in LEFT_OUT or f"{name} {str(dtype)[6:]}" in LEFT_OUT:
        return
    grad = has_gradient(op, dtype)
    samples, _ = attempt(lambda: chosen(op, dtype, grad, first, 0))
    for i, sample in enumerate(samples or []):
        if (
            sections_on_cpu(name, sample)
            or not moves(sample)
            or is_random(op, ((sample.input, *sample.args), dict(sample.kwargs)))
        ):
            continue
        leaves, shape = tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        at = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        wants = [leaves[k].requires_grad for k in at]

        def call(
            *tensors: torch.Tensor,
            op: OpInfo = op,
            leaves: Any = leaves,
            shape: Any = shape,
            at: Any = at,
            wants: Any = wants,
        ) -> list[Any]:
            inputs = [
                t.detach().requires_grad_() if w and t.is_floating_point() else t
                for t, w in zip(tensors, wants, strict=True)
            ]
            device = tensors[0].device if tensors else None
            given = [str(device) if type(x) is str and x == "cpu" else x for x in leaves]
            for k, t in zip(at, inputs, strict=True):
                given[k] = unchanged(t) if t.dim() and not t.is_complex() else t
            args, kwargs = tree_unflatten(given, shape)
            results = [r for r in tree_flatten(op.op(*args, **kwargs))[0] if isinstance(r, torch.Tensor)]
            outputs = [r for r in results if r.requires_grad]
            sources = [t for t in inputs if t.requires_grad]
            if outputs and sources:
                gradients = torch.autograd.grad(outputs, sources, map(some_gradient, outputs), allow_unused=True)
                results += [g for g in gradients if g is not None]
            return [r.detach().resolve_conj().resolve_neg() for r in results if r.layout == torch.strided]

        yield Case(name, dtype, f"sample {i}", call, tuple(leaves[k].detach() for k in at), True)


def samples(dtype: torch.dtype, first: int = 2, begin: int = 0, every: int = 1) -> Iterator[Case]:
    """Samples of every `every`-th op."""
    for op in ops_for(dtype)[begin::every]:
        yield from cases_of(op, dtype, first)
