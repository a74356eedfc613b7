"""Models and single ops on the device compared with CPU eager, alternating in one process; markdown tables of ratios.

bazel run //tests/bench:zoo_speed                                eager models, training and inference
bazel run //tests/bench:zoo_speed -- --compiled                  with torch.compile(backend="remote")
bazel run //tests/bench:zoo_speed -- --ops                       single ops, and copies of 64 MB
bazel run //tests/bench:zoo_speed -- --only lstm resnet50 --rounds 21

Both sides have the same number of threads and sleep between samples. Every result is read: each forward pass by a sum
of its output, each training step by its loss.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_remote  # noqa: F401

REMOTE, CPU = torch.device("remote"), torch.device("cpu")
SAMPLE = 0.06  # minimum seconds per sample
REST = 0.03  # seconds between samples: longer than torch's threads of either side spin


# -- models ------------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Two levels, with group norm and skip connections."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            layers: list[nn.Module] = []
            for i in range(2):
                layers += [
                    nn.Conv2d(outputs if i else inputs, outputs, 3, padding=1),
                    nn.GroupNorm(8, outputs),
                    nn.SiLU(),
                ]
            return nn.Sequential(*layers)

        self.down1, self.down2, self.middle = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = block(4 * width, 2 * width), block(2 * width, width)
        self.leave = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        one = self.down1(images)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.middle(F.max_pool2d(two, 2))
        x = self.join2(torch.cat([self.up2(x), two], 1))
        return self.leave(self.join1(torch.cat([self.up1(x), one], 1)))


class Lstm(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 128)
        self.rnn = nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.tokens(tokens))[0])


class Logits(nn.Module):
    """A model of transformers that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


@dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]  # of outputs and inputs


