"""The gates of docs/reliability.md, mostly over real sockets and processes.

Runs what is still missing, for two hours:  bazel run //tests/gates -- --minutes=120
Runs some of the gates:                     bazel run //tests/gates -- --minutes=30 2 5
Does not keep the results:                  bazel run //tests/gates -- --short 2 5
Prints the table of docs/reliability.md:    bazel run //tests/gates -- --page

A gate has parts, and a part is run in pieces. Each piece adds a line to tests/gates/results.jsonl (results.py).
"""

from __future__ import annotations

import argparse
import array
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

from python_processes import Python, run_python

from tests.gates import results
from tests.gates.faults import Proxy, environment, listening
from tests.gates.results import Part

TOKEN = "5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee"


@dataclasses.dataclass
class Piece:
    """A piece of a part: `count` units, beginning with unit `first`."""

    folder: Path
    first: int
    count: int

    @property
    def seed(self) -> int:
        return self.first + 1

    @property
    def random(self) -> random.Random:
        return random.Random(self.seed)


@dataclasses.dataclass
class Outcome:
    """The result of a piece. `times` are compared with the part's limit; `worst` is published if there are none."""

    count: int
    wrong: int
    times: list[float] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    text: str = ""


def script(source: str, *arguments: object, timeout: float = 3000, **variables: object) -> str:
    done = run_python("-c", textwrap.dedent(source), *arguments, env=environment(**variables), timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


# Weights, gradients and activations are integers below 2^24, so float32 holds them exactly in any order of summation.
# The result has the same bits as on the CPU, whichever kernels compute it. A step that is lost or executed twice shows.
TRAIN = """
    import hashlib, os, sys, torch
    from torch import nn
    steps, seed, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if device == "remote":
        import torch_remote
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-8, 9, parameter.shape))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = torch.randint(-1, 2, (4, 64, 64)).float()
    count = torch.zeros((), dtype=torch.int64, device=device)
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for step in range(steps):
        loss = model(data[step % 4].to(device)).abs().sum()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad.sign_()
            optimizer.step()
            for i, parameter in enumerate(model.parameters()):
                # Where the weights are pulled back to depends on the step, so they never settle.
                parameter.copy_(torch.where(parameter.abs() > 8, (step + i) % 7 - 3.0, parameter))
        count += 1
        if step % 5 == 0:
            loss.item()
            model[0].weight.cpu()
        if step == 50:
            before = held()
    assert count.item() == steps, count
    after = held()
    # A connection that is being replaced may hold one more for a moment.
    if device == "remote":
        assert after[0] <= before[0] + 1 and after[1] <= before[1] + 1, (before, after)
    weights = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
    assert weights.unique().numel() > 4, weights
    print(hashlib.sha256(weights.to(torch.int64).numpy().tobytes()).hexdigest())
"""


def broken_connections(scheme: str) -> Callable[[Piece], Outcome]:
    def run(piece: Piece) -> Outcome:
        """Gate 2: cuts, resets, stalls and duplicates at random bytes. The results must equal those of the CPU."""
        folder, steps = piece.folder, max(60, 2 * piece.count)
        expected = script(TRAIN, steps, piece.seed, "cpu")
        certificates = (
            ["--tls-cert", folder / "worker.pem", "--tls-key", folder / "worker.key"] if scheme == "tls" else []
        )
        with listening(
            folder, "--token-file", folder / "token", "--heartbeat", 1, *certificates, url=f"{scheme}://127.0.0.1:0"
        ) as worker:
            held = worker.descriptors()
            proxy = Proxy(worker.port, piece.seed, 60_000, piece.count)
            came = script(
                TRAIN, steps, piece.seed, "remote", TORCH_REMOTE_WORKER=f"{scheme}://127.0.0.1:{proxy.port}",
                TORCH_REMOTE_TOKEN=TOKEN, TORCH_REMOTE_TLS_CA=folder / "ca.pem",
            )  # fmt: skip
            wrong = int(came != expected)
            deadline = time.monotonic() + 20
            while worker.children() and time.monotonic() < deadline:
                time.sleep(0.05)
            wrong += bool(worker.children()) + (worker.descriptors() > held)
            return Outcome(sum(proxy.counts.values()), wrong, kinds=proxy.counts)

    return run


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


TALK = """
    import os, sys, time, torch, torch_remote
    x = torch.zeros((), device="remote")
    x.item()
    print("ready", flush=True)
    sum = 0
    for line in sys.stdin:
        begin = time.monotonic()
        sum += int(line)
        x += int(line)
        print(x.item() == sum, time.monotonic() - begin, flush=True)
"""


def talk(piece: Piece, outages: list[tuple[float, bool]]) -> Outcome:
    """Times how long a call takes beyond the length of each outage. `bool`: the port refuses, otherwise it is
    silent."""
    with listening(piece.folder, "--heartbeat", 1) as worker:
        proxy = Proxy(worker.port)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(TALK)],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None and client.stdout.readline() == "ready\n"
        wrong, times = 0, []
        for i, (seconds, refuses) in enumerate(outages):
            proxy.outage(seconds, refuses)
            client.stdin.write(f"{i % 7}\n")
            client.stdin.flush()
            right, took = client.stdout.readline().split()
            wrong += right != "True"
            times.append(float(took) - seconds)
        client.stdin.close()
        client.wait()
    return Outcome(len(outages), wrong, times)


