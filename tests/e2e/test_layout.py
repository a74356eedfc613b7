"""Images between convolutions are channels last on the worker, which users cannot observe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A ResNet block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x)


class Wide(nn.Module):
    """Concatenated convolutions of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(32, 32, 1)
        self.three = nn.Conv2d(32, 32, 3, padding=1, stride=1)
        self.groups = nn.Conv2d(64, 64, 3, padding=1, groups=4)
        self.dilated = nn.Conv2d(64, 32, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(32, 32, 2, 2)
        self.norm = nn.GroupNorm(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(torch.cat([self.one(x), self.three(x)], 1)))
        return self.up(F.avg_pool2d(self.dilated(self.groups(y)), 2))


class Inverted(nn.Module):
    """A MobileNet block with a depthwise convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.each = nn.Conv2d(4 * channels, 4 * channels, 3, padding=1, groups=4 * channels, bias=False)
        self.narrow = nn.Conv2d(4 * channels, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n * channels) for n in (4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norms[0](self.widen(x)))
        y = F.hardswish(self.norms[1](self.each(y)))
        return self.norms[2](self.narrow(y)) + x


NETS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.GELU(), nn.Conv2d(64, 8, 3)
    ),
    "resnet": lambda: nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Block(64),
        Block(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ),
    "mobile": lambda: nn.Sequential(nn.Conv2d(3, 32, 3, 2), Inverted(32), Inverted(32), nn.Conv2d(32, 8, 1)),
    "up": lambda: nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.ConvTranspose2d(64, 32, 2, 2), nn.ReLU(), nn.Conv2d(32, 4, 3)
    ),
    "wide": lambda: nn.Sequential(nn.Conv2d(3, 32, 3), Wide(), Wide()),
    "flat": lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 28 * 28, 4)),
}


def net(name: str) -> nn.Module:
    torch.manual_seed(1)
    made = NETS[name]()
    for module in made.modules():  # statistics other than the initial ones
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.running_mean) * 0.1
            module.running_var = torch.rand_like(module.running_var) + 0.5
    return made.eval()


def assert_as_exact(got: Tensor, cpu: Tensor, exact: Tensor, last: Tensor | None = None) -> None:
    """The error may be twice CPU's own, plus a rounding of the largest element. `last` is CPU's result for
    channels-last images."""
    assert got.stride() == cpu.stride() and got.shape == cpu.shape
    unit = 2 * torch.finfo(cpu.dtype).eps * exact.abs().max().item()
    error = lambda result: (result.cpu().double() - exact).abs().max().item()  # noqa: E731
    assert error(got) <= 2 * max(error(cpu), error(cpu if last is None else last)) + unit


def assert_net_as_exact(there: nn.Module, here: nn.Module, exact: nn.Module, x: Tensor, device: torch.device) -> None:
    last = here(x.to(memory_format=torch.channels_last))
    assert_as_exact(there(x.to(device)), here(x), exact(x.double()), last)


@pytest.mark.parametrize("name", NETS)
def test_inference_equals_cpu(remote: torch.device, name: str) -> None:
    here = net(name)
    there, exact = copy.deepcopy(here).to(remote), copy.deepcopy(here).double()
    with torch.no_grad():
        for size in (32, 32, 32, 32):  # weights are packed in the second run
            x = torch.randn(2, 3, size, size)
            assert_net_as_exact(there, here, exact, x, remote)


@pytest.mark.parametrize("name", NETS)
def test_inference_in_bfloat16(remote: torch.device, name: str) -> None:
    here = net(name).bfloat16()
    there, exact = copy.deepcopy(here).to(remote), copy.deepcopy(here).double()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 32, 32).bfloat16()
            assert_net_as_exact(there, here, exact, x, remote)


def test_sizes_change(remote: torch.device) -> None:
    here = net("resnet")
    there, exact = copy.deepcopy(here).to(remote), copy.deepcopy(here).double()
    with torch.no_grad():
        for images, size in ((2, 64), (3, 48), (1, 33), (2, 64), (5, 21)):
            x = torch.randn(images, 3, size, size + 2)
            assert_net_as_exact(there, here, exact, x, remote)


def test_what_is_seen_lies_as_on_cpu(remote: torch.device) -> None:
    here = net("chain")
    there = copy.deepcopy(here).to(remote)
    x = torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        mine, its = x.to(remote), x
        seen = []
        for module, other in zip(there, here, strict=True):
            mine, its = module(mine), other(its)
            seen.append((mine, its))
        for mine, its in seen:
            assert mine.stride() == its.stride()
            torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)
            assert torch.equal(mine.cpu(), mine.contiguous().cpu())


@pytest.mark.parametrize("rank", [4, 5])
def test_strides_of_dims_of_one_element(remote: torch.device, rank: int) -> None:
    """Results have the strides that torch's TensorIterator computes, also for dims where strides have no effect."""
    random = Random(rank)
    for _ in range(300):
        shape = [random.choice((1, 1, 2, 3)) for _ in range(rank)]
        operands = []
        for _ in range(2):
            order = random.sample(range(rank), rank)
            x = torch.ones([shape[d] for d in order]).permute([order.index(d) for d in range(rank)])
            strides = [random.choice((1, 7, x.stride(d))) if x.size(d) == 1 else x.stride(d) for d in range(rank)]
            operands.append((shape, random.choice((strides, torch.ones(shape).stride()))))
        operands[1] = random.choice(operands)
        x, y = (torch.ones(500).as_strided(*each) for each in operands)
        mine = [torch.ones(500, device=remote).as_strided(*each) for each in operands]
        assert (mine[0] + mine[1]).stride() == (x + y).stride(), operands


def test_channels_last_of_the_user(remote: torch.device) -> None:
    here = net("resnet").to(memory_format=torch.channels_last)
    there = copy.deepcopy(here).to(remote)
    x = torch.randn(2, 3, 40, 40).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(3):
            mine, its = there[:6](x.to(remote)), here[:6](x)
            assert mine.stride() == its.stride()
            torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "square": lambda: nn.Conv2d(32, 48, 3, padding=1),
    "of one place": lambda: nn.Conv2d(32, 96, 1, bias=False),
    "steps": lambda: nn.Conv2d(32, 48, (5, 3), stride=(2, 3), padding=(2, 0)),
    "holes": lambda: nn.Conv2d(32, 48, 3, dilation=2, padding="same"),
    "groups": lambda: nn.Conv2d(32, 64, 3, groups=4),
    "each channel": lambda: nn.Conv2d(32, 32, 3, groups=32, padding=1),
    "transposed": lambda: nn.ConvTranspose2d(32, 16, 3, stride=2),
    "half": lambda: nn.Conv2d(32, 48, 3).bfloat16(),
    "double": lambda: nn.Conv2d(32, 48, 3).double(),
}


