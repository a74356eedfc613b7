"""Random convolution nets on the device compared with CPU: results, gradients, and strides.

random_nets.py --seed 0 --count 1000     runs the nets of seeds 0 to 999
random_nets.py --seed 4711               one net; prints it if it fails
random_nets.py --seed 4711 --show        prints the net

A seed determines the net, its dtype, the memory formats of images and weights, the sizes, and whether it trains. It
also determines where traces are cut, and which intermediate values the script reads.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (8, 16, 24, 32, 48, 64)
LAST = torch.channels_last


# -- nets --------------------------------------------------------------------------------------------------------------


class FunctionLayer(nn.Module):
    """A function as a layer."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.function = eval(f"lambda x: {text}", {"torch": torch, "F": F})

    def extra_repr(self) -> str:
        return self.text

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Sum(nn.Module):
    """Two branches from the same input, added."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList((first, second))

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[0](x) + self.branches[1](x)


class Concat(nn.Module):
    """Several branches, with concatenated channels."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Scaled(nn.Module):
    """Multiplies each channel by a factor computed from all channels: squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()


class Net(nn.Module):
    """A sequence of layers. Returns the outputs of the `kept` ones."""

    def __init__(self, layers: list[nn.Module], kept: list[int], read: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.kept, self.read = kept, read

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        seen = {}
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i in self.kept:
                seen[f"of layer {i}"] = x
            if i in self.read:
                x.detach().sum().item()
        return seen | {"result": x}


@dataclass
class Plan:
    """A net, and what is done with it."""

    seed: int
    net: nn.Module
    dtype: torch.dtype
    trains: bool
    smooth: bool  # no gradient depends discontinuously on rounding
    channels: int
    sizes: list[tuple[int, int, int]]  # number of images, height, width
    layout: str  # of the images
    cuts: tuple[int, int]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.dtype}, trains: {self.trains}, images of {self.sizes}, {self.layout}, "
        return head + f"cuts {self.cuts}, {', '.join(self.notes)}\n{self.net}"


class Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trains = self.rng.random() < 0.55
        self.smooth = not self.trains or self.rng.random() < 0.7
        self.kinks = not self.smooth or not self.trains
        self.scale = 1.0  # height and width, relative to those of the images

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def width(self) -> int:
        return self.rng.choice(WIDTHS)

    def activation(self) -> nn.Module:
        smooth: list[Callable[[], nn.Module]] = [nn.SiLU, nn.GELU, nn.Tanh, lambda: nn.GELU("tanh"), nn.Sigmoid]
        kinks: list[Callable[[], nn.Module]] = [nn.ReLU, nn.ReLU, nn.ReLU6, nn.Hardswish, lambda: nn.LeakyReLU(0.1)]
        kinks.append(lambda: nn.ReLU(inplace=True))
        return self.rng.choice(kinks if self.kinks and self.chance(0.8) else smooth)()

    def norm(self, channels: int) -> nn.Module:
        kind = self.rng.random()
        if kind < 0.5:
            return nn.BatchNorm2d(channels)
        if kind < 0.8:
            return nn.GroupNorm(self.rng.choice([g for g in (1, 2, 4, 8) if channels % g == 0]), channels)
        if kind < 0.9:
            return nn.InstanceNorm2d(channels, affine=True)
        return FunctionLayer("F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)")

    def convolution(self, inputs: int, outputs: int) -> nn.Module:
        """A convolution that preserves height and width."""
        kernel = self.rng.choice((1, 1, 3, 3, 3, 5, (3, 1), (1, 5), 7))
        dilation = self.rng.choice((1, 1, 1, 2)) if kernel in (3, 5) else 1
        common = [g for g in (1, 1, 1, 2, 4, 8) if inputs % g == 0 and outputs % g == 0]
        groups = inputs if inputs == outputs and self.chance(0.25) else self.rng.choice(common)
        return nn.Conv2d(
            inputs, outputs, kernel, padding="same", dilation=dilation, groups=groups, bias=self.chance(0.5)
        )

    def block(self, inputs: int, outputs: int) -> nn.Module:
        layers = [self.convolution(inputs, outputs)]
        if self.chance(0.6):
            layers.append(self.norm(outputs))
        if self.chance(0.8):
            layers.append(self.activation())
        return nn.Sequential(*layers)

    def smaller(self, channels: int) -> tuple[nn.Module, int]:
        self.scale /= 2
        match self.rng.randrange(5):
            case 0 | 1:
                # With few channels in channels last, CPU's gradient of a strided 1x1 convolution writes beyond its
                # memory.
                outputs, kernel = self.width(), self.rng.choice((1 if channels >= 16 else 4, 2, 3, 5))
                each = self.chance(0.3)
                outputs, groups = (channels, channels) if each else (outputs, 1)
                return nn.Conv2d(channels, outputs, kernel, 2, kernel // 2, groups=groups), outputs
            case 2 if self.kinks:
                return nn.MaxPool2d(*self.rng.choice(((2,), (3, 2, 1), (2, 2, 0, 1, False, True)))), channels
            case _:
                return nn.AvgPool2d(2, ceil_mode=self.chance(0.3)), channels

    def larger(self, channels: int) -> tuple[nn.Module, int]:
        self.scale *= 2
        match self.rng.randrange(4):
            case 0 | 1:
                outputs, kernel = self.width(), self.rng.choice((2, 3, 4))
                return nn.ConvTranspose2d(channels, outputs, kernel, 2, (kernel - 1) // 2), outputs
            case 2:
                return nn.Upsample(scale_factor=2, mode="bilinear"), channels
            case _:
                return nn.Upsample(scale_factor=2), channels

    def other(self, channels: int) -> tuple[nn.Module, int]:
        """Layers that change the memory format, or depend on it."""
        choices = [
            "x.flip(3)",
            "x[:, :, 1:]",
            "x.transpose(2, 3)",
            "x.transpose(2, 3).contiguous()",
            "x.contiguous(memory_format=torch.channels_last)",
            "x.contiguous()",
            "F.pad(x, (1, 0, 2, 1))",
            "x + x.mean(1, keepdim=True)",
            "x * torch.softmax(x, 1)",
            "x.flatten(2).cumsum(2).reshape(x.shape) * 0.05",
            "x.reshape(x.shape[0], -1).reshape(x.shape)",
            "torch.cat(x.chunk(2, 1)[::-1], 1)",
            "(x - 1).mul_(0.5)",
            "F.pixel_shuffle(F.pixel_unshuffle(x, 1), 1)",
        ]
        if channels % 2 == 0:
            choices.append("x.reshape(x.shape[0], 2, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2)")
        return FunctionLayer(self.rng.choice(choices)), channels

    def layer(self, channels: int) -> tuple[nn.Module, int]:
        if self.scale < 1 and self.chance(0.3):
            return self.larger(channels)
        kind = self.rng.random()
        if kind < 0.45:
            outputs = self.width() if self.chance(0.6) else channels
            return self.block(channels, outputs), outputs
        if kind < 0.57:
            body = nn.Sequential(self.block(channels, channels), self.convolution(channels, channels))
            short = nn.Identity() if self.chance(0.7) else self.convolution(channels, channels)
            return nn.Sequential(Sum(body, short), self.activation()), channels
        if kind < 0.65:
            widths = [self.rng.choice(WIDTHS[:4]) for _ in range(self.rng.randint(2, 3))]
            return Concat([self.block(channels, width) for width in widths]), sum(widths)
        if kind < 0.69:
            return Scaled(channels), channels
        if kind < 0.83 and self.scale > 0.25:
            return self.smaller(channels)
        return self.other(channels)


def plan_of(seed: int) -> Plan:
    maker = Maker(seed)
    rng = maker.rng
    channels = first = rng.choice((3, 3, 4, 16, 32))
    layers = []
    for _ in range(rng.randint(2, 7)):
        layer, channels = maker.layer(channels)
        layers.append(layer)
    layers.append(maker.convolution(channels, rng.choice((1, 4, 32))))
    indices = range(len(layers))
    kept = [i for i in indices if maker.chance(0.15)]
    # A returned value is not written in place.
    read = [i for i in indices if maker.chance(0.1)]
    dtype = torch.float32
    if not maker.trains and maker.chance(0.3):
        dtype = torch.bfloat16
    elif maker.chance(0.07):
        dtype = torch.float64
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net([copy.deepcopy(layer) for layer in layers], kept, read)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = torch.randn_like(module.running_mean) * 0.1
                module.running_var = torch.rand_like(module.running_var) + 0.5
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(module.weight, std=0.7 / module.weight[0].numel() ** 0.5)
    net.train(maker.trains)
    if maker.trains and maker.chance(0.2):
        for module in net.modules():  # in eval mode, as in fine-tuning
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    net = net.to(dtype)
    notes = []
    if maker.chance(0.25):
        net = net.to(memory_format=LAST)
        notes.append("weights channels last")

    def size() -> int:
        return rng.choice((12, 16, 17, 20, 24, 32, 33))

    one, other = ((rng.choice((1, 2, 3)) + maker.trains, size(), size()) for _ in range(2))
    sizes = [one, one, other, one]
    layout = rng.choice(("plain", "plain", "channels last", "a slice", "turned"))
    cuts = rng.choice(((64, 1024), (64, 1024), (8, 24), (1, 4), (3, 16)))
    return Plan(seed, net, dtype, maker.trains, maker.smooth, first, sizes, layout, cuts, notes)


# -- running -----------------------------------------------------------------------------------------------------------


def with_layout(x: Tensor, layout: str) -> Tensor:
    match layout:
        case "channels last":
            return x.to(memory_format=LAST)
        case "a slice":
            return F.pad(x, (1, 2))[..., 1:-2]
        case "turned":
            return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x


def strides(x: Tensor) -> tuple[int, ...]:
    """Strides; 0 where they have no effect."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(x.shape, x.stride(), strict=True))


