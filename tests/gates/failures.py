"""Gates 3, 4 and 7: workers and clients that are killed, and memory that runs out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

from python_processes import Python

from tests.gates.faults import environment, listening
from tests.gates.pieces import Outcome, Piece, script


def killed_workers(piece: Piece) -> Outcome:
    """Gate 3: kill -9 of the worker during a program must raise WorkerLost in time."""
    out = script(
        """
        import os, random, re, signal, sys, threading, time, torch, torch_remote
        seed, wrong, times = random.Random(int(sys.argv[2])), 0, []
        for i in range(int(sys.argv[1])):
            x = torch.randn(400, 400, device="remote")
            x.sum().item()
            pid = int(re.search(r"pid (\\d+)", torch.remote.get_device_properties().worker)[1])
            died = []
            def kill():
                time.sleep(seed.random() * 0.1)
                died.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)
            killer = threading.Thread(target=kill)
            killer.start()
            try:
                while True:
                    for _ in range(20):
                        x = (x @ x).sin()
                    x.sum().item()
            except torch.remote.WorkerLost as error:
                times.append(time.monotonic() - died[0])
                wrong += error.session is None
            killer.join()
            torch.remote.restart()
            wrong += torch.ones(3, device="remote").sum().item() != 3
        print(wrong, *times)
        """,
        piece.count, piece.seed, TORCH_REMOTE_WORKER="local",
    ).split()  # fmt: skip
    return Outcome(piece.count, int(out[0]), [float(time) for time in out[1:]])


LEASE = 1.0  # seconds


def killed_clients(piece: Piece) -> Outcome:
    """Gate 4: after kill -9 of a client, its session's memory and descriptors must be free by lease + 1 s."""
    wrong, times, seed = 0, [], piece.random
    with listening(piece.folder, "--lease", LEASE, "--heartbeat", 1) as worker:
        held = worker.descriptors()
        # Children are forked before the device is used, so torch is imported once.
        source = """
            import os, sys, torch, torch_remote
            for line in sys.stdin:
                if (pid := os.fork()) == 0:
                    x = torch.ones(1000, 1000, device="remote")
                    x.sum().item()
                    print(os.getpid(), flush=True)
                    while True:
                        x = (x @ x).clamp(-1, 1)
                        x.sum().item()
                os.waitpid(pid, 0)
        """
        clients = Python(
            [sys.executable, "-c", textwrap.dedent(source)], env=environment(TORCH_REMOTE_WORKER=worker.url),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert clients.stdin is not None and clients.stdout is not None
        for _ in range(piece.count):
            clients.stdin.write("\n")
            clients.stdin.flush()
            pid = int(clients.stdout.readline())
            time.sleep(seed.random() * 0.2)
            os.kill(pid, signal.SIGKILL)
            died = time.monotonic()
            while worker.children() and time.monotonic() < died + 20:
                time.sleep(0.01)
            times.append(time.monotonic() - died)
            wrong += bool(worker.children())
        clients.stdin.close()
        clients.wait()
        wrong += worker.descriptors() > held
    return Outcome(piece.count, wrong, times)


def out_of_memory(piece: Piece) -> Outcome:
    """Gate 7: the op after an out-of-memory error must be right."""
    with listening(piece.folder, "--memory-limit", "200M", url=f"unix://{piece.folder}/small") as worker:
        out = script(
            """
            import sys, torch, torch_remote
            wrong, told = 0, 0
            x = torch.arange(1000.0, device="remote")
            for i in range(int(sys.argv[1])):
                try:
                    torch.zeros(100 + i, 1_000_000, device="remote").sum().item()
                except torch.OutOfMemoryError as error:
                    told += "<string>" in str(error) or "line" in str(error)
                wrong += (x + i).sum().item() != 499500 + 1000 * i
            print(wrong + int(sys.argv[1]) - told)
            """,
            piece.count, TORCH_REMOTE_WORKER=worker.url,
        )  # fmt: skip
    return Outcome(piece.count, int(out))