@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_of_all_kinds_of_convolutions(remote: torch.device, name: str, weights_last: bool) -> None:
    """Packed weights are cached from the second run on, and used for images of other sizes, too."""
    torch.manual_seed(3)
    here = CONVOLUTIONS[name]()
    if weights_last:
        here = here.to(memory_format=torch.channels_last)
    there, exact = copy.deepcopy(here).to(remote), copy.deepcopy(here).double()
    with torch.no_grad():
        for images, size in ((2, 20), (2, 20), (2, 20), (1, 31), (5, 9), (0, 9), (2, 20)):
            x = torch.randn(images, 32, size, size + 1, dtype=here.weight.dtype).to(memory_format=torch.channels_last)
            got, cpu = there(x.to(remote)), here(x)
            if images:
                assert_as_exact(got, cpu, exact(x.double()))
            assert got.shape == cpu.shape


@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_steps_of_one_place_of_few_channels(remote: torch.device, transposed: bool, weights_last: bool) -> None:
    """torch's CPU kernel writes out of bounds for such channels-last images, so the CPU reference uses contiguous
    ones."""
    torch.manual_seed(6)
    last = torch.channels_last
    weight = torch.randn(8, 8, 1, 1)
    convolve = F.conv_transpose2d if transposed else F.conv2d
    for size in (24, 24, 24, 17) * 25:
        x = torch.randn(3, 8, size, size)
        here, x_here = weight.clone().requires_grad_(), x.clone().requires_grad_()
        there = weight.to(remote, memory_format=last if weights_last else torch.contiguous_format).requires_grad_()
        x_there = x.to(memory_format=last).to(remote).requires_grad_()
        got, wanted = convolve(x_there, there, stride=2), convolve(x_here, here, stride=2)
        grad = torch.randn_like(wanted)
        got.backward(grad.to(memory_format=last).to(remote))
        wanted.backward(grad)
        assert x_there.grad.stride() == x_there.stride()
        torch.testing.assert_close(x_there.grad.cpu(), x_here.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-3)