Shown = tuple[str, tuple[int, ...], Tensor]  # name, strides, values


def run(plan: Plan, device: torch.device | str, dtype: torch.dtype, layout: str) -> Iterator[list[Shown]]:
    """The observable state after each run of the net."""
    net = copy.deepcopy(plan.net).to(dtype).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9) if plan.trains else None
    images = torch.Generator().manual_seed(plan.seed)
    for size in plan.sizes:
        count, height, width = size
        x = torch.randn((count, plan.channels, height, width), generator=images, dtype=torch.float64)
        x = with_layout(x.to(plan.dtype), layout).to(dtype).to(device)
        if optimizer is None:
            with torch.no_grad():
                seen = dict(net(x))
        else:
            x.requires_grad_()
            seen = dict(net(x))
            optimizer.zero_grad()
            total = sum(value.square().mean() for value in seen.values())
            assert isinstance(total, Tensor)
            total.backward()
            seen |= {"loss": total, "gradient of images": x.grad}
            # The gradient of a bias before a norm consists of rounding errors only.
            seen |= {f"gradient of {n}": p.grad for n, p in net.named_parameters() if p.grad is not None}
            optimizer.step()
            seen |= {n: b for n, b in net.named_buffers() if b.dtype.is_floating_point}
        yield [(name, strides(value), value.detach().cpu().double().contiguous()) for name, value in seen.items()]


