"""Training gives the same bits in every process, with a cold or a warm kernel cache, at any load, and after a resume.

`torch.use_deterministic_algorithms(True)` promises all of it. With `TORCH_REMOTE_WAIT_COMPILE=1`, a resumed run may
differ from an uninterrupted one. `TORCH_REMOTE_TEST_ROUNDS` repeats the processes (default: 1).
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_processes import run_python

ROUNDS = int(os.environ.get("TORCH_REMOTE_TEST_ROUNDS", "1"))

# Trains from step `first` to step `last`, loading and saving checkpoints, and prints hashes of losses and states.
TRAIN = """
    import hashlib, sys
    import torch, torch_remote
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    flag, compiled, waits, first, last, load, save = sys.argv[1:]
    first, last = int(first), int(last)
    torch.use_deterministic_algorithms(flag == "flag")
    device = torch.device("remote")
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.mlp = nn.Sequential(up, nn.GELU(), nn.Dropout(0.1), down)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.dropout(self.out(y.transpose(1, 2).reshape(b, t, w)), 0.1, self.training)
            return x + self.mlp(self.second(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.images = nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.SiLU(),
                nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(8, 64), nn.SiLU())
            self.places = nn.Embedding(64, 64)
            self.blocks = nn.ModuleList([Block(64), Block(64)])
            self.head = nn.Linear(64, 100)

        def forward(self, x):
            x = self.images(x).flatten(2).transpose(1, 2)
            x = x + self.places(torch.arange(x.shape[1], device=x.device) * 7 % 64)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    net = Net().to(device)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    if load != "-":
        state = torch.load(load, weights_only=True)
        net.load_state_dict(state["net"]), ema.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"]), scheduler.load_state_dict(state["scheduler"])
        torch.remote.set_rng_state(state["random"])
    forward = torch.compile(net) if compiled == "compiled" else net

    losses = []
    for step in range(first, last):
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, 32, 32, generator=numbers).to(device)
        y = torch.randint(0, 100, (8,), generator=numbers).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        ema.update_parameters(net)
        losses.append(loss.detach())
        if waits == "waits":
            torch.remote.synchronize()
    if save != "-":
        torch.save({"net": net.state_dict(), "ema": ema.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "random": torch.remote.get_rng_state()}, save)

    def digest(values):
        bits = hashlib.sha256()
        for value in values:
            bits.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return bits.hexdigest()[:16]

    for step, loss in enumerate(losses, first):
        print("loss", step, digest([loss.reshape(1)]))
    print("net", digest([t.reshape(-1) for t in net.state_dict().values()]))
    print("ema", digest([t.reshape(-1) for t in ema.state_dict().values()]))
    moments = [t.reshape(-1) for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    print("optimizer", digest(moments))
"""

BUSY = "while True: sum(range(10_000))"


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Starts processes that each keep one core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


class Training:
    def __init__(self, folder: Path, flag: str, compiled: str, waits: str, **environment: str) -> None:
        self.file = folder / "train.py"
        self.file.write_text(textwrap.dedent(TRAIN))
        self.folder, self.arguments, self.environment = folder, [flag, compiled, waits], environment

    def run(self, first: int, last: int, load: str = "-", save: str = "-", kernels: str = "warm") -> list[str]:
        environment = {**os.environ, **self.environment, "TORCH_REMOTE_KERNEL_CACHE": str(self.folder / kernels)}
        arguments = [*self.arguments, str(first), str(last), load, save]
        result = run_python(self.file, *arguments, env=environment, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.splitlines()


WAITS = {"TORCH_REMOTE_WAIT_COMPILE": "1"}


@pytest.mark.parametrize(
    ("flag", "compiled", "waits", "environment"),
    [
        ("flag", "eager", "runs on", {}),
        ("flag", "compiled", "runs on", {}),
        ("no flag", "eager", "waits", WAITS),
        ("no flag", "compiled", "waits", WAITS),
    ],
    ids=["flag", "flag, compiled", "variable", "variable, compiled"],
)
def test_a_training_has_the_same_bits(tmp_path, remote, flag, compiled, waits, environment):
    training = Training(tmp_path, flag, compiled, waits, **environment)
    steps, middle = 8, 3
    expected = training.run(0, steps)  # with a cold cache
    assert len(set(expected[:steps])) == steps, expected  # the loss changes in each step
    for turn in range(ROUNDS):
        for busy in (0, 3):
            with load(busy):
                assert training.run(0, steps) == expected, f"beside {busy} busy processes"
        kernels = f"cold {turn}"
        with load(1):
            if flag != "flag":
                assert training.run(0, steps, kernels=kernels) == expected, "cold, beside a busy process"
                continue
            checkpoint = str(tmp_path / "checkpoint.pt")
            begun = training.run(0, middle, save=checkpoint, kernels=kernels)
            assert begun[:middle] == expected[:middle]
            resumed = training.run(middle, steps, load=checkpoint, kernels=kernels)
        assert resumed == expected[middle:], "resumed"