def test_two_convolutions_of_one_weight(remote: torch.device) -> None:
    """The convolutions differ in strides, groups and channels. The cached packing suits the first one that ran
    twice."""
    torch.manual_seed(4)
    weight = torch.randn(32, 16, 3, 3) * 0.1
    there = weight.to(remote)
    x = torch.randn(2, 16, 18, 18).to(memory_format=torch.channels_last)
    y = torch.randn(2, 32, 18, 18).to(memory_format=torch.channels_last)
    for _ in range(4):
        for image, kinds in ((x, {"stride": 2}), (y, {"groups": 2}), (x, {"dilation": 2, "padding": 1})):
            got = torch.conv2d(image.to(remote), there, **kinds)
            want = torch.conv2d(image, weight, **kinds)
            assert_as_exact(got, want, torch.conv2d(image.double(), weight.double(), **kinds))


def test_weights_that_change(remote: torch.device) -> None:
    """Cached packed weights follow changes of the weights: in place, by an optimizer, by a new value, by a view."""
    here = net("chain")
    there = copy.deepcopy(here).to(remote)
    x = torch.randn(2, 3, 24, 24)

    def check() -> None:
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(there(x.to(remote)).cpu(), here(x), rtol=1e-4, atol=1e-4)

    def train(model: nn.Module, device: torch.device) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def change(function: Callable[[nn.Conv2d], None]) -> None:
        for model in (here, there):
            with torch.no_grad():
                function(model[2])
        check()

    check()
    change(lambda conv: conv.weight.mul_(2))
    change(lambda conv: conv.weight[3].view(-1).zero_())
    change(lambda conv: conv.weight.data.copy_(conv.weight.data.flip(0)))
    change(lambda conv: setattr(conv.weight, "data", conv.weight.data * 0.5))
    change(lambda conv: setattr(conv, "weight", nn.Parameter(conv.weight.transpose(0, 1).contiguous())))
    for _ in range(2):
        for model, device in ((here, torch.device("cpu")), (there, remote)):
            train(model, device)
        check()
    there.load_state_dict(net("chain").state_dict())
    here.load_state_dict(net("chain").state_dict())
    check()


def test_what_is_kept_of_weights_goes_with_them(remote: torch.device) -> None:
    x = torch.randn(2, 3, 24, 24).to(remote)
    torch.remote.synchronize()
    before = torch.remote.memory_allocated()
    there = net("chain").to(remote)
    weights = sum(p.numel() * 4 for p in there.parameters())
    with torch.no_grad():
        for _ in range(4):
            there(x).sum().item()
    torch.remote.synchronize()
    kept = torch.remote.memory_allocated() - before
    assert weights <= kept <= 2 * weights + (64 << 10)
    del there
    torch.remote.synchronize()
    assert torch.remote.memory_allocated() <= before + (4 << 10)


def test_a_training_step(remote: torch.device) -> None:
    here = net("resnet").train()
    there = copy.deepcopy(here).to(remote)
    x = torch.randn(2, 3, 32, 32)
    losses = [
        [(model(x.to(device)).square().sum(), model)[0] for _ in range(2)]
        for model, device in ((here, torch.device("cpu")), (there, remote))
    ]
    for mine, its in zip(losses[1], losses[0], strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-3, atol=1e-3)
        mine.backward()
        its.backward()
    for mine, its in zip(there.parameters(), here.parameters(), strict=True):
        assert mine.grad.stride() == its.grad.stride()
        torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=1e-2, atol=1e-2)
