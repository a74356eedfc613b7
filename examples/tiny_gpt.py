"""Trains a GPT of 5 million parameters on the docstrings of Python's standard library, and lets it write some more.

bazel run //examples:tiny_gpt -- --device remote --steps 1000 --checkpoint /tmp/gpt.pt
bazel run //examples:tiny_gpt -- --device remote --steps 2000 --checkpoint /tmp/gpt.pt --resume

The model is plain PyTorch and reads bytes. Training has mixed precision, gradient accumulation, a schedule and
checkpoints; a run that was interrupted goes on where it was, with the same losses as one that was not. The device runs
ahead of this process, which waits where it shows a loss. Text is written one byte at a time, with a cache of keys and
values.
"""

import argparse
import ast
import json
import math
import os
import sysconfig
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import torch_remote  # noqa: F401  registers the device `remote`

Cache = list[tuple[Tensor, Tensor]]

VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class Preset:
    width: int
    layers: int
    heads: int
    context: int  # bytes that the model sees
    batch: int  # pieces of text in a batch
    accumulate: int  # batches in a step
    modules: str  # the modules whose docstrings it reads
    steps: int = 1000
    lr: float = 1e-3


PRESETS = {
    "full": Preset(width=256, layers=6, heads=8, context=256, batch=16, accumulate=2, modules="*.py"),
    "small": Preset(width=32, layers=2, heads=2, context=32, batch=4, accumulate=2, modules="[a-c]*.py", steps=12),
}


class Block(nn.Module):
    """Attention and MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        # With a cache there is one new byte, which may attend to all positions.
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class TinyGPT(nn.Module):
    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, preset.width)
        self.positions = nn.Embedding(preset.context, preset.width)
        self.blocks = nn.ModuleList(Block(preset.width, preset.heads) for _ in range(preset.layers))
        self.norm = nn.LayerNorm(preset.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Weights that add to the residual stream start smaller, the more of them there are.
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * preset.layers) if last else 0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Scores of the next byte at each position, of shape (batch, length, 256), and keys and values for the next
        call. With a cache there is one byte at a time."""
        begin = cache[0][0].shape[2] if cache else 0
        x = self.tokens(tokens) + self.positions(torch.arange(begin, begin + tokens.shape[1], device=tokens.device))
        grown: Cache = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, cache[i] if cache else None)
            grown.append(pair)
        return F.linear(self.norm(x), self.tokens.weight), grown


