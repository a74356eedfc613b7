"""Pooling, resampling, padding and group norm with gradients, on an emulated GPU, compared with CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def same(there, expected, tolerance=None):
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    torch.testing.assert_close(there.cpu(), expected, equal_nan=True, **(tolerance or {}))


def run(device, op, x):
    """The result of an op on an image, and the gradient."""
    x = x.to(device).detach().requires_grad_()
    y = op(x)
    torch.manual_seed(9)
    y.backward(torch.randn(y.shape).to(y.dtype).to(device))
    return y.detach(), x.grad


def check(remote, op, x, tolerance=None):
    for there, expected in zip(run(remote, op, x), run("cpu", op, x), strict=True):
        same(there, expected, tolerance)


POOLS = [
    (lambda x: F.max_pool2d(x, 2), (2, 3, 8, 10)),
    (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    (lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), dilation=(2, 1), ceil_mode=True), (1, 2, 9, 7)),
    (lambda x: F.max_pool2d(x, 3, 2), (3, 9, 9)),
    (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 3, 11)),
    (lambda x: F.max_pool3d(x, 2, padding=1), (1, 2, 4, 5, 6)),
    (lambda x: F.adaptive_max_pool2d(x, (3, 4)), (2, 2, 7, 9)),
    (lambda x: F.adaptive_max_pool1d(x, 4), (2, 2, 9)),
    (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 10)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 3, 8, 8)),
    (lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True), (2, 3, 8, 7)),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 1, 4, 4)),
    (lambda x: F.avg_pool1d(x, 4, 3, 2), (2, 3, 13)),
    (lambda x: F.avg_pool3d(x, 2, 1), (1, 2, 4, 3, 5)),
    (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (2, 2, 7, 9)),
    (lambda x: F.adaptive_avg_pool2d(x, (9, 2)), (2, 5, 3)),
    (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 6, 5, 5)),
    (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), (1, 2, 5, 4, 3)),
]


@pytest.mark.parametrize("number", range(len(POOLS)))
def test_pools(remote, number):
    op, shape = POOLS[number]
    check(remote, op, torch.randn(shape))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pools_of_dtypes_and_layouts(remote, dtype):
    x = torch.randn(2, 4, 6, 8).to(dtype)
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if dtype.itemsize == 2 else None
    for number in (1, 6, 9, 15):
        check(remote, POOLS[number][0], x, tolerance)
        check(remote, POOLS[number][0], x.to(memory_format=torch.channels_last), tolerance)
        check(remote, POOLS[number][0], x.transpose(2, 3)[:, ::2], tolerance)


def test_maxima_and_their_places(remote):
    x = torch.tensor([[[1.0, 5, 5, 2], [5, 0, 5, 5], [float("nan"), 1, 2, 2], [3, 3, float("nan"), -float("inf")]]])
    x = torch.cat([x, -x, torch.zeros(1, 4, 4), torch.full((1, 4, 4), -float("inf"))])
    for kernel in (1, 2, 3):
        values, places = F.max_pool2d(x.to(remote), kernel, 1, return_indices=True)
        expected, where = F.max_pool2d(x, kernel, 1, return_indices=True)
        same(values, expected)
        same(places, where)


RESAMPLED = [
    (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, size=(7, 3)), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=False), (1, 2, 6, 5)),
    (lambda x: F.interpolate(x, size=9), (2, 3, 4)),
    (lambda x: F.interpolate(x, scale_factor=(2, 1, 3)), (1, 2, 2, 3, 2)),
    (lambda x: F.interpolate(x, size=(7, 3), mode="nearest-exact"), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, size=11, mode="linear"), (2, 3, 4)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, size=(3, 9), mode="bilinear"), (2, 3, 7, 4)),
    (lambda x: F.interpolate(x, size=(8, 2), mode="bilinear", align_corners=True), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True), (2, 3, 4, 5)),
    (lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear"), (1, 2, 9, 8)),
    (lambda x: F.interpolate(x, size=(3, 5, 2), mode="trilinear"), (1, 2, 2, 3, 4)),
    (lambda x: F.interpolate(x, size=(9, 3), mode="bicubic"), (1, 2, 5, 6)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True), (1, 2, 4, 3)),
    (lambda x: F.pad(x, (2, 1), mode="reflect"), (2, 3, 5)),
    (lambda x: F.pad(x, (2, 3, 1, 0), mode="reflect"), (2, 3, 5, 4)),
    (lambda x: F.pad(x, (4, 4), mode="reflect"), (1, 1, 5)),
    (lambda x: F.pad(x, (1, 2, 0, 1, 1, 1), mode="reflect"), (1, 2, 3, 4, 5)),
    (lambda x: F.pad(x, (5, 1), mode="replicate"), (2, 3, 4)),
    (lambda x: F.pad(x, (2, 3, 1, 0), mode="replicate"), (2, 3, 5, 4)),
    (lambda x: F.pad(x, (1, 2, 0, 1, 1, 1), mode="replicate"), (1, 2, 3, 4, 5)),
    (lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 4)),
    (lambda x: F.pixel_unshuffle(x, 3), (2, 2, 6, 9)),
    (lambda x: F.channel_shuffle(x, 3), (2, 6, 2, 3)),
]


@pytest.mark.parametrize("number", range(len(RESAMPLED)))
def test_resampling(remote, number):
    op, shape = RESAMPLED[number]
    check(remote, op, torch.randn(shape))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_resampling_of_dtypes_and_layouts(remote, dtype):
    x = torch.randn(2, 4, 6, 8).to(dtype)
    # CPU rounds sums of half-type gradients at each step.
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype.itemsize == 2 else None
    for number in (0, 7, 13, 16):
        check(remote, RESAMPLED[number][0], x.to(memory_format=torch.channels_last), tolerance)
        check(remote, RESAMPLED[number][0], x.transpose(2, 3)[:, 1:], tolerance)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (3, 6), (1, 6, 5), (2, 6, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_group_norm(remote, groups, shape):
    def norms(device, affine, dtype):
        torch.manual_seed(4)
        norm = nn.GroupNorm(groups, 6, affine=affine).to(dtype)
        if affine:
            nn.init.normal_(norm.weight)
        x = torch.randn(shape).to(dtype).to(device).requires_grad_()
        norm = norm.to(device)
        y = norm(x)
        (y * torch.arange(y.numel()).reshape(y.shape).to(dtype).to(device).sin()).sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in norm.parameters())]

    for affine, dtype in ((True, torch.float32), (False, torch.float32), (True, torch.float64)):
        for there, expected in zip(norms(remote, affine, dtype), norms("cpu", affine, dtype), strict=True):
            same(there, expected, {"rtol": 1e-4, "atol": 1e-4})


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 4, 300), (40, 7, 6)], ids=str)
def test_gradients_of_layer_norm_that_lie_apart_from_its_input(remote, shape, affine):
    """Gradients of means over rows are expanded; those of transposed results are transposed."""
    uses = [
        lambda y: y.mean(1).sin().sum(),
        lambda y: y[:, 0].sin().sum() + y.mean((0, 1)).cos().sum(),
        lambda y: (y.transpose(0, 1).reshape(-1) * torch.arange(y.numel(), device=y.device).to(y.dtype).cos()).sum(),
        lambda y: y.sum(),
    ]

    def norms(device, use, lay, dtype):
        torch.manual_seed(4)
        norm = nn.LayerNorm(shape[-1], elementwise_affine=affine).to(dtype)
        if affine:
            nn.init.normal_(norm.weight)
        x = lay(torch.randn(shape).to(dtype)).to(device).requires_grad_()
        norm = norm.to(device)
        y = norm(x)
        use(y).backward()
        return [y.detach(), x.grad, *(p.grad for p in norm.parameters())]

    lays = [lambda x: x, lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), lambda x: x[:, :1].expand(shape)]
    for use in uses:
        for lay in lays:
            for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
                there, expected = norms(remote, use, lay, dtype), norms("cpu", use, lay, dtype)
                for a, b in zip(there, expected, strict=True):
                    same(a, b, {"rtol": tolerance, "atol": tolerance})


WINDOWS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "padding": (1, 2), "stride": (2, 1)},
    {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 3, "stride": 4},
    {"kernel_size": 1, "stride": 5},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_windows(remote, number, dtype):
    for shape in ((2, 3, 6, 7), (3, 6, 7), (1, 1, 3, 4)):
        x = torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape).to(dtype)
        same(F.unfold(x.to(remote), **WINDOWS[number]), F.unfold(x, **WINDOWS[number]))
        turned = x.transpose(-1, -2)
        same(F.unfold(turned.to(remote), **WINDOWS[number]), F.unfold(turned, **WINDOWS[number]))


# Ops that only select elements support all dtypes.
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.complex64, torch.complex128], ids=str)
def test_elements_that_are_picked(remote, dtype):
    x = torch.randint(0, 256, (2, 3, 6, 8)).to(dtype)
    if dtype == torch.int64:
        x = x * (2**54 + 1) - 2**61
    for image in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)[:, 1:]):
        for mode in ("reflect", "replicate"):
            if dtype.is_complex:
                check(remote, lambda x, mode=mode: F.pad(x, (2, 1, 0, 3), mode=mode), image)
            else:
                same(F.pad(image.to(remote), (2, 1, 0, 3), mode=mode), F.pad(image, (2, 1, 0, 3), mode=mode))
        for mode in ("nearest", "nearest-exact") if dtype == torch.uint8 else ():
            for size in ((12, 16), (5, 3)):
                same(
                    F.interpolate(image.to(remote), size, mode=mode).contiguous(),
                    F.interpolate(image, size, mode=mode).contiguous(),
                )


def test_whole_numbers_say_what_to_do(remote):
    x = torch.arange(16).reshape(1, 1, 4, 4).to(remote)
    with pytest.raises((NotImplementedError, RuntimeError)) as error:
        F.avg_pool2d(x, 2).cpu()
    assert "avg_pool2d" in str(error.value)


# Parameters of windows, and the shape of their image.
FOLDED = [
    ({"kernel_size": 3, "padding": 1}, (2, 3, 7, 6)),
    ({"kernel_size": (2, 3), "stride": (3, 2), "dilation": (1, 2), "padding": (0, 2)}, (2, 2, 8, 9)),
    ({"kernel_size": 2, "stride": 2}, (3, 4, 6)),
    ({"kernel_size": (1, 4), "stride": 5}, (1, 1, 6, 11)),  # some points are in no window
]


@pytest.mark.parametrize("number", range(len(FOLDED)))
def test_windows_and_their_sums(remote, number):
    how, shape = FOLDED[number]
    for dtype in FLOATS:
        tolerance = {"rtol": 1e-2, "atol": 5e-2} if dtype.itemsize == 2 else None
        x = torch.randn(shape).to(dtype)
        check(remote, lambda x: F.unfold(x, **how), x, tolerance)
        columns = F.unfold(torch.randn(shape), **how).to(dtype)
        check(remote, lambda c: F.fold(c, shape[-2:], **how), columns, tolerance)
        check(remote, lambda c: F.fold(c.transpose(-1, -2), shape[-2:], **how), columns.transpose(-1, -2), tolerance)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool], ids=str)
def test_sums_of_windows_of_other_dtypes(remote, dtype):
    how, shape = FOLDED[1]
    x = torch.randn(shape, dtype=dtype) if dtype.is_complex else torch.rand(shape) < 0.3
    columns = F.unfold(x, **how)
    same(F.unfold(x.to(remote), **how), columns)
    for of in (columns, columns.clone().transpose(0, 1).contiguous().transpose(0, 1)):
        same(F.fold(of.to(remote), shape[-2:], **how), F.fold(of, shape[-2:], **how))
    if dtype.is_complex:
        grads = []
        for device in (remote, torch.device("cpu")):
            leaf = x.detach().to(device).requires_grad_()
            F.unfold(leaf, **how).abs().sum().backward()
            grads.append(leaf.grad)
        same(*grads)