def difference(plan: Plan, device: torch.device | str) -> str | None:
    """Runs the plan on the device and on CPU. Returns the first difference; None if there is none."""
    if torch.device(device).type == "remote":
        from torch_remote import _C

        _C.set_cut_limits(0, *plan.cuts)
    try:
        runs = zip(
            run(plan, device, plan.dtype, plan.layout),
            run(plan, "cpu", plan.dtype, plan.layout),
            run(plan, "cpu", plan.dtype, "plain" if plan.layout == "channels last" else "channels last"),
            run(plan, "cpu", torch.float64, plan.layout),
            strict=True,
        )
        for number, (got, cpu, otherwise, exact) in enumerate(runs):
            text = first_difference(plan, got, cpu, otherwise, exact)
            if text is not None:
                return f"run {number}, {text}\n{plan}"
    finally:
        if torch.device(device).type == "remote":
            _C.set_cut_limits(0, 64, 1024)
    return None


def first_difference(
    plan: Plan, got: list[Shown], cpu: list[Shown], otherwise: list[Shown], exact: list[Shown]
) -> str | None:
    if [name for name, _, _ in got] != [name for name, _, _ in cpu]:
        return f"there is {[name for name, _, _ in got]} instead of {[name for name, _, _ in cpu]}"
    # Biases before a norm have zero gradients except for rounding errors. These are relative to the gradients of their
    # neighbors.
    gradients = [
        value.abs().max().item() for name, _, value in exact if name.startswith("gradient of") and value.numel()
    ]
    largest = max(gradients, default=0.0)
    for mine, its, last, right in zip(got, cpu, otherwise, exact, strict=True):
        name, lies, values = mine
        if lies != its[1]:
            return f"{name}: strides {lies} instead of {its[1]}"
        if values.shape != its[2].shape:
            return f"{name}: {tuple(values.shape)} instead of {tuple(its[2].shape)}"
        if not torch.equal(values.isfinite(), its[2].isfinite()):
            return f"{name}: other elements are finite"
        error = far(values, right[2])
        of_cpu = max(far(its[2], right[2]), far(last[2], right[2]))
        size = right[2].abs().max().item() if right[2].numel() else 0.0
        if name.startswith("gradient of"):
            size = max(size, largest)
        # cancellation, and norms of few elements, amplify a rounding error
        roundings = 8 if plan.dtype == torch.bfloat16 else 1000
        allowed = 4 * of_cpu + roundings * torch.finfo(plan.dtype).eps * size
        if plan.trains and not plan.smooth:  # a few elements may have fallen on the other side of a kink
            usual = right[2].norm().item() / max(1, right[2].numel()) ** 0.5
            allowed = max(allowed, 0.25 * max(usual, 0.1 * size))
            error = (values - right[2]).norm().item() / max(1, values.numel()) ** 0.5
        if not error <= allowed:
            return f"{name}: off by {error:.3g}, CPU by {of_cpu:.3g}, allowed {allowed:.3g}, largest {size:.3g}"
    return None


def far(values: Tensor, exact: Tensor) -> float:
    return (values - exact).abs().max().item() if values.numel() else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first net")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--device", default="remote")
    parser.add_argument("--show", action="store_true", help="print the net instead of running it")
    args = parser.parse_args()
    if args.show:
        print(plan_of(args.seed))
        return 0
    if args.device == "remote":
        import torch_remote  # noqa: F401
    # As a sharded test, each shard runs a part.
    shards, shard = (int(os.environ.get(name, d)) for name, d in (("TEST_TOTAL_SHARDS", 1), ("TEST_SHARD_INDEX", 0)))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        open(os.environ["TEST_SHARD_STATUS_FILE"], "w").close()
    torch.set_num_threads(1)  # several threads would wait for each other at every small layer on a busy machine
    failed = 0
    for seed in range(args.seed + shard, args.seed + args.count, shards):
        text = difference(plan_of(seed), args.device)
        if text is not None:
            failed += 1
            print(f"FAILED {text}", flush=True)
    print(f"{args.count} nets, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