def docstrings(modules: str) -> Tensor:
    """Bytes of all docstrings of the standard library's modules that match the pattern, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for file in sorted(folder.glob(modules)):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = file.stem if isinstance(node, ast.Module) else node.name
                    found.append(f"{name}: {text}\n\n")
    return torch.frombuffer(bytearray("".join(found).encode()), dtype=torch.uint8)


def batch_of(text: Tensor, preset: Preset, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and the same pieces one byte later. They depend on the batch's number and the seed alone, so
    that a resumed run needs no other state to be the same."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    begin = torch.randint(len(text) - preset.context, (preset.batch, 1), generator=generator)
    pieces = text[begin + torch.arange(preset.context + 1)].long()
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def loss_of(model: TinyGPT, batch: tuple[Tensor, Tensor], device: torch.device, precision: str) -> Tensor:
    tokens, targets = (part.to(device, non_blocking=True) for part in batch)
    half = precision == "bfloat16"
    with torch.autocast(device.type, dtype=torch.bfloat16) if half else nullcontext():
        scores, _ = model(tokens)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def learning_rate(step: int, steps: int) -> float:
    """Fraction of the highest learning rate: it rises over the first steps, then falls along a cosine to a tenth."""
    warm_up = max(1, min(100, steps // 10))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


class Training:
    """Model, optimizer and schedule, and their progress."""

    def __init__(self, preset: Preset, device: torch.device, seed: int) -> None:
        torch.manual_seed(seed)
        self.preset, self.device, self.step = preset, device, 0
        self.model = TinyGPT(preset).to(device)
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=preset.lr,
            betas=(0.9, 0.95),
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate(step, preset.steps)
        )

    def one_step(self, text: Tensor, seed: int, precision: str) -> Tensor:
        """Returns the mean loss of the step's batches, still on the device."""
        total = torch.zeros((), device=self.device)
        for i in range(self.preset.accumulate):
            batch = batch_of(text, self.preset, self.step * self.preset.accumulate + i, seed)
            loss = loss_of(self.model, batch, self.device, precision) / self.preset.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        return total

    def save(self, file: Path) -> None:
        """Writes all or nothing: an interrupted save leaves the last checkpoint."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}
        partial = file.with_name(file.name + ".part")
        torch.save({"preset": asdict(self.preset), "step": self.step, **state}, partial)
        os.replace(partial, file)

    def load(self, file: Path) -> None:
        state = torch.load(file, map_location="cpu", weights_only=True)
        shape = ("width", "layers", "heads", "context")
        if any(state["preset"][name] != getattr(self.preset, name) for name in shape):
            raise SystemExit(f"{file} is of a model of other sizes: {state['preset']}")
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]


@torch.no_grad()
def held_out_loss(training: Training, text: Tensor, precision: str, batches: int = 8) -> float:
    """The loss on text that the model was not trained on. Waits once."""
    training.model.eval()
    losses = [
        loss_of(training.model, batch_of(text, training.preset, i, seed=-1), training.device, precision)
        for i in range(batches)
    ]
    training.model.train()
    return torch.stack(losses).mean().item()


@torch.no_grad()
def write(model: TinyGPT, prompt: str, count: int, context: int, seed: int, temperature: float = 0.8) -> bytes:
    """Returns the prompt and at most `count` bytes after it, as many as the model can see. Bytes are drawn on the CPU,
    so that the same scores give the same text on every device."""
    model.eval()
    device = model.tokens.weight.device
    generator = torch.Generator().manual_seed(seed)
    written = list(prompt.encode())
    tokens, cache = torch.tensor([written], device=device), None
    for _ in range(min(count, context - len(written))):
        scores, cache = model(tokens, cache)
        likely = scores[0, -1].float().cpu() / temperature
        likely[likely < likely.topk(40).values[-1]] = -torch.inf
        written.append(int(torch.multinomial(likely.softmax(0), 1, generator=generator)))
        tokens = torch.tensor([written[-1:]], device=device)
    model.train()
    return bytes(written)


def train(training: Training, text: Tensor, args: argparse.Namespace, console: Console) -> list[float]:
    """Trains up to the preset's number of steps. Returns the losses."""
    steps = training.preset.steps
    end = min(steps, args.stop or steps)
    per_step = training.preset.batch * training.preset.accumulate * training.preset.context
    losses: list[Tensor] = []
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  lr {task.fields[lr]:.1e}  {task.fields[speed]:,.0f} bytes/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=args.quiet) as progress:
        bar = progress.add_task("", total=steps, completed=training.step, loss=math.nan, lr=0.0, speed=0.0)
        begin, first = time.perf_counter(), training.step
        while training.step < end:
            losses.append(training.one_step(text, args.seed, args.precision))
            progress.update(bar, completed=training.step)
            done = training.step == end
            if training.step % args.show == 0 or done:  # the only place where this process waits
                speed = (training.step - first) * per_step / (time.perf_counter() - begin)
                rate = training.schedule.get_last_lr()[0]
                progress.update(bar, loss=losses[-1].item(), lr=rate, speed=speed)
            if args.checkpoint and (training.step % args.save == 0 or done):
                training.save(args.checkpoint)
    return torch.stack(losses).tolist() if losses else []


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="remote", help="remote (default), remote:1, cpu, ...")
    parser.add_argument("--preset", choices=PRESETS, default="full", help="small: 30,000 parameters, for a try")
    parser.add_argument("--steps", type=int, help="how far to train; default: the preset's")
    parser.add_argument("--stop", type=int, help="end after so many steps, as if interrupted")
    parser.add_argument("--accumulate", type=int, help="batches of a step; default: the preset's")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="kept there every --save steps")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    parser.add_argument("--save", type=int, default=200, help="steps between two checkpoints")
    parser.add_argument("--show", type=int, default=10, help="steps between two losses that are shown")
    parser.add_argument("--sample", type=int, default=200, help="bytes to write at the end")
    parser.add_argument("--prompt", default="open: ")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--losses", metavar="FILE", help="write the losses there, as JSON")
    args = parser.parse_args(arguments)
    if args.resume and args.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE")
    return args


def main() -> None:
    args = parse_arguments()
    console = Console()
    preset = PRESETS[args.preset]
    preset = replace(preset, steps=args.steps or preset.steps, accumulate=args.accumulate or preset.accumulate)
    text = docstrings(preset.modules)
    held_out = len(text) // 10
    training = Training(preset, torch.device(args.device), args.seed)
    parameters = sum(p.numel() for p in training.model.parameters())
    console.print(f"{parameters:,} parameters, {len(text):,} bytes of docstrings, on {args.device}")
    if args.resume and args.checkpoint.exists():
        training.load(args.checkpoint)
        console.print(f"goes on after step {training.step}")

    begin = time.perf_counter()
    losses = train(training, text[:-held_out], args, console)
    seconds = time.perf_counter() - begin
    if losses:
        console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps, {seconds:.1f} s")
    console.print(f"held out: {held_out_loss(training, text[-held_out:], args.precision):.3f}")
    if args.losses:
        Path(args.losses).write_text(json.dumps(losses))
    if args.sample:
        begin = time.perf_counter()
        written = write(training.model, args.prompt, args.sample, preset.context, args.seed)
        seconds = time.perf_counter() - begin
        console.print(written.decode(errors="replace"), markup=False, highlight=False)
        console.print(f"{(len(written) - len(args.prompt.encode())) / seconds:,.0f} bytes/s")


if __name__ == "__main__":
    main()
