"""The cost of distance: the same work on a worker next to the script, and on a worker that each byte reaches after 20
ms. Replies take as long. Both alternate.

bazel run //tests/bench:distance                   prints the markdown table of docs/benchmarks.md
bazel run //tests/bench:distance -- --delay 50     another delay, in milliseconds
bazel run //tests/bench:distance -- --near         compares tcp on this machine with a local worker
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

DELAY = 20.0  # ms in each direction
MILLISECOND = 1e-3


# -- the delayed connection
# ---------------------------------------------------------------------------------------------


def carry(source: socket.socket, to: socket.socket, delay: float) -> None:
    """Forwards all bytes in one direction, each `delay` seconds after its arrival."""
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
    """Forwards connections to `port` from another port, which it prints."""
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


def training(width: int, batch: int, device: str, steps: int = 40, read: int = 10, feed: bool = False) -> float:
    """Seconds per step of an MLP with Adam. The loss is read every `read` steps. `feed`: batches come from this
    process."""
    steps = min(steps, _most_steps)
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    net.to(device)
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(batch, 256).to(device), torch.randn(batch, 1).to(device)
    batches = torch.randn(8, batch, 256)
    for step in range(2 * steps):
        if step == steps:
            torch.remote.synchronize(device)
            begin = time.perf_counter()
        if feed:
            x = batches[step % 8].to(device)
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % read == read - 1:
            loss.item()
    return (time.perf_counter() - begin) / steps


def decoding(device: str, tokens: int = 64) -> float:
    """Seconds per token of GPT-2 (124 million parameters) with a cache; the tokens are read at the end."""
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
_most_steps = 400

WORK: dict[str, tuple[Callable[[str], float], float]] = {
    "MLP 256-256-1, batch 64, loss read every 10 steps: a step": (lambda d: training(256, 64, d), 1 / 0.95),
    "MLP 2048-2048-1, batch 256, likewise": (lambda d: training(2048, 256, d), 1 / 0.95),
    "MLP 4096-4096-1, batch 512, likewise": (lambda d: training(4096, 512, d, steps=20), 1 / 0.95),
    "GPT-2, tokens kept on the device: a token": (decoding, 1.1),
}


# Without delay: the limit, as a multiple of a local worker's time.
NEAR: dict[str, tuple[Callable[[str], float], float]] = {
    "MLP 256-256-1, batch 64, loss read every 10 steps: a step": (lambda d: training(256, 64, d, 400), 1.05),
    "likewise, loss read every step": (lambda d: training(256, 64, d, 400, read=1), 1.05),
    "likewise, batches from this process": (lambda d: training(256, 64, d, 400, feed=True), 1.05),
    "MLP 2048-2048-1, batch 256, loss read every 10 steps": (lambda d: training(2048, 256, d), 1.05),
}


def table(rounds: int, delay: float, only: str, near: bool) -> None:
    worker, url = started("-m", "torch_remote.worker", "--listen", "tcp://127.0.0.1:0")
    processes = [worker]
    try:
        if near:
            os.environ["TORCH_REMOTE_WORKER"] = f"local,{url}"
            columns, works = "local | tcp, this machine", NEAR
        else:
            proxy, port = started(__file__, "--line", url.rsplit(":", 1)[1], "--delay", str(delay))
            processes.append(proxy)
            os.environ["TORCH_REMOTE_WORKER"] = f"{url},tcp://127.0.0.1:{port}"
            columns, works = f"beside | {delay:g} ms each way", WORK
        import torch_remote

        print(f"| what | {columns} | ratio | target | |\n|---|---:|---:|---:|---:|---|")
        for name, (work, most) in works.items():
            if only not in name:
                continue
            samples: dict[str, list[float]] = {"remote:0": [], "remote:1": []}
            for device in samples:
                work(device)
            for _ in range(rounds):
                for device, seconds in samples.items():
                    seconds.append(work(device))
            first, second = (statistics.median(seconds) for seconds in samples.values())
            missed = "" if second <= most * first else "**missed**"
            print(
                f"| {name} | {first / MILLISECOND:.3f} ms | {second / MILLISECOND:.3f} ms | {second / first:.2f} | "
                f"≤ {most:.2f} | {missed} |",
                flush=True,
            )
        torch_remote._C.shutdown(True)  # while the workers live; at exit, it would wait for lost workers
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=DELAY, help="milliseconds each way")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--steps", type=int, default=400, help="no more of training in a sample")
    parser.add_argument("--near", action="store_true", help="no distance: tcp beside a local worker")
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    global _most_steps
    _most_steps = args.steps
    if args.line:
        line(args.line, args.delay * MILLISECOND)
    table(args.rounds, args.delay, args.only, args.near)
    return 0


if __name__ == "__main__":
    sys.exit(main())
