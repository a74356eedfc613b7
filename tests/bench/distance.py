"""What distance costs: the same work at a worker beside the script and at one that every byte takes 20 ms to reach and
to come back from, in turn.

bazel run //tests/bench:distance                   as the markdown table of docs/benchmarks.md
bazel run //tests/bench:distance -- --delay 50     another distance, in milliseconds
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

DELAY = 20.0  # ms each way
MILLISECOND = 1e-3


# -- the line ----------------------------------------------------------------------------------------------------------


def carry(source: socket.socket, to: socket.socket, delay: float) -> None:
    """All bytes of one direction, each `delay` seconds after it came."""
    waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def deliver() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                to.sendall(data) if data else to.shutdown(socket.SHUT_WR)
            except OSError:
                return
            if not data:
                return

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + delay, data))
        if not data:
            return


def line(port: int, delay: float) -> None:
    """Listens at a port of its own, which it prints, for connections to `port`."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((near, far), (far, near)):
            threading.Thread(target=carry, args=(*ends, delay), daemon=True).start()


def started(*command: str) -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


# -- the work ----------------------------------------------------------------------------------------------------------


def training(width: int, batch: int, device: str, steps: int = 40) -> float:
    """Seconds a step of an MLP with Adam, the loss read every 10 steps."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    net.to(device)
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(batch, 256).to(device), torch.randn(batch, 1).to(device)
    for step in range(2 * steps):
        if step == steps:
            torch.remote.synchronize(device)
            begin = time.perf_counter()
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            loss.item()
    return (time.perf_counter() - begin) / steps


def decoding(device: str, tokens: int = 64) -> float:
    """Seconds a token of GPT-2 (124 million parameters) with a cache, the tokens read at the end."""
    import torch
    import transformers

    torch.manual_seed(0)
    if device not in _models:
        _models[device] = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().to(device)
    model = _models[device]
    with torch.no_grad():
        out = model(torch.randint(0, 1000, (1, 16)).to(device), use_cache=True)
        chosen = [out.logits[:, -1:].argmax(-1)]
        torch.remote.synchronize(device)
        begin = time.perf_counter()
        for _ in range(tokens):
            out = model(chosen[-1], past_key_values=out.past_key_values, use_cache=True)
            chosen.append(out.logits[:, -1:].argmax(-1))
        torch.cat(chosen).tolist()
        return (time.perf_counter() - begin) / tokens


_models: dict[str, object] = {}

WORK: dict[str, tuple[Callable[[str], float], float]] = {
    "MLP 256-256-1, batch 64, loss read every 10 steps: a step": (lambda d: training(256, 64, d), 1 / 0.95),
    "MLP 2048-2048-1, batch 256, likewise": (lambda d: training(2048, 256, d), 1 / 0.95),
    "MLP 4096-4096-1, batch 512, likewise": (lambda d: training(4096, 512, d, steps=20), 1 / 0.95),
    "GPT-2, tokens kept on the device: a token": (decoding, 1.1),
}


def table(rounds: int, delay: float, only: str = "") -> None:
    worker, url = started("-m", "torch_remote.worker", "--listen", "tcp://127.0.0.1:0")
    proxy, port = started(__file__, "--line", url.rsplit(":", 1)[1], "--delay", str(delay))
    try:
        os.environ["TORCH_REMOTE_WORKER"] = f"{url},tcp://127.0.0.1:{port}"
        import torch

        import torch_remote  # noqa: F401

        print(f"| what | beside | {delay:g} ms each way | ratio | target | |\n|---|---:|---:|---:|---:|---|")
        for name, (work, most) in WORK.items():
            if only not in name:
                continue
            samples: dict[str, list[float]] = {"remote:0": [], "remote:1": []}
            for device in samples:
                work(device)
            for _ in range(rounds):
                for device, seconds in samples.items():
                    seconds.append(work(device))
            near, far = (statistics.median(seconds) for seconds in samples.values())
            missed = "" if far <= most * near else "**missed**"
            print(
                f"| {name} | {near / MILLISECOND:.2f} ms | {far / MILLISECOND:.2f} ms | {far / near:.2f} | "
                f"≤ {most:.2f} | {missed} |",
                flush=True,
            )
        torch.remote.synchronize(0)
    finally:
        for process in (worker, proxy):
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=DELAY, help="milliseconds each way")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.line:
        line(args.line, args.delay * MILLISECOND)
    table(args.rounds, args.delay, args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
