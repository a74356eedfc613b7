"""Normalization modules with all their options, compared with CPU bit for bit: results, gradients, running
statistics."""

from itertools import product

import pytest
import torch
from harness import difference

DIMS = {1: (4, 6, 5), 2: (4, 6, 3, 4), 3: (4, 6, 2, 3, 4)}
ROUNDING = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 0.05, "atol": 0.05}}
CASES = [
    *(
        pytest.param(f"{kind}Norm{dims}d", (6,), options, DIMS[dims], id=f"{kind}{dims}d-{i}")
        for kind in ("Batch", "Instance")
        for dims in DIMS
        for i, options in enumerate(
            {"affine": affine, "track_running_stats": tracked, "momentum": momentum}
            for affine, tracked, momentum in product((True, False), (True, False), (0.1, None))
            if (tracked or momentum) and not (kind == "Instance" and momentum is None)
        )
    ),
    *(
        pytest.param("GroupNorm", (groups, 6), {"affine": affine}, (4, 6, 3, 4), id=f"group{groups}-{affine}")
        for groups, affine in product((1, 3, 6), (True, False))
    ),
    *(
        pytest.param("LayerNorm", (sizes,), options, (4, 6, 5), id=f"layer{len(sizes)}-{i}")
        for sizes in ((5,), (6, 5))
        for i, options in enumerate(({}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}))
    ),
    *(
        pytest.param("RMSNorm", (sizes,), {"elementwise_affine": affine}, (4, 6, 5), id=f"rms{len(sizes)}-{affine}")
        for sizes in ((5,), (6, 5))
        for affine in (True, False)
    ),
]


def steps(name, args, options, shape, device, layout, dtype):
    """Three steps in training mode and one in eval mode, as a training loop uses the module."""
    torch.manual_seed(0)
    module = getattr(torch.nn, name)(*args, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    module = module.to(device, dtype)
    found = []
    for training in (True, True, True, False):
        module.train(training)
        x = torch.randn(shape).to(dtype)
        x = x.to(memory_format=layout).to(device).requires_grad_()
        result = module(x)
        inputs = [x, *module.parameters()]
        weights = torch.linspace(0.5, 1.5, result.numel()).reshape(shape).to(dtype)
        gradients = torch.autograd.grad(result, inputs, weights.to(device))
        found.append((result.detach(), gradients, {name: b.clone() for name, b in module.named_buffers()}))
    return found


@pytest.mark.parametrize(("name", "args", "options", "shape"), CASES)
def test_as_on_cpu(device, name, args, options, shape):
    for layout in (torch.contiguous_format, torch.channels_last)[: 1 + (len(shape) == 4)]:
        check(device, name, args, options, shape, layout)


def check(device, name, args, options, shape, layout):
    for dtype in (torch.float32, torch.bfloat16):
        here, there = (steps(name, args, options, shape, d, layout, dtype) for d in ("cpu", device))
        # On devices other than CPU, torch's formula for the gradient of group norm packs its operands first.
        exact = layout is torch.contiguous_format or name != "GroupNorm"
        text = difference(
            there, here, f"{dtype}", tolerance=None if exact else ROUNDING[dtype], strides=exact, device=device
        )
        assert text is None, text


@pytest.mark.parametrize("images", (1, 2))
@pytest.mark.parametrize("weights", (None, torch.float32, "as the input"), ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_group_norm_of_channels_last(device, dtype, weights, images):
    """Layouts equal CPU's, where a single image keeps its strides. Statistics have the weights' dtype."""
    torch.manual_seed(0)
    x = torch.randn(images, 4, 6, 6).to(dtype).to(memory_format=torch.channels_last)
    kept = dtype if weights == "as the input" else weights
    scale, shift = (None, None) if kept is None else (torch.rand(4).to(kept), torch.rand(4).to(kept))
    here = torch.native_group_norm(x, scale, shift, images, 4, 36, 2, 1e-5)
    moved = [None if t is None else t.to(device) for t in (x, scale, shift)]
    there = torch.native_group_norm(*moved, images, 4, 36, 2, 1e-5)
    text = difference(there, here, str(dtype), tolerance=None, strides=True, device=device)
    assert text is None, text


@pytest.mark.parametrize("scale", (1e-30, 1e-20, 1.0, 1e18, 1e20, 1e30), ids=str)
def test_statistics_of_several_processes_at_all_scales(device, scale):
    """The parts of SyncBatchNorm in two processes, compared with float64 batch norm of the whole batch."""
    aten = torch.ops.aten
    torch.manual_seed(0)
    whole = torch.randn(7, 3, 5) * scale
    parts = [whole[:4], whole[4:]]
    exact = whole.double()
    mean, var = exact.mean((0, 2)), exact.var((0, 2), correction=0)
    stats = [aten.batch_norm_stats(part.to(device), 0.0) for part in parts]
    for part, (part_mean, part_invstd) in zip(parts, stats, strict=True):
        torch.testing.assert_close(part_mean.cpu().double(), part.double().mean((0, 2)), rtol=1e-6, atol=0)
        deviation = part.double().std((0, 2), correction=0)
        torch.testing.assert_close(part_invstd.cpu().double() * deviation, torch.ones(3).double(), rtol=1e-6, atol=0)
    means, invstds = (torch.stack([s[i] for s in stats]) for i in (0, 1))
    running = [torch.zeros(3, device=device), torch.ones(3, device=device)]
    counts = torch.tensor([20.0, 15.0], device=device)
    gathered = aten.batch_norm_gather_stats_with_counts(whole.to(device), means, invstds, *running, 0.1, 0.0, counts)
    torch.testing.assert_close(gathered[0].cpu().double() / scale, mean / scale, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(gathered[1].cpu().double() * var.sqrt(), torch.ones(3).double(), rtol=1e-5, atol=0)
    # The gradient of a normalized input scales inversely with the input, and is otherwise the same.
    grad = torch.randn(7, 3, 5)
    x = exact.clone().requires_grad_()
    (expected,) = torch.autograd.grad(((x - mean[:, None]) / var.sqrt()[:, None]), x, grad.double())
    normal = (exact - mean[:, None]) / var.sqrt()[:, None]
    sums = [grad.double().sum((0, 2)), (grad.double() * normal).sum((0, 2))]
    expected -= (sums[0][:, None] + normal * sums[1][:, None]) / 35 / var.sqrt()[:, None]
    reduced = aten.batch_norm_backward_reduce(
        grad.to(device), whole.to(device), *gathered, torch.ones(3, device=device), True, True, True
    )
    got = aten.batch_norm_backward_elemt(
        grad.to(device), whole.to(device), *gathered, torch.ones(3, device=device), *reduced[:2], counts.int()
    )
    torch.testing.assert_close(got.cpu().double() * scale, expected * scale, rtol=1e-4, atol=1e-5)