VOCABULARY = 1000


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def first_class(logits: Tensor, images: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def models() -> dict[str, Model]:
    import transformers as t

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    tokens = lambda: torch.randint(0, VOCABULARY, (4, 64))  # noqa: E731
    gpt2 = t.GPT2Config(n_layer=4, n_head=8, n_embd=256, vocab_size=VOCABULARY, n_positions=128)
    gpt2.resid_pdrop = gpt2.embd_pdrop = gpt2.attn_pdrop = 0.0
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    llama = t.LlamaConfig(**sizes, intermediate_size=688, num_key_value_heads=4, vocab_size=VOCABULARY)
    bert = t.BertConfig(**sizes, **no_dropout, intermediate_size=1024, vocab_size=VOCABULARY)
    vit = t.ViTConfig(**sizes, **no_dropout, intermediate_size=1024, image_size=96, patch_size=8, num_labels=100)
    mamba = t.MambaConfig(hidden_size=128, num_hidden_layers=2, state_size=16, vocab_size=VOCABULARY)
    resnet50 = t.ResNetConfig(num_labels=100)  # ResNet-50 is the default
    return {
        "llama": Model(lambda: Logits(t.LlamaForCausalLM(llama)), tokens, next_token),
        "gpt2": Model(lambda: Logits(t.GPT2LMHeadModel(gpt2)), tokens, next_token),
        "bert": Model(lambda: Logits(t.BertForMaskedLM(bert)), tokens, next_token),
        "vit": Model(lambda: Logits(t.ViTForImageClassification(vit)), lambda: torch.randn(4, 3, 96, 96), first_class),
        "resnet50": Model(
            lambda: Logits(t.ResNetForImageClassification(resnet50)), lambda: torch.randn(2, 3, 160, 160), first_class
        ),
        "unet": Model(UNet, lambda: torch.randn(2, 3, 64, 64), F.mse_loss),
        "lstm": Model(lambda: Lstm(VOCABULARY), lambda: torch.randint(0, VOCABULARY, (16, 32)), next_token),
        "mamba": Model(
            lambda: Logits(t.MambaForCausalLM(mamba)), lambda: torch.randint(0, VOCABULARY, (4, 32)), next_token
        ),
    }


NAMES = ("llama", "gpt2", "bert", "vit", "resnet50", "unet", "lstm", "mamba")

# -- measuring ---------------------------------------------------------------------------------------------------------


def timed(function: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - begin) / count


def alternate(
    rounds: int, functions: dict[str, Callable[[], object]], sample: float = SAMPLE
) -> dict[str, list[float]]:
    """Seconds per call of each function, `rounds` times alternately. Each sample is the mean over as many calls as
    fit."""
    counts = {}
    for name, function in functions.items():
        timed(function, 3)
        counts[name] = max(1, math.ceil(sample / timed(function, 2)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            time.sleep(REST)
            timed(function, 1)  # wakes sleeping threads
            times[name].append(timed(function, counts[name]))
    return times


def ratio(times: dict[str, list[float]], of: str = "remote", to: str = "cpu") -> float:
    """The median of the pairwise ratios."""
    return statistics.median(a / b for a, b in zip(times[of], times[to], strict=True))


def geomean(values: list[float]) -> float:
    return math.exp(statistics.mean(math.log(value) for value in values))


def runs(model: Model, compiled: bool) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """Training steps and forward passes by device."""
    train, infer = {}, {}
    for device in (CPU, REMOTE):
        torch.manual_seed(0)
        net = model.make().to(device)
        x = model.inputs().to(device)
        run = torch.compile(net, backend="remote") if compiled and device == REMOTE else net
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

        def step(net=net, run=run, x=x, optimizer=optimizer) -> float:
            net.train()
            optimizer.zero_grad()
            loss = model.loss(run(x), x)
            loss.backward()
            optimizer.step()
            return loss.item()

        def forward(net=net, run=run, x=x) -> float:
            net.eval()
            with torch.no_grad():
                return run(x).sum().item()

        train[device.type], infer[device.type] = step, forward
    return train, infer


def zoo(names: list[str], rounds: int, compiled: bool) -> None:
    print(
        "| model | train, CPU | remote | ratio | inference, CPU | remote | ratio |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    found: dict[str, list[float]] = {"train": [], "infer": []}
    all_models = models()
    for name in names:
        torch._dynamo.reset()
        cells = []
        for what, functions in zip(found, runs(all_models[name], compiled), strict=True):
            times = alternate(rounds, functions)
            found[what].append(ratio(times))
            cells += [f"{statistics.median(times[side]) * 1e3:.2f} ms" for side in ("cpu", "remote")]
            cells.append(f"{found[what][-1]:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = [geomean(values) for values in found.values()]
    print(f"| geometric mean | | | {means[0]:.2f} | | | {means[1]:.2f} |")


# -- single ops --------------------------------------------------------------------------------------------------------


def changed(x: Tensor) -> None:
    """Changes the first element, because equal calls with equal arguments would be computed once."""
    x.view(-1)[:1].mul_(0.5)


def ops() -> dict[str, Callable[[torch.device], Callable[[], Tensor]]]:
    """By name: makes the function to be called on a device. Its result is read."""

    def op(function: Callable[..., Tensor], *make: Callable[[], Tensor]) -> Callable:
        def on(device: torch.device) -> Callable[[], Tensor]:
            torch.manual_seed(0)
            arguments = [m().to(device) for m in make]

            def call() -> Tensor:
                changed(arguments[0])
                return function(*arguments)

            return call

        return on

    def rnn(make: Callable[[], nn.Module], train: bool) -> Callable:
        def on(device: torch.device) -> Callable[[], Tensor]:
            torch.manual_seed(0)
            net, x = make().to(device), torch.randn(32, 16, 128).to(device)

            def call() -> Tensor:
                changed(x)
                if not train:
                    with torch.no_grad():
                        return net(x)[0]
                net.zero_grad()
                loss = net(x)[0].square().mean()
                loss.backward()
                return loss + sum(p.grad.flatten()[0] for p in net.parameters())

            return call

        return on

    randn = lambda *size, dtype=torch.float32: lambda: torch.randn(*size).to(dtype)  # noqa: E731
    bf16 = torch.bfloat16
    lstm, gru = (lambda: nn.LSTM(128, 256)), (lambda: nn.GRU(128, 256))
    return {
        "cross entropy 512x32000": op(F.cross_entropy, randn(512, 32000), lambda: torch.randint(0, 32000, (512,))),
        "attention, one query of 777 keys, 16 heads of 64": op(
            F.scaled_dot_product_attention, randn(1, 16, 1, 64), randn(1, 16, 777, 64), randn(1, 16, 777, 64)
        ),
        "attention, 256 queries, 8 heads of 64": op(
            lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), randn(2, 8, 256, 64)
        ),
        "bf16 matrix times vector, 4096x4096": op(torch.mv, randn(4096, 4096, dtype=bf16), randn(4096, dtype=bf16)),
        "bf16 linear, 1x4096x4096": op(F.linear, randn(1, 4096, dtype=bf16), randn(4096, 4096, dtype=bf16)),
        "matrix times vector, 4096x4096": op(torch.mv, randn(4096, 4096), randn(4096)),
        "max_pool2d 3x3, 8x64x112x112": op(lambda x: F.max_pool2d(x, 3, 2, 1), randn(8, 64, 112, 112)),
        "conv2d 3x3, 8x64x56x56": op(lambda x, w: F.conv2d(x, w, padding=1), randn(8, 64, 56, 56), randn(64, 64, 3, 3)),
        "batch_norm, 8x64x56x56": op(
            lambda x, m, v: F.batch_norm(x, m, v), randn(8, 64, 56, 56), randn(64), lambda: torch.rand(64) + 1
        ),
        "x + 1, 64 MB": op(lambda x: x + 1, randn(16, 1 << 20)),
        "matmul 512x512": op(torch.mm, randn(512, 512), randn(512, 512)),
        "LSTM(128, 256), 32 steps of 16": rnn(lstm, train=False),
        "LSTM(128, 256), 32 steps of 16, with gradients": rnn(lstm, train=True),
        "GRU(128, 256), 32 steps of 16": rnn(gru, train=False),
        "GRU(128, 256), 32 steps of 16, with gradients": rnn(gru, train=True),
    }


def single_ops(only: list[str], rounds: int) -> None:
    print("| op | CPU | remote | ratio |\n|---|---:|---:|---:|")
    ratios = []
    for name, on in ops().items():
        if only and not any(part in name for part in only):
            continue

        # Ten calls and one read, so that the ops count and not the message.
        def ten(call: Callable[[], Tensor]) -> Callable[[], float]:
            return lambda: torch.stack([call().flatten()[0] for _ in range(10)]).sum().item()

        times = alternate(rounds, {device.type: ten(on(device)) for device in (CPU, REMOTE)})
        cells = [f"{statistics.median(times[side]) * 1e2:.3f} ms" for side in ("cpu", "remote")]
        ratios.append(ratio(times))
        print(f"| {name} | {' | '.join(cells)} | {ratios[-1]:.2f} |", flush=True)
    if not only or any(part in "copies" for part in only):
        copies(rounds)


def copies(rounds: int) -> None:
    """64 MB into new tensors, relative to the rate of clone()."""
    host = torch.ones(16, 1 << 20)
    there = host.to(REMOTE)

    def up() -> None:
        made = host.to(REMOTE)
        torch.remote.synchronize()
        del made

    kept: list[Tensor] = []

    def keep() -> None:  # the last four stay alive, so that memory is not reused at once
        kept.append(there.cpu())
        del kept[:-4]

    functions = {"clone": host.clone, "x.cpu()": there.cpu, "x.cpu(), four kept": keep, 'x.to("remote")': up}
    times = alternate(rounds, functions)
    for name in list(functions)[1:]:
        cells = [f"{statistics.median(times[side]) * 1e3:.2f} ms" for side in ("clone", name)]
        print(
            f"| `{name}`, 64 MB, against `clone()` | {' | '.join(cells)} | {ratio(times, name, 'clone'):.2f} |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help=f"of {', '.join(NAMES)}; with --ops parts of names")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of samples of each quantity")
    parser.add_argument("--threads", type=int, default=2, help="of either side's kernels")
    parser.add_argument("--compiled", action="store_true", help="models with torch.compile on the device's side")
    parser.add_argument("--ops", action="store_true", help="single ops instead")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    os.environ["TORCH_REMOTE_WORKER_THREADS"] = str(args.threads)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {args.threads} threads\n")
    if args.ops:
        single_ops(args.only, args.rounds)
    else:
        zoo(args.only or list(NAMES), args.rounds, args.compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