def cuts(piece: Piece) -> Outcome:
    """Gate 5: the session must resume at once after a cut."""
    return talk(piece, [(0.0, False)] * piece.count)


OUTAGES = (5.0, 3.0, 3.0, 5.0, 25.0, 25.0, 30.0, 30.0, 45.0, 45.0)  # seconds; in every second outage, the port refuses


def outages(piece: Piece) -> Outcome:
    """Gate 5: the machines are disconnected for a while; the port is silent, or refuses."""
    numbers = range(piece.first, piece.first + piece.count)
    return talk(piece, [(OUTAGES[i % len(OUTAGES)], i % 2 == 1) for i in numbers])


KINDS_OF_CALLS = 14


def lost_messages(piece: Piece) -> Outcome:
    """Gate 6: for every type of message, the request, the reply, or the connection during execution is lost."""
    folder, rounds = piece.folder, piece.count // (3 * KINDS_OF_CALLS)
    numbers = array.array("f", range(250_000)).tobytes()
    about = json.dumps({"numbers": {"dtype": "F32", "shape": [250_000], "data_offsets": [0, len(numbers)]}}).encode()
    (folder / "numbers.safetensors").write_bytes(struct.pack("<Q", len(about)) + about + numbers)
    source = """
        import sys, time, torch, torch_remote
        n = 0
        state = torch.zeros(4, device="remote")
        big = torch.randn(3000)
        event = torch.Event("remote", enable_timing=True)
        def run():        # a new program and a known one
            state.add_(1); assert (state.view(-1)[: 1 + n % 3] * (n + 1)).sum().isfinite().item()
        def count():      # a run that is answered
            assert torch.nonzero(state >= 0).shape == (4, 1)
        def upload():
            assert torch.equal(big.to("remote").cpu(), big)
        def read():
            assert state.cpu().shape == (4,)
        def synchronize():
            torch.remote.synchronize()
        def memory():
            torch.remote.empty_cache(); assert torch.remote.mem_get_info()[0] > 0
        def mark():
            event.record(); event.synchronize()
        def free():
            state.clone().add_(1).sum().item()
        def profile():
            with torch.remote.profile(): state.mul(1).sum().item()
        def checkpointed():
            state.sub(0).sum().item()
        library = torch.library.Library("gate", "DEF")
        def has_op():     # an op that nobody has asked for yet
            library.define(f"op{n}(Tensor x) -> Tensor")
            try:
                getattr(torch.ops.gate, f"op{n}")(state)
            except NotImplementedError:
                return
            raise AssertionError("it has it")
        def file():       # is it there, and its parts
            numbers = torch.remote.load_file(sys.argv[1], on_worker=True)["numbers"]
            assert torch.equal(numbers.cpu(), torch.arange(250_000.0))
        def cancel():     # what was recorded before is done or dropped, what comes behind it is done
            torch.remote.synchronize()
            made = state.mul(2)
            torch.remote.cancel()
            try:
                assert torch.equal(made.cpu(), state.cpu() * 2)
            except RuntimeError as error:
                assert "cancel" in str(error), error
            assert (state * 3).cpu().equal(state.cpu() * 3)
        @torch_remote.function
        def there(x, step):
            import time
            time.sleep(0.05)
            x.add_(step)
            return x.sum()
        called = torch.zeros(5, device="remote")
        calls = 0
        def call():       # once, also in place
            global calls
            calls += 1
            assert there(called, 1).item() == 5 * calls
        all = [run, count, upload, read, synchronize, memory, mark, free, profile, checkpointed]
        all += [has_op, file, cancel, call]
        assert there(called, 0).item() == 0
        state.sum().item()
        print(len(all), flush=True)
        for line in sys.stdin:
            n += 1
            all[int(line)]()
            print("done", flush=True)
        assert (state.cpu() == state[0].item()).all()
        print(state[0].item(), flush=True)
    """
    allowed = (f"--allow-files={folder}", f"--allow-python={sys.executable}")
    with listening(folder, "--heartbeat", 1, *allowed) as worker:
        proxy = Proxy(worker.port, piece.seed)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(source), folder / "numbers.safetensors"],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        types = int(client.stdout.readline())
        assert types == KINDS_OF_CALLS, types
        done, runs, wrong = 0, 0, 0
        for _ in range(rounds):
            for kind in range(types):
                for lost in ("up", "down", "while"):
                    if lost != "while":
                        proxy.swallow(lost)
                    client.stdin.write(f"{kind}\n")
                    client.stdin.flush()
                    if lost == "while":  # the request is sent again while the first one executes
                        time.sleep(proxy.random.random() * 0.03)
                        proxy.outage(0.02)
                    wrong += client.stdout.readline() != "done\n"
                    runs += kind == 0
                    done += 1
                    if wrong:
                        return Outcome(done, wrong, text="the client died")
        client.stdin.close()
        wrong += float(client.stdout.readline() or -1) != runs
        client.wait()
    return Outcome(done, wrong)


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


