"""Breaks connections: a proxy, and workers and clients that tests kill."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from python_processes import Python

KINDS = ("cut", "reset", "stall", "duplicate")


def environment(**more: object) -> dict[str, str]:
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, **{key: str(value) for key, value in more.items()}}


@contextlib.contextmanager
def listening(folder: Path, *arguments: object, url: str = "tcp://127.0.0.1:0") -> Iterator[Worker]:
    """Starts a worker that listens."""
    worker = Worker(folder, arguments, url)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()


class Worker:
    def __init__(self, folder: Path, arguments: tuple[object, ...], url: str) -> None:
        self.log = folder / f"log-{random.randrange(1 << 40)}"
        with self.log.open("w") as log:
            self.process = Python(
                [sys.executable, "-m", "torch_remote.worker", "--listen", url, *map(str, arguments)],
                env=environment(TORCH_REMOTE_WORKER_LOG="debug"), stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        if url.startswith("unix:"):
            while not os.path.exists(url[7:]):
                time.sleep(0.05)
            self.url = url
        else:
            assert self.process.stdout is not None
            self.url = self.process.stdout.readline().strip()
            assert self.url, self.log.read_text()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def sessions(self) -> int:
        """The number of sessions that were started."""
        return self.log.read_text().count("session with process")


class Proxy(threading.Thread):
    """Forwards connections to a port, and breaks them after a random number of bytes.

    `rate`: bytes per second in each direction. `swallow()`: loses the next bytes in a direction and ends the
    connection.
    """

    def __init__(
        self, port: int, seed: int = 1, between: int = 1 << 60, faults: int = 0, rate: float = 0, stall: float = 0.3
    ) -> None:
        super().__init__(daemon=True)
        self.to, self.random, self.between, self.left = ("127.0.0.1", port), random.Random(seed), between, faults
        self.rate, self.stall = rate, stall
        self.counts = dict.fromkeys(KINDS, 0)
        self.lost: str | None = None  # direction to lose: "up" or "down"
        self.down_until = 0.0
        self.refuses = False
        self.open: list[socket.socket] = []
        self.connections: collections.deque[Connection] = collections.deque(maxlen=8)  # the most recent ones
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def outage(self, seconds: float, refuses: bool = False) -> None:
        """Cuts all connections, and accepts none for a while. `refuses`: the port refuses, as that of a tunnel does."""
        self.down_until = time.monotonic() + seconds
        if refuses:
            self.refuses = True
            self.listener.shutdown(socket.SHUT_RDWR)  # ends accept
        for end in list(self.open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def swallow(self, direction: str) -> None:
        self.lost = direction

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                if not self.refuses:
                    raise
                self.listener.close()
                time.sleep(max(0.0, self.down_until - time.monotonic()))
                self.refuses = False
                self.listener = socket.create_server(("127.0.0.1", self.port))
                continue
            if time.monotonic() < self.down_until:
                client.close()
                continue
            worker = socket.create_connection(self.to)
            for end in (client, worker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open = [client, worker]
            connection = Connection(self, client, worker)
            self.connections.append(connection)
            for up in (True, False):
                threading.Thread(target=connection.carry, args=(up,), daemon=True).start()


class Connection:
    def __init__(self, proxy: Proxy, client: socket.socket, worker: socket.socket) -> None:
        self.proxy, self.client, self.worker = proxy, client, worker
        self.lock = threading.Lock()
        self.budget = proxy.random.randrange(1, proxy.between) if proxy.left > 0 else 1 << 62
        self.said = b""

    def carry(self, up: bool) -> None:
        here, there = (self.client, self.worker) if up else (self.worker, self.client)
        proxy = self.proxy
        try:
            while data := here.recv(65536):
                if proxy.lost == ("up" if up else "down"):
                    proxy.lost = None
                    break
                if up and len(self.said) < 4096:
                    self.said += data
                with self.lock:
                    allowed, self.budget = self.budget, self.budget - len(data)
                if proxy.rate:
                    time.sleep(len(data) / proxy.rate)
                there.sendall(data[: max(allowed, 0)])
                if allowed <= len(data):
                    if allowed > 0 and self.fault(there, data[allowed:]):
                        continue
                    break
        except OSError:
            pass
        for end in (self.client, self.worker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def fault(self, there: socket.socket, rest: bytes) -> bool:
        """Applies a fault. True: the connection continues."""
        proxy = self.proxy
        proxy.left -= 1
        kind = proxy.random.choice(KINDS)
        proxy.counts[kind] += 1
        if kind == "stall":
            time.sleep(proxy.random.random() * proxy.stall)
            there.sendall(rest)
            with self.lock:
                self.budget = proxy.random.randrange(1, proxy.between) if proxy.left > 0 else 1 << 62
            return True
        if kind == "reset":
            for end in (self.client, self.worker):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
        if kind == "duplicate":  # repeats over another connection what was already sent
            with contextlib.suppress(OSError), socket.create_connection(proxy.to) as again:
                again.sendall(self.said)
                again.settimeout(0.05)
                again.recv(4096)
        return False
