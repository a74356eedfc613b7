"""Convolutions, and related ops of models, on an emulated GPU, compared with CPU: dims, strides, layouts, dtypes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 4e-2, "atol": 6e-2},
}


def same(there, expected):
    assert there.dtype == expected.dtype
    assert there.shape == expected.shape
    torch.testing.assert_close(there.cpu(), expected, **TOLERANCE[expected.dtype])


def train(device, make, given, dtype=torch.float32, layout=None):
    """The results and all gradients of a layer that `make` creates."""
    torch.manual_seed(5)
    layer = make().to(dtype)
    x = torch.randn(given).to(dtype)
    if layout is not None:
        x, layer = x.to(memory_format=layout), layer.to(memory_format=layout)
    x, layer = x.to(device).detach().requires_grad_(), layer.to(device)
    y = layer(x)
    torch.manual_seed(6)
    y.backward(torch.randn(y.shape).to(dtype).to(device))
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


LAYERS = [
    (lambda: nn.Conv1d(3, 5, 3, padding=1), (2, 3, 11)),
    (lambda: nn.Conv1d(4, 6, 4, stride=3, dilation=2, groups=2, bias=False), (3, 4, 23)),
    (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 7, 9)),
    (lambda: nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), (2, 3, 15, 14)),
    (lambda: nn.Conv2d(6, 4, 1), (2, 6, 5, 5)),
    (lambda: nn.Conv2d(6, 12, 3, padding=1, groups=6), (2, 6, 8, 6)),
    (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 3), groups=2), (1, 4, 9, 12)),
    (lambda: nn.Conv2d(1, 1, 1), (1, 1, 1, 1)),
    (lambda: nn.Conv2d(2, 3, 5), (1, 2, 5, 5)),
    (lambda: nn.Conv3d(2, 4, 3, padding=1), (2, 2, 5, 6, 4)),
    (lambda: nn.Conv3d(4, 4, (1, 3, 2), stride=(1, 2, 1), groups=2), (1, 4, 3, 7, 5)),
    (lambda: nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), (2, 3, 9)),
    (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2, bias=False), (2, 4, 5, 4)),
    (lambda: nn.ConvTranspose2d(2, 3, 3, stride=3, dilation=2), (1, 2, 4, 3)),
    (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 3, 2, 4)),
]


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_layers(remote, number):
    make, given = LAYERS[number]
    expected = train("cpu", make, given)
    for _ in range(3):  # the first call of a plan is made at once, and later ones are queued
        for got, want in zip(train(remote, make, given), expected, strict=True):
            same(got, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [0, 2, 5, 9, 12])
def test_dtypes(remote, number, dtype):
    make, given = LAYERS[number]
    for got, want in zip(train(remote, make, given, dtype), train("cpu", make, given, dtype), strict=True):
        same(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_channels_last(remote, dtype):
    for number in (2, 4, 5, 12):
        make, given = LAYERS[number]
        got = train(remote, make, given, dtype, torch.channels_last)
        for there, want in zip(got, train("cpu", make, given, dtype, torch.channels_last), strict=True):
            same(there, want)


def test_views_and_odd_addresses(remote):
    x, w, b = torch.randn(2, 5, 9, 12), torch.randn(4, 3, 3, 3), torch.randn(9)

    def convolve(x, w, b):
        return [
            F.conv2d(x[:, 1:4], w, b[1:5]),
            F.conv2d(x[:, ::2, 1:, ::2], w),
            F.conv2d(x.transpose(2, 3)[:, 2:], w.flip(1), b[::2][:4]),
            F.conv2d(x[:1].expand(3, 5, 9, 12)[:, :3], w),
            F.conv2d(x[0, 1:4], w),  # without a batch dim
            F.conv2d(x[:, :3], w, padding="same"),
        ]

    there = convolve(x.to(remote), w.to(remote), b.to(remote))
    for got, want in zip(there, convolve(x, w, b), strict=True):
        same(got, want)


def test_nothing(remote):
    """Batches without images. (torch refuses images without channels.)"""

    def convolve(device):
        torch.manual_seed(1)
        layer = nn.Conv2d(3, 4, 3).to(device)
        x = torch.randn(0, 3, 6, 6, device=device, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]

    for got, want in zip(convolve(remote), convolve("cpu"), strict=True):
        same(got, want)


def test_sizes_change(remote):
    w = torch.randn(6, 3, 3, 3)
    there = w.to(remote)
    for size in (8, 9, 8, 15, 3, 9):
        x = torch.randn(2, 3, size, size + 1)
        same(F.conv2d(x.to(remote), there, padding=1), F.conv2d(x, w, padding=1))


def test_only_some_gradients(remote):
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    grad = torch.randn(2, 4, 6, 6)
    got = torch.nn.grad.conv2d_weight(x.to(remote), w.shape, grad.to(remote))
    same(got, torch.nn.grad.conv2d_weight(x, w.shape, grad))
    got = torch.nn.grad.conv2d_input(x.shape, w.to(remote), grad.to(remote))
    same(got, torch.nn.grad.conv2d_input(x.shape, w, grad))


def test_complex_and_integers_say_what_to_do(remote):
    x = torch.ones(1, 1, 4, 4, dtype=torch.int64).to(remote)
    with pytest.raises((NotImplementedError, RuntimeError)) as error:
        F.conv2d(x, torch.ones(1, 1, 3, 3, dtype=torch.int64).to(remote)).cpu()
    assert "conv" in str(error.value)


# -- models


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.one = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.blocks(self.pool(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(12, 8, 2, 2)
        self.refine = nn.Conv2d(24, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.middle(F.max_pool2d(a, 2))
        wide = F.interpolate(F.avg_pool2d(a, 2), scale_factor=2, mode="bilinear", align_corners=False)
        c = torch.cat([self.up(b), a, F.interpolate(F.avg_pool2d(wide, 2), scale_factor=2)], 1)
        return self.out(F.relu(self.refine(c))).mean((2, 3))


@pytest.mark.parametrize("make", [ResNet, UNet])
def test_models_train(remote, make):
    def steps(device):
        torch.manual_seed(2)
        model = make().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, target = torch.randn(4, 3, 16, 16).to(device), torch.tensor([0, 1, 2, 3]).to(device)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        return torch.stack(losses).cpu(), model(x).detach().cpu()

    for got, want in zip(steps(remote), steps("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(4, 3, 0), (2, 3, 5, 0)], ids=str)
def test_images_without_points_are_an_error(remote, shape):
    weight = torch.ones(2, 3, *[2] * (len(shape) - 2))
    convolve = F.conv1d if len(shape) == 3 else F.conv2d
    for device in ("cpu", remote):
        with pytest.raises(RuntimeError, match="Only zero batch or zero channel inputs are supported, but got input"):
            convolve(torch.ones(shape, device=device), weight.to(device), padding=1).cpu()