def guessed_handles(piece: Piece) -> Outcome:
    """Gate 8: buffers of another tenant must not be readable."""
    with listening(piece.folder, url=f"unix://{piece.folder}/two") as worker:
        done = subprocess.run(
            [os.environ.get("HANDLES", "tests/gates/handles"), worker.url[7:], str(piece.count), str(piece.seed)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        guesses, reads = map(int, done.stdout.split())
    return Outcome(guesses, reads)


def intruders(piece: Piece) -> Outcome:
    """Gate 9: wrong tokens, replayed bytes of another client, and noise must not be accepted."""
    folder, count = piece.folder, piece.count
    with listening(folder, "--token-file", folder / "token", "--heartbeat", 1) as worker:
        heard: list[bytes] = []
        use = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def overhear() -> None:
                client, _ = listener.accept()
                with socket.create_connection(("127.0.0.1", worker.port)) as there:

                    def back() -> None:
                        with contextlib.suppress(OSError):  # closed by the other direction
                            while data := there.recv(4096):
                                client.sendall(data)

                    threading.Thread(target=back, daemon=True).start()
                    while data := client.recv(4096):
                        heard.append(data)
                        there.sendall(data)

            threading.Thread(target=overhear, daemon=True).start()
            port = listener.getsockname()[1]
            script(use, TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{port}", TORCH_REMOTE_TOKEN=TOKEN)
        said = b"".join(heard)[:4096]
        good = worker.sessions()
        wrong_tokens = count // 2
        out = script(
            """
            import os, random, sys, torch, torch_remote
            let_in, seed = 0, random.Random(int(sys.argv[3]))
            for i in range(int(sys.argv[1])):
                token = "%032x" % seed.getrandbits(128)
                near = sys.argv[2][:-1] + ("f" if i % 2 else "d")  # the last letter is another one
                os.environ["TORCH_REMOTE_TOKEN"] = near if i % 3 == 0 else token
                try:
                    torch.ones(1, device="remote").sum().item()
                    let_in += 1
                except RuntimeError as error:
                    if "token" not in str(error):
                        print(error, file=sys.stderr)
                        let_in += 1
            print(let_in)
            """,
            wrong_tokens, TOKEN, piece.seed, TORCH_REMOTE_WORKER=worker.url,
        )  # fmt: skip
        let_in, seed = int(out), piece.random
        silent: list[socket.socket] = []  # connections that stay open as long as allowed
        for i in range(count - wrong_tokens):
            stranger = socket.create_connection(("127.0.0.1", worker.port))
            if i % 2:
                words = said[: seed.randrange(64, len(said) + 1)]  # bytes that a client sent
            else:
                words = said[: seed.randrange(64)] + seed.randbytes(seed.randrange(200))
            stranger.settimeout(0.02 if i % 50 == 0 else 0.002)
            with contextlib.suppress(OSError):
                stranger.sendall(words)
                stranger.recv(4096)
            silent.append(stranger)
            if len(silent) > 60:  # the listener keeps at most 64 connections without a client hello
                silent.pop(0).close()
        # A client that has waited meanwhile must be accepted when a connection is free.
        for stranger in silent:
            stranger.close()
        script(use, TORCH_REMOTE_WORKER=worker.url, TORCH_REMOTE_TOKEN=TOKEN)
        let_in += worker.sessions() - good - 1
        let_in += TOKEN in worker.log.read_text()
    return Outcome(count, let_in)


def wrong_certificates(piece: Piece) -> Outcome:
    """Gate 9: over tls, a client must reject a worker whose certificate has expired, or is for another authority or
    host."""
    wrong, folder, names = 0, piece.folder, ("stranger", "old", "named")
    messages = {"stranger": "is not trusted", "old": "has expired", "named": "is not for"}
    tries = """
        import sys, torch, torch_remote
        believed = 0
        for _ in range(int(sys.argv[1])):
            try:
                torch.ones(3, device='remote').sum().item()
                believed += 1
            except RuntimeError as error:
                believed += sys.argv[2] not in str(error)
        print(believed)
    """
    for i, name in enumerate(names):
        count = piece.count // 3 + (i < piece.count % 3)
        files = ["--tls-cert", folder / f"{name}.pem", "--tls-key", folder / f"{name}.key"]
        with listening(folder, "--token-file", folder / "token", *files, url="tls://127.0.0.1:0") as worker:
            variables = {"TORCH_REMOTE_TOKEN": TOKEN, "TORCH_REMOTE_TLS_CA": folder / "ca.pem"}
            wrong += int(script(tries, count, messages[name], TORCH_REMOTE_WORKER=worker.url, **variables))
            wrong += worker.sessions()
    return Outcome(piece.count, wrong)


def tls_strangers(piece: Piece) -> Outcome:
    """Gate 9: strangers inside TLS must not be accepted, and the listener must keep nothing of them."""
    wrong, folder, count = 0, piece.folder, piece.count
    use = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"
    client = {"TORCH_REMOTE_TOKEN": TOKEN, "TORCH_REMOTE_TLS_CA": folder / "ca.pem"}
    files = ["--tls-cert", folder / "worker.pem", "--tls-key", folder / "worker.key"]
    with listening(folder, "--token-file", folder / "token", *files, url="tls://127.0.0.1:0") as worker:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        listener_before, seed = resident(worker.process.pid), piece.random
        for i in range(count):
            stranger = socket.create_connection(("127.0.0.1", worker.port))
            stranger.settimeout(10)
            stranger.sendall(b"TRRC\x02\x03\x00\x00" + bytes(24) + seed.randbytes(32))
            with contextlib.suppress(OSError):
                answered = stranger.recv(40, socket.MSG_WAITALL)
                if i % 3 == 0:  # noise in place of the TLS handshake
                    stranger.sendall(seed.randbytes(100_000))
                    stranger.recv(100)
                else:  # TLS, and an invalid proof
                    with context.wrap_socket(stranger, server_hostname="127.0.0.1") as inside:
                        inside.sendall(b"TRRQ" + seed.randbytes(44) if i % 3 == 1 else seed.randbytes(100_000))
                        result = inside.recv(56)
                        wrong += len(result) > 0 and result[0] == 0
                wrong += len(answered) != 40 and len(answered) != 0
            stranger.close()
        wrong += worker.sessions() > 0
        script(use, TORCH_REMOTE_WORKER=worker.url, **client)
        grown = max(0, resident(worker.process.pid) - listener_before)
        wrong += grown > 1 << 20
    return Outcome(count, wrong, worst=grown >> 10)


def expired_sessions(piece: Piece) -> Outcome:
    """Gate 9: replaying what a client sent to resume its session must fail, before and after the lease ends.

    A token must fail after the worker was restarted with another one.
    """
    folder, tried, wrong, code_at = piece.folder, 0, 0, 5  # ServerHello, in remote/net/handshake.h
    (folder / "new").write_text(TOKEN[::-1] + "\n")
    (folder / "new").chmod(0o600)
    with listening(folder, "--token-file", folder / "new") as worker:
        done = run_python(
            "-c", "import torch, torch_remote; torch.ones(3, device='remote').sum().item()",
            env=environment(TORCH_REMOTE_WORKER=worker.url, TORCH_REMOTE_TOKEN=TOKEN), timeout=600,
        )  # fmt: skip
        wrong += done.returncode == 0 or "token" not in done.stderr or worker.sessions() > 0
        tried += 1
    with listening(folder, "--token-file", folder / "token", "--heartbeat", 1, "--lease", 2) as worker:
        proxy = Proxy(worker.port, piece.seed)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(TALK)],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}", TORCH_REMOTE_TOKEN=TOKEN),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None and client.stdout.readline() == "ready\n"

        def say_again(words: bytes) -> bool:
            """Whether the replay is refused."""
            with socket.create_connection(("127.0.0.1", worker.port)) as stranger:
                stranger.settimeout(10)
                answer = b""
                with contextlib.suppress(OSError):
                    stranger.sendall(words)
                    answer = stranger.recv(8, socket.MSG_WAITALL)
                return len(answer) < 8 or answer[code_at] != 0

        said: list[bytes] = []
        while len(said) < max(1, (piece.count - 1) // 2):
            proxy.outage(0)
            client.stdin.write("1\n")
            client.stdin.flush()
            wrong += client.stdout.readline()[:4] != "True"
            words = proxy.connections[-1].said
            if len(words) < 64 or words[8:16] == bytes(8):  # not a resumed session
                continue
            said.append(words)
            wrong += not say_again(words)
            tried += 1
        client.kill()
        client.wait()
        deadline = time.monotonic() + 20
        while worker.children() and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += bool(worker.children())
        wrong += sum(not say_again(words) for words in said) + (worker.sessions() != 1)
        tried += len(said)
    return Outcome(tried, wrong)


def strangers_memory(piece: Piece) -> Outcome:
    """Gate 9: bytes that OpenSSL allocates for a stranger before authentication."""
    program = os.environ.get("HANDSHAKE_MEMORY", "remote/net/handshake_memory_test")
    tried, most, wrong = 0, 0, 0
    while tried < piece.count:
        done = subprocess.run([program], capture_output=True, text=True)
        found = [int(taken) for taken in re.findall(r"a stranger (?:inside of TLS )?took (\d+) bytes", done.stdout)]
        assert found, done.stdout + done.stderr
        tried, most, wrong = tried + len(found), max(most, *found), wrong + (done.returncode != 0)
    return Outcome(tried, wrong, worst=most / 1024)


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


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
            first, end, kernels, settled = None, seconds, 0, 0.0  # settled: since then no kernel was compiled
            while (passed := time.monotonic() - begin) < end or first is None:
                loss = net(torch.randn(32 + steps % 5, 64).to("remote")).square().mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                steps += 1
                if steps % 20 == 0:
                    loss.item()
                if kernels != (kernels := torch.remote.stats()["kernels_compiled"]):
                    settled, first = passed, None
                if first is None and passed > seconds / 4 + settled:
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


def verified(piece: Piece) -> Outcome:
    """Gate 13: a program of 10,000 ops must be verified within 1 ms."""
    times = []
    for _ in range(piece.count):
        done = subprocess.run(
            [os.environ.get("BUILD_COST", "passes/build_cost_benchmark")], capture_output=True, text=True, check=True
        )
        found = re.findall(r"^verified (\d+) ops in ([\d.]+) ms$", done.stdout, re.M)
        assert any(int(ops) >= 10_000 for ops, _ in found), done.stdout
        times += [float(time) / 1000 for ops, time in found if int(ops) >= 10_000]
    return Outcome(piece.count, 0, times)


def simulated(piece: Piece) -> Outcome:
    """Gate 1: seeds of the simulator."""
    program = os.environ.get("SIMULATOR", "tests/simulator/simulator")
    done = subprocess.run(
        [program, f"--seeds={piece.first}:{piece.first + piece.count}"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    counted = re.search(r"^(\d+) seeds, (\d+) failed", done.stdout, re.M)
    faults = re.search(r"^faults: (.*)$", done.stdout, re.M)
    assert counted and faults, done.stdout[-1000:]
    kinds = {kind: int(count) for kind, count in re.findall(r"([a-z -]+) (\d+)(?:,|$)", faults[1])}
    failures = "; ".join(re.findall(r"^seed .*$", done.stdout, re.M))
    return Outcome(int(counted[1]), int(counted[2]), kinds={k.strip(): n for k, n in kinds.items()}, text=failures)


def prepare(folder: Path) -> None:
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    subprocess.run([os.environ.get("CERTIFICATES", "remote/net/testing/make_certificates"), folder], check=True)


SLOW = "{:.2f} s the longest"
PARTS = [
    Part("1", "seeds of the simulator", 100_000, 1_000, 0, simulated),
    Part("2-tcp", "connections broken at random bytes, tcp", 10_000, 500, 10, broken_connections("tcp")),
    Part("2-tls", "connections broken at random bytes, tls", 10_000, 500, 10, broken_connections("tls")),
    Part("3", "`kill -9` of a worker in the middle of a program", 1_000, 50, 2, killed_workers, 2, worst=SLOW),
    Part("4", "`kill -9` of a client", 1_000, 50, 2, killed_clients, LEASE + 1, worst=SLOW),
    Part("5-cuts", "cuts that are resumed", 1_000, 250, 10, cuts, 1, over=0.01, worst=SLOW, ours=True),
    Part("5-outages", "outages of 3 to 45 s", 40, 10, 2, outages, 2, worst="{:.2f} s beyond the outage", ours=True),
    Part("6", "request or answer of a call lost", 840, 168, 42, lost_messages, ours=True),
    Part("7", "memory that runs out, and the next op", 200, 50, 3, out_of_memory),
    Part("8", "guessed handles of another tenant", 1_000_000, 100_000, 1_000, guessed_handles),
    Part("9-tcp", "wrong tokens, repeated and damaged handshakes, tcp", 100_000, 2_000, 100, intruders),
    Part(
        "9-tls", "strangers inside of TLS", 100_000, 2_000, 10, tls_strangers, worst="the listener grew by {:.0f} KiB"
    ),
    Part(
        "9-certificates", "wrong authority, host or date of a certificate", 3_000, 300, 3, wrong_certificates, ours=True
    ),
    Part("9-expired", "sessions and tokens that have expired", 1_000, 101, 5, expired_sessions, ours=True),
    Part(
        "9-memory",
        "strangers whose memory is measured",
        170,
        17,
        0,
        strangers_memory,
        worst="{:.1f} of 64 KiB",
        ours=True,
    ),
    Part("12-link", "MB over 10 Mbit/s", 60, 60, 2, slow_link, worst="the client grew by {:.0f} MB", ours=True),
    Part(
        "12-crowd",
        "clients, ten at a time for each core",
        200,
        10 * (os.cpu_count() or 1),
        2,
        oversubscribed,
        worst="{:.0f} MB in a session",
        ours=True,
    ),
    Part(
        "12-soak",
        "seconds of a soak",
        86_400,
        7_200,
        4,
        soak,
        worst="{:.2f} % larger in all pieces together",
        adds=True,
        least=600,
    ),
    Part("13", "programs of 10,000 ops verified", 20, 20, 1, verified, 0.001, worst="{:.5f} s the longest", ours=True),
]


def workspace() -> Path:
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=workspace(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def timed_out(signal_number: int, frame: object) -> None:
    raise TimeoutError("it hangs")


def run_piece(part: Part, number: int, limit: float, commit: str, most: float = math.inf) -> results.Record:
    """Runs a piece; an exception counts as one wrong unit. `limit` multiplies the part's own limit. `most`: seconds."""
    first = number * part.piece
    count = int(min(part.piece, most)) if part.least else part.piece
    if not part.least and first < part.contract:
        count = min(count, part.contract - first)
    load, begin = os.getloadavg()[0], time.monotonic()
    signal.signal(signal.SIGALRM, timed_out)
    signal.alarm(1800 + (2 * count if part.least else 0))
    try:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name))
            outcome = part.run(Piece(Path(name), first, count))
    except Exception as error:  # the other pieces must still run
        outcome = Outcome(0, 1, text=re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[-300:])
    finally:
        signal.alarm(0)
    return {
        "part": part.name, "piece": number, "first": first, "count": outcome.count, "wrong": int(outcome.wrong),
        "late": sum(time > part.limit * limit for time in outcome.times) if part.limit else 0,
        "worst": round(max(outcome.times, default=outcome.worst), 6), "kinds": outcome.kinds, "text": outcome.text,
        "seconds": round(time.monotonic() - begin, 1), "cores": os.cpu_count() or 1, "load": round(load, 2),
        "commit": commit,
    }  # fmt: skip


def is_failure(part: Part, record: results.Record) -> bool:
    return record["wrong"] > 0 or results.exceeds_limit(part, record)


def describe(part: Part, record: results.Record) -> str:
    worst = part.worst.format(record["worst"]) if part.worst else ""
    busy = f"load {record['load']:g}" if results.loaded(record) else ""
    more = "; ".join(text for text in (worst, record["text"], busy) if text)
    return (
        f"{part.name} piece {record['piece']}: {record['count']:,}, {record['wrong']} wrong, {record['late']} late, "
        f"{record['seconds']:.0f} s" + (f" ({more})" if more else "")
    )


def is_idle(seconds: float) -> bool:
    """Waits up to `seconds` until the load is below the number of cores. Earlier processes still count in the load for
    a while."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > (os.cpu_count() or 1):
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


def run_missing(parts: list[Part], file: Path, minutes: float, start: int) -> int:
    """Runs pieces in turn until nothing is missing, or the time is over.

    While the machine is loaded, parts with a time limit are run only when nothing else is missing.
    """
    changed = git("status", "--porcelain", "--untracked-files=no").splitlines()
    own = ("tests/gates/results.jsonl", "docs/reliability.md")
    commit = git("rev-parse", "--short=12", "HEAD") + ("+" if any(not line.endswith(own) for line in changed) else "")
    end, failed, left = time.monotonic() + 60 * minutes, False, list(parts)
    waits, ran = True, True
    while left:
        all_of_them, ran = not ran, False
        for part in list(left):
            idle = not part.limit or is_idle(min(90 if waits else 0, max(0, end - time.monotonic())))
            if part.limit:
                waits = idle  # waits only once per run
            if not idle and not all_of_them:
                continue
            records = results.read(file)
            number = results.next_piece(part, records, commit, idle, start)
            took = [record["seconds"] for record in records if record["part"] == part.name and record["wrong"] == 0]
            remains = end - time.monotonic()
            needed = part.least * 1.6 if part.least else max(took, default=0)
            if number is None or remains < max(needed, 1):
                left.remove(part)
                continue
            record = run_piece(part, number, 1, commit, remains / 1.6)
            results.append(file, record)
            ran = True
            failed |= is_failure(part, record)
            print(describe(part, record), flush=True)
    return int(failed)


def chosen(names: list[str]) -> list[Part]:
    for name in names:
        if not any(name in (part.name, part.gate) for part in PARTS):
            raise SystemExit(f"there is no gate {name}; there are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if not names or part.name in names or part.gate in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gates", nargs="*", help="numbers, or names of parts; default: all")
    parser.add_argument("--minutes", type=float, default=120, help="how long pieces are begun; default: 120")
    parser.add_argument("--results", type=Path, default=Path("tests/gates/results.jsonl"), help="read, and added to")
    parser.add_argument("--from", type=int, default=0, dest="start", metavar="N", help="only pieces from this one on")
    parser.add_argument("--short", action="store_true", help="a first piece of each; results are printed, not kept")
    parser.add_argument("--page", action="store_true", help="write the table of docs/reliability.md")
    arguments = parser.parse_args()
    parts, file = chosen(arguments.gates), workspace() / arguments.results
    if arguments.page:
        page = workspace() / "docs/reliability.md"
        page.write_text(results.replace_table(page.read_text(), results.table(PARTS, results.read(file))))
        return 0
    if arguments.short:
        failed = False
        for part in parts:
            record = run_piece(part, 0, 1, "")
            failed |= is_failure(part, record)
            print(describe(part, record), flush=True)
        return int(failed)
    return run_missing(parts, file, arguments.minutes, arguments.start)


if __name__ == "__main__":
    sys.exit(main())
