"""Typical expressions of models: which of their ops run in generated kernels, and which one by one.

bazel run //tests/ops:expressions                    all of them
bazel run //tests/ops:expressions -- --only loss     those whose name begins so
bazel run //tests/ops:expressions -- --time          also the time, compared with CPU eager

Each expression of differentiable operands is followed by its gradient. Fills, and ops that a library executes better
(matmuls, convolutions), are not listed as ungrouped.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TORCH_REMOTE_WAIT_COMPILE", "1")

import torch
import torch.nn.functional as F

import torch_remote  # noqa: F401

N, M = 256, 512
# Executed by a library, or creating the first gradient.
LEFT_OUT = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "fill_"}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def labels(n: int = N, classes: int = M) -> torch.Tensor:
    return torch.arange(n) * 7 % classes


def pair() -> tuple[torch.Tensor, ...]:
    return randn(N, M), randn(N, M)


def one() -> tuple[torch.Tensor, ...]:
    return (randn(N, M),)


def classes() -> tuple[torch.Tensor, ...]:
    return randn(N, M), labels()


def image() -> tuple[torch.Tensor, ...]:
    return (randn(2, 16, 24, 24),)


# By name: a function, and a function that makes its operands.
EXPRESSIONS: dict[str, tuple[Callable, Callable]] = {
    "clamp": (lambda x: x.clamp(-1, 1) + x.clamp_min(0) + x.clamp(max=0.5), one),
    "where": (lambda x, y: torch.where(x > 0, x, y * 2) + torch.where(y > 0, x, 0.0), pair),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, float("-inf")).exp(), pair),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, x.sigmoid()), pair),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5) + torch.addcmul(x, x, y), pair),
    "softplus": (lambda x: F.softplus(x) * 2, one),
    "hardswish": (lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.hardtanh(x), one),
    "mish": (lambda x: F.mish(x) * 2, one),
    "elu, selu, celu": (lambda x: F.elu(x) + F.selu(x) + F.celu(x), one),
    "leaky_relu, prelu": (lambda x, w: F.leaky_relu(x, 0.1) + F.prelu(x, w), lambda: (randn(N, M), randn(M))),
    "relu6, silu, gelu": (lambda x: F.relu6(x) + F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh"), one),
    "logsigmoid": (lambda x: F.logsigmoid(x) * 2, one),
    "glu": (lambda x: F.glu(x * 2, -1) + 1, one),
    "geglu by chunks": (lambda x: (lambda a, b: a * F.gelu(b))(*x.chunk(2, -1)), one),
    "isnan, nan_to_num": (lambda x: torch.nan_to_num(x / x, 1.0) + torch.isnan(x), one),
    "sign, floor, frac": (lambda x: x.sign() * x.floor() + x.frac() + x.trunc(), one),
    "fmod, remainder": (lambda x: (x * 10).fmod(3) + (x * 10) % 3, one),
    "pow": (lambda x: x.pow(3) + x.abs().pow(0.3) + 2**x, one),
    "comparison, logic": (lambda x, y: ((x > y) & (x < 1) | ~(y > 0)).float() * 2, pair),
    "integer math": (lambda i: (i * 3 + 1) // 2 % 7, lambda: (labels(N * M).view(N, M),)),
    "one_hot": (lambda i: F.one_hot(i, 64).float() * 2, lambda: (labels(N, 64),)),
    "arange, mask": (
        lambda x: x.masked_fill(
            torch.arange(M, device=x.device)[None, :] > torch.arange(N, device=x.device)[:, None], 0
        ),
        one,
    ),
    "tril, triu": (lambda x: torch.tril(x * 2) + torch.triu(x, 1), one),
    "causal softmax": (
        lambda x: torch.softmax(x.masked_fill(torch.ones(N, M, device=x.device).tril() == 0, -1e9), -1),
        one,
    ),
    "flip": (lambda x: x.flip(-1) * 2, one),
    "roll": (lambda x: x.roll(3, -1) * 2, one),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, dim=0) * 2, one),
    "repeat": (lambda x: x.repeat(2, 1) * 2, one),
    "pad": (lambda x: F.pad(x * 2, (1, 2)) + 1, one),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x * 2, 2) + 1, image),
    "upsample nearest": (lambda x: F.interpolate(x * 2, scale_factor=2) + 1, image),
    "avg_pool": (lambda x: F.avg_pool2d(x * 2, 2) + 1, image),
    "global pool": (lambda x: F.adaptive_avg_pool2d(x * 2, 1) + 1, image),
    "unfold": (lambda x: (x.unfold(1, 8, 4) * 2).sum(-1), one),
    "cat, split": (lambda x, y: torch.cat([(x * 2).split(M // 2, -1)[0], y + 1], -1), pair),
    "stack, unbind": (lambda x, y: torch.stack([x * 2, y + 1]).unbind(0)[1] * 3, pair),
    "sum, mean": (lambda x: x.mul(2).sum(-1) + x.exp().mean(-1), one),
    "sum of rows": (lambda x: x.mul(2).sum(0), one),
    "sum of all": (lambda x: x.mul(2).sum(), one),
    "amax, amin": (lambda x: x.mul(2).amax(-1) - x.amin(-1), one),
    "max with index": (lambda x: x.mul(2).max(-1).values, one),
    "argmax": (lambda x: (x * 2).argmax(-1), one),
    "any, all": (lambda x: (x > 0).any(-1) | (x < 3).all(-1), one),
    "norm": (lambda x: torch.linalg.vector_norm(x * 2, dim=-1) + (x * 2).norm(1, -1), one),
    "norm of all": (lambda x: (x * 2).norm(), one),
    "normalize": (lambda x: F.normalize(x * 2, dim=-1), one),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x * 2, y, -1), pair),
    "var_mean": (lambda x: torch.var_mean(x * 2, -1)[0] + x.std(-1), one),
    "logsumexp": (lambda x: torch.logsumexp(x * 2, -1), one),
    "count_nonzero, nansum": (lambda x: torch.count_nonzero(x > 0, -1) + torch.nansum(x * 2, -1), one),
    "cumsum, cumprod": (lambda x: torch.cumsum(x * 2, -1) + torch.cumprod(x, -1), one),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x * 2, -1), one),
    "softmax over rows": (lambda x: torch.softmax(x * 2, 0), one),
    "rms_norm": (lambda x, w: F.rms_norm(x * 2, (M,), w), lambda: (randn(N, M), randn(M))),
    "layer_norm": (lambda x, w: F.layer_norm(x * 2, (M,), w, w), lambda: (randn(N, M), randn(M))),
    "instance_norm": (lambda x: F.instance_norm(x * 2), image),
    "loss: cross_entropy": (lambda x, y: F.cross_entropy(x * 2, y), classes),
    "loss: cross_entropy, smoothed": (lambda x, y: F.cross_entropy(x * 2, y, label_smoothing=0.1), classes),
    "loss: cross_entropy, ignored": (lambda x, y: F.cross_entropy(x * 2, y, ignore_index=3), classes),
    "loss: cross_entropy, weights": (
        lambda x, y, w: F.cross_entropy(x * 2, y, weight=w.detach()),
        lambda: (randn(N, M), labels(), torch.rand(M)),
    ),
    "loss: cross_entropy, each": (lambda x, y: F.cross_entropy(x * 2, y, reduction="none") * 2, classes),
    "loss: cross_entropy of probabilities": (
        lambda x, y: F.cross_entropy(x * 2, y.softmax(-1).detach()),
        pair,
    ),
    "loss: cross_entropy of images": (
        lambda x, y: F.cross_entropy(x * 2, y),
        lambda: (randn(2, 8, 24, 24), labels(2 * 24 * 24, 8).view(2, 24, 24)),
    ),
    "loss: kl_div": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), pair),
    "loss: mse, l1, smooth": (lambda x, y: F.mse_loss(x, y) + F.l1_loss(x * 2, y) + F.smooth_l1_loss(x, y), pair),
    "loss: bce": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach()),
        pair,
    ),
    "loss: bce with logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid().detach()), pair),
    "loss: hinge": (lambda x, y: F.relu(1 - x * y.sign()).mean(), pair),
    "loss: triplet": (lambda x, y: F.triplet_margin_loss(x * 2, y, y + x), pair),
    "focal loss": (
        lambda x, y: (lambda p: (-((1 - p) ** 2) * p.log()).mean())(x.softmax(-1).gather(1, y[:, None])),
        classes,
    ),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, lambda: (randn(M, 64), labels())),
    "index_select, gather": (lambda x, i: (x * 2).index_select(0, i % N) + 1, lambda: (randn(N, M), labels())),
    "take": (lambda x, i: torch.take(x, i) * 2, lambda: (randn(N, M), labels(N * 4, N * M).view(N, 4))),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(-1), -1) * 2, one),
    "masked mean": (lambda x, y: (x * (y > 0)).sum(-1) / (y > 0).sum(-1).clamp(min=1), pair),
    "rope": (
        lambda x, c: x * c + torch.cat((-x[..., M // 2 :], x[..., : M // 2]), -1) * c.sin(),
        lambda: (randn(8, N, M), randn(N, M)),
    ),
    "bias, residual, norm": (
        lambda x, y, w: F.layer_norm(x + y + w, (M,), w, w),
        lambda: (randn(N, M), randn(N, M), randn(M)),
    ),
    "clip norm, foreach": (
        lambda x, y: torch._foreach_mul([x, y], 1 / torch.stack(torch._foreach_norm([x, y])).norm())[0],
        pair,
    ),
    "standardize columns": (lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5), one),
    "topk mask": (lambda x: torch.where(x >= x.topk(8, -1).values[:, -1:], x, 0.0), one),
    "outer sum": (lambda x, y: (x[:, None] - y[None, :]).abs(), lambda: (randn(N), randn(M))),
    "transposed": (lambda x, y: x.t() * 2 + y, lambda: (randn(M, N), randn(N, M))),
    "bool to float, sum": (lambda x: (x > 0).float().mean() + (x > 1).sum(), one),
    "type mix": (lambda x, y: x.bfloat16().float() * y + x.half(), pair),
}


WITHOUT_GRADIENT = {EXPRESSIONS["clip norm, foreach"][0]}


def alone(text: str) -> list[str]:
    """Ops in a graph's text that are in no group."""
    found, depth = [], 0
    for line in text.splitlines():
        if re.match(r"\s*group ", line):
            depth += 1
        elif depth and line.strip() == "}":
            depth -= 1
        elif not depth and (op := re.search(r"aten::(\w+)", line)):
            found.append(op[1])
    return [op for op in found if op not in LEFT_OUT]


