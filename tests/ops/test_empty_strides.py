"""Strides of results of channels-last tensors without elements, compared with CPU."""

import pytest
import torch
import torch.nn.functional as F

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = ((0, 4, 3, 3), (0, 4, 1, 1), (0, 4, 5, 6), (0, 4, 3, 3, 3))


def ones(x, *shape):
    return torch.ones(shape, device=x.device)


def convolution(function, size, weights, **options):
    """Convolves with a kernel of `size` in each dim, contiguous or channels last."""

    def run(x):
        groups, spatial = options.get("groups", 1), x.dim() - 2
        w = ones(x, 4, 4 // groups, *[size] * spatial)
        return getattr(F, f"{function}{spatial}d")(x, w.to(memory_format=LAST[x.dim()]) if weights else w, **options)

    return run


OPS = {
    f"{function} {size} {weights} {options}": convolution(function, size, weights, **options)
    for function in ("conv", "conv_transpose")
    for size, options in (
        (3, {"padding": 1}),
        (3, {"padding": 1, "groups": 4}),
        (3, {"padding": 1, "groups": 2}),
        (2, {"padding": 1, "dilation": 2}),
        (1, {"stride": 2}),
    )
    for weights in (False, True)
}
OPS |= {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "batch_norm": lambda x: F.batch_norm(x, ones(x, 4), ones(x, 4)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "relu": F.relu,
    "prelu": lambda x: F.prelu(x, ones(x, 4)),
    "prelu of one weight": lambda x: F.prelu(x, ones(x, 1)),
    "logsigmoid": F.logsigmoid,
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x * 0, reduction="none"),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 3),
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "mse_loss": lambda x: F.mse_loss(x, x * 0, reduction="none"),
    "huber_loss": lambda x: F.huber_loss(x, x * 0, reduction="none"),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 0, reduction="none"),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x * 0, reduction="none"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x * 0, reduction="none"),
    "binary_cross_entropy_with_logits, weights": lambda x: F.binary_cross_entropy_with_logits(
        x, x * 0, ones(x, 4, 1, 1), reduction="none"
    ),
    "add of a channel": lambda x: x + ones(x, 4, *[1] * (x.dim() - 2)),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "cumsum": lambda x: x.cumsum(1),
    "where": lambda x: torch.where(x > 0, x, 1.0),
    "glu": lambda x: F.glu(x, 1),
    "instance_norm": F.instance_norm,
    "batch_norm, training": lambda x: F.batch_norm(x, None, None, training=True),
    "add": lambda x: x + x,
    "cat": lambda x: torch.cat([x, x], 1),
    "mean": lambda x: x.mean(1, keepdim=True),
}


def layouts(op, x):
    """Strides of the result and of the gradient; None if CPU refuses the call."""
    x = x.detach().requires_grad_()
    try:
        y = op(x)
        (gradient,) = torch.autograd.grad(y, x, torch.empty_strided(y.shape, y.stride(), device=y.device))
    except (RuntimeError, ValueError, NotImplementedError):
        if x.device.type == "cpu":
            return None
        raise
    return [(tuple(t.shape), t.stride()) for t in (y, gradient)]


# torch implements these losses and gradients in functions whose strides differ for tensors without elements. Strides of
# dims of size 1 may differ further.
LOSS, WEIGHTED = "binary_cross_entropy", "binary_cross_entropy_with_logits, weights"
STRIDES_DIFFER = {
    (0, 4, 3, 3): {LOSS, WEIGHTED},
    (0, 4, 5, 6): {LOSS, WEIGHTED},
    (0, 4, 1, 1): {LOSS, WEIGHTED, "binary_cross_entropy_with_logits", "prelu", "prelu of one weight"},
    (0, 4, 3, 3, 3): {LOSS, "huber_loss"},
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_as_on_cpu(device, shape):
    compared, differ = 0, {}
    x = torch.zeros(shape).to(memory_format=LAST[len(shape)])
    for name, op in OPS.items():
        here = layouts(op, x)
        if here is None:
            continue
        compared += 1
        there = layouts(op, x.to(device))
        if here != there:
            differ[name] = f"{name}: {there}, on CPU {here}"
    assert set(differ) == STRIDES_DIFFER.get(shape, set()), "\n".join(differ.values())
    assert compared >= 12


def test_depthwise_convolution_of_no_images(device):
    x = torch.zeros(0, 4, 3, 3).to(memory_format=torch.channels_last).to(device)
    assert F.conv2d(x, torch.ones(4, 1, 3, 3, device=device), padding=1, groups=4).stride() == (36, 1, 12, 4)
