"""Gate 12: slow links, many clients, and long runs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from python_processes import Python

from tests.gates.faults import Proxy, environment, listening
from tests.gates.pieces import Outcome, Piece, script


def slow_link(piece: Piece) -> Outcome:
    """Gate 12: on a 10 Mbit/s link, neither end may keep more than the data in flight."""
    with listening(piece.folder) as worker:
        proxy = Proxy(worker.port, rate=1.25e6)
        out = script(
            """
            import resource, sys, torch, torch_remote
            def most():
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            many = int(sys.argv[1])
            total = torch.zeros(250_000, device="remote")
            total.sum().item()
            before = most()
            for i in range(many):
                total += torch.full((250_000,), float(i)).to("remote")
            wrong = total.cpu().ne(many * (many - 1) / 2).sum().item()
            print(wrong, most() - before)
            """,
            piece.count, TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}",
        ).split()  # fmt: skip
    grown = int(out[1])
    return Outcome(piece.count, int(out[0]) + (grown > 512 << 20), worst=grown / (1 << 20))


def oversubscribed(piece: Piece) -> Outcome:
    """Gate 12: ten clients per core at the same time, each of which sends ten times its memory limit."""
    limit, wrong, most = 64 << 20, 0, 0
    tensors = 160 if piece.count > 10 else 20  # of 4 MB each; 20 for the normal test run
    source = """
        import sys, torch, torch_remote
        torch.set_num_threads(1)
        sys.stdin.readline()
        wrong, kept = 0, []
        for i in range(int(sys.argv[1])):
            there = (here := torch.arange(i, i + 1_000_000, dtype=torch.int32)).to("remote")
            kept = [*kept[-2:], there]
            wrong += ((there * 2 + 1) % 1000).sum().item() != ((here * 2 + 1) % 1000).sum().item()
        kept = [tensor.cpu() for tensor in kept]
        print(wrong + sum(not torch.equal(a, b - 1) for a, b in zip(kept, kept[1:])))
    """
    with listening(piece.folder, "--memory-limit", "64M", "--max-sessions", piece.count + 1) as worker:
        clients = [
            Python(
                [sys.executable, "-c", textwrap.dedent(source), tensors],
                env=environment(TORCH_REMOTE_WORKER=worker.url), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(piece.count)
        ]  # fmt: skip
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.close()
        while any(client.poll() is None for client in clients):
            most = max([most, *map(allocated, worker.children())])
            time.sleep(0.05)
        for client in clients:
            assert client.stdout is not None
            wrong += client.stdout.read() != "0\n" or client.returncode != 0
    # In addition to its tensors, a session has torch, a compiler, and messages in flight.
    wrong += most > limit + (256 << 20)
    return Outcome(piece.count, wrong, worst=most / (1 << 20))


def allocated(pid: int) -> int:
    """Bytes of anonymous and shared memory; 0 if the process is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(size) << 10 for size in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))
    return 0


def soak(piece: Piece) -> Outcome:
    """Gate 12: how much the memory of both ends grows after the first quarter of the time."""
    seconds = piece.count
    with listening(piece.folder) as worker:
        out = script(
            """
            import re, sys, time, torch, torch_remote
            from torch import nn
            def resident(pid):
                return int(re.search(r"VmRSS:\\s+(\\d+)", open(f"/proc/{pid}/status").read())[1])
            seconds, begin, steps = float(sys.argv[1]), time.monotonic(), 0
            net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to("remote")
            optimizer = torch.optim.AdamW(net.parameters())
            # settled: since then no kernel was compiled. One that is being compiled takes memory before it counts.
            first, end, kernels, settled, quiet = None, seconds, 0, 0.0, max(seconds / 4, 5)
            while (passed := time.monotonic() - begin) < end or first is None:
                loss = net(torch.randn(32 + steps % 5, 64).to("remote")).square().mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                steps += 1
                if steps % 20 == 0:
                    loss.item()
                if kernels != (kernels := torch.remote.stats()["kernels_compiled"]):
                    settled, first = passed, None
                if first is None and passed > quiet + settled:
                    pid = int(re.search(r"pid (\\d+)", torch.remote.get_device_properties().worker)[1])
                    first, end = (resident("self"), resident(pid)), max(seconds, passed + seconds / 2)
            last = resident("self"), resident(pid)
            print(steps, *(round(100 * (b - a) / a, 2) for a, b in zip(first, last)))
            """,
            seconds, timeout=2 * seconds + 600, TORCH_REMOTE_WORKER=worker.url,
        ).split()  # fmt: skip
    steps, grown = int(out[0]), [float(text) for text in out[1:]]
    text = f"client {grown[0]} %, session {grown[1]} % larger"
    return Outcome(piece.count, sum(g >= 1 for g in grown), worst=max(grown), kinds={"steps": steps}, text=text)