def call(function: Callable, operands: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The result, and the gradients of the operands that have one."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in operands]
    if function in WITHOUT_GRADIENT:
        leaves = list(operands)
    result = function(*leaves)
    kept = [result.detach()]
    if result.requires_grad:
        result.backward(torch.ones_like(result))
        kept += [x.grad for x in leaves if x.grad is not None]
    return kept


def look(function: Callable, make: Callable) -> tuple[list[str], int]:
    """The ops that are in no group, and the number of groups that no kernel executed."""
    torch.manual_seed(0)
    operands = make()
    there = tuple(x.to("remote") for x in operands)
    torch.remote.synchronize()
    refused = torch.remote.stats()["groups_without_kernel"]
    with torch.remote.trace() as trace:
        kept = call(function, there)
    ops = [op for graph in trace.graphs for op in alone(str(graph.optimized()))]
    want = call(function, operands)
    for got, right in zip(kept, want, strict=True):
        torch.testing.assert_close(got.cpu(), right, rtol=2e-3, atol=2e-3, equal_nan=True)
    torch.remote.synchronize()
    return ops, torch.remote.stats()["groups_without_kernel"] - refused


def times(function: Callable, make: Callable, rounds: int = 9) -> tuple[float, float]:
    """Seconds on CPU and on the device: medians of alternating calls."""
    operands = make()
    there = tuple(x.to("remote") for x in operands)
    took: dict[str, list[float]] = {"cpu": [], "remote": []}
    for i in range(rounds + 3):
        for side, of in (("cpu", operands), ("remote", there)):
            began = time.perf_counter()
            kept = call(function, of)
            if side == "remote":
                torch.remote.synchronize()
            if i >= 3:
                took[side].append(time.perf_counter() - began)
            del kept
    cpu, remote = (sorted(took[side])[rounds // 2] for side in ("cpu", "remote"))
    return cpu, remote


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="expressions whose name begins so")
    parser.add_argument("--time", action="store_true")
    args = parser.parse_args()
    whole = 0
    names = [name for name in EXPRESSIONS if name.startswith(args.only)]
    for name in names:
        ops, refused = look(*EXPRESSIONS[name])
        whole += not ops and not refused
        text = "in kernels" if not ops else "alone: " + ", ".join(f"{op} {ops.count(op)}" for op in dict.fromkeys(ops))
        text += f"; {refused} groups refused" if refused else ""
        if args.time:
            cpu, remote = times(*EXPRESSIONS[name])
            text += f"; {cpu * 1e6:.0f} us on CPU, {remote * 1e6:.0f} here"
        print(f"{name}: {text}", flush=True)
    print(f"{whole} of {len(names)} expressions are done in kernels alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
