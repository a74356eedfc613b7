"""The gates of docs/reliability.md over real sockets and processes; each prints what it counted.

All of them, as long as they take:  bazel run //tests/gates
A few, shorter:                     bazel run //tests/gates -- --share=0.1 2 5
"""

from __future__ import annotations

import argparse
import array
import contextlib
import json
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

from tests.gates.faults import Proxy, environment, listening

TOKEN = "5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee"
FIXED = {"TORCH_REMOTE_FUSION": "0"}  # which kernels are ready in time is up to the machine
Row = tuple[str, int, int, str]  # what, how many, how many of them wrong, how long


def within(seconds: float) -> float:
    """What is promised of a machine with cores to spare takes longer in proportion where others use them."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def script(source: str, *arguments: object, timeout: float = 3000, **variables: object) -> str:
    done = run_python("-c", textwrap.dedent(source), *arguments, env=environment(**variables), timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


TRAIN = """
    import hashlib, os, sys, torch, torch_remote
    from torch import nn
    torch.manual_seed(0)
    steps = int(sys.argv[1])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 8)).to("remote")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(4, 64, 64)
    count = torch.zeros((), dtype=torch.int64, device="remote")
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for step in range(steps):
        loss = model(data[step % 4].to("remote")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1  # a run that is done twice shows
        if step % 5 == 0:
            loss.item()
            model[0].weight.cpu()
        if step == 5:
            before = held()
    assert count.item() == steps, count
    after = held()
    # A connection that is being replaced may hold one more for a moment.
    print("leaked" if after[0] > before[0] + 1 or after[1] > before[1] + 1 else "kept", file=sys.stderr)
    assert after[0] <= before[0] + 1 and after[1] <= before[1] + 1, (before, after)
    print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


def broken_connections(folder: Path, scheme: str, faults: int) -> Row:
    """2: cuts, resets, stalls, duplicates at random bytes; results as on a worker that nothing breaks."""
    steps = max(60, 2 * faults)
    expected = script(TRAIN, steps, TORCH_REMOTE_WORKER="local", **FIXED)
    certificates = ["--tls-cert", folder / "worker.pem", "--tls-key", folder / "worker.key"] if scheme == "tls" else []
    with listening(
        folder, "--token-file", folder / "token", "--heartbeat", 1, *certificates, url=f"{scheme}://127.0.0.1:0"
    ) as worker:
        held = worker.descriptors()
        proxy = Proxy(worker.port, 11, 60_000, faults)
        came = script(
            TRAIN, steps, TORCH_REMOTE_WORKER=f"{scheme}://127.0.0.1:{proxy.port}", TORCH_REMOTE_TOKEN=TOKEN,
            TORCH_REMOTE_TLS_CA=folder / "ca.pem", **FIXED,
        )  # fmt: skip
        wrong = int(came != expected)
        deadline = time.monotonic() + 20
        while worker.children() and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += bool(worker.children()) + (worker.descriptors() > held)
        kinds = ", ".join(f"{count} {kind}" for kind, count in proxy.counts.items())
        return f"broken at random bytes over {scheme} ({kinds})", sum(proxy.counts.values()), wrong, ""


def killed_workers(folder: Path, count: int) -> Row:
    """3: kill -9 in the middle of a program: WorkerLost within 2 s."""
    out = script(
        """
        import os, random, re, signal, sys, threading, time, torch, torch_remote
        seed, wrong, longest = random.Random(3), 0, 0.0
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
                took = time.monotonic() - died[0]
                longest = max(longest, took)
                limit = 2 * max(1, os.getloadavg()[0] / os.cpu_count())
                wrong += took > limit or error.session is None
            killer.join()
            torch.remote.restart()
            wrong += torch.ones(3, device="remote").sum().item() != 3
        print(wrong, longest)
        """,
        count,
    ).split()
    return "kill -9 of a worker in the middle of a program", count, int(out[0]), f"longest {float(out[1]):.2f} s"


def killed_clients(folder: Path, count: int) -> Row:
    """4: kill -9 of a client: what its session had is free by lease + 1 s."""
    lease, wrong, longest = 1.0, 0, 0.0
    seed = random.Random(4)
    with listening(folder, "--lease", lease, "--heartbeat", 1) as worker:
        held = worker.descriptors()
        # Children that are forked before the device is used: torch is imported once.
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
        for _ in range(count):
            clients.stdin.write("\n")
            clients.stdin.flush()
            pid = int(clients.stdout.readline())
            time.sleep(seed.random() * 0.2)
            os.kill(pid, signal.SIGKILL)
            died = time.monotonic()
            while worker.children() and time.monotonic() < died + 20:
                time.sleep(0.01)
            took = time.monotonic() - died
            longest = max(longest, took)
            wrong += took > lease + within(1)
        clients.stdin.close()
        clients.wait()
        wrong += worker.descriptors() > held
    return f"kill -9 of a client; lease {lease:g} s", count, wrong, f"longest until all is free {longest:.2f} s"


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


def resumed(folder: Path, count: int, outages: tuple[float, ...]) -> Row:
    """5: all cuts within the lease are resumed; p99 within 1 s, and within 2 s of an outage's end.

    The port is silent in each outage, then refuses in one that is as long.
    """
    outages = tuple(seconds for seconds in outages for _ in range(2))
    with listening(folder, "--heartbeat", 1) as worker:
        proxy = Proxy(worker.port)
        url = f"tcp://127.0.0.1:{proxy.port}"
        client = Python(
            [sys.executable, "-c", textwrap.dedent(TALK)], env=environment(TORCH_REMOTE_WORKER=url),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None and client.stdout.readline() == "ready\n"
        wrong, times = 0, []
        for i in range(count + len(outages)):
            seconds = 0.0 if i < count else outages[i - count]
            proxy.outage(seconds, refuses=i >= count and (i - count) % 2 == 1)
            client.stdin.write(f"{i % 7}\n")
            client.stdin.flush()
            right, took = client.stdout.readline().split()
            wrong += right != "True"
            times.append(float(took) - seconds)
        client.stdin.close()
        client.wait()
    cuts, beyond = sorted(times[:count]), times[count:]
    p99 = cuts[int(len(cuts) * 0.99)]
    wrong += (p99 > within(1)) + sum(time > within(2) for time in beyond)
    text = f"p99 {p99:.3f} s" + (f"; at most {max(beyond):.3f} s beyond outages of {outages}" if outages else "")
    return "cuts that are resumed", len(times), wrong, text


def lost_messages(folder: Path, rounds: int) -> Row:
    """6: of every type of message the request is lost, or the answer, or the connection while it is being done."""
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
        proxy = Proxy(worker.port)
        client = Python(
            [sys.executable, "-c", textwrap.dedent(source), folder / "numbers.safetensors"],
            env=environment(TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        types = int(client.stdout.readline())
        done, runs, wrong = 0, 0, 0
        for _ in range(rounds):
            for kind in range(types):
                for lost in ("up", "down", "while"):
                    if lost != "while":
                        proxy.swallow(lost)
                    client.stdin.write(f"{kind}\n")
                    client.stdin.flush()
                    if lost == "while":  # it comes again while the first one is done
                        time.sleep(proxy.random.random() * 0.03)
                        proxy.outage(0.02)
                    wrong += client.stdout.readline() != "done\n"
                    runs += kind == 0
                    done += 1
                    if wrong:
                        return "requests and answers lost", done, wrong, "the client died"
        client.stdin.close()
        wrong += float(client.stdout.readline() or -1) != runs
        client.wait()
    return f"requests and answers lost, {types} kinds of calls", done, wrong, ""


def out_of_memory(folder: Path, count: int) -> Row:
    """7: the next op is right."""
    with listening(folder, "--memory-limit", "200M", url=f"unix://{folder}/small") as worker:
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
            count, TORCH_REMOTE_WORKER=worker.url,
        )  # fmt: skip
    return "memory that runs out, and the next op", count, int(out), ""


def guessed_handles(folder: Path, count: int) -> Row:
    """8: what another tenant's buffers hold cannot be read."""
    with listening(folder, url=f"unix://{folder}/two") as worker:
        done = subprocess.run(
            [os.environ.get("HANDLES", "tests/gates/handles"), worker.url[7:], str(count)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        guesses, reads = map(int, done.stdout.split())
    return "guessed handles of another tenant", guesses, reads, ""


def intruders(folder: Path, count: int) -> Row:
    """9: wrong tokens, what another client said, and noise: nobody is let in."""
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
            let_in, seed = 0, random.Random(1)
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
            wrong_tokens, TOKEN, TORCH_REMOTE_WORKER=worker.url,
        )  # fmt: skip
        let_in, seed = int(out), random.Random(2)
        silent: list[socket.socket] = []  # who stays as long as it may
        for i in range(count - wrong_tokens):
            stranger = socket.create_connection(("127.0.0.1", worker.port))
            if i % 2:
                words = said[: seed.randrange(64, len(said) + 1)]  # what a client said
            else:
                words = said[: seed.randrange(64)] + seed.randbytes(seed.randrange(200))
            stranger.settimeout(0.02 if i % 50 == 0 else 0.002)
            with contextlib.suppress(OSError):
                stranger.sendall(words)
                stranger.recv(4096)
            silent.append(stranger)
            if len(silent) > 60:  # the listener has 64 that have not said their opening
                silent.pop(0).close()
        # A client that has waited in between is let in when there is room.
        for stranger in silent:
            stranger.close()
        script(use, TORCH_REMOTE_WORKER=worker.url, TORCH_REMOTE_TOKEN=TOKEN)
        let_in += worker.sessions() - good - 1
        let_in += TOKEN in worker.log.read_text()
    return "wrong tokens, repeated and damaged handshakes, tcp", count, let_in, ""


def tls_strangers(folder: Path, count: int) -> Row:
    """9: over tls a client believes no worker with a wrong certificate, and a worker no client without the token."""
    wrong, tried = 0, 0
    bad = {"stranger": "is not trusted", "old": "has expired", "named": "is not for"}
    use = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"
    client = {"TORCH_REMOTE_TOKEN": TOKEN, "TORCH_REMOTE_TLS_CA": folder / "ca.pem"}
    for name, expected in bad.items():
        files = ["--tls-cert", folder / f"{name}.pem", "--tls-key", folder / f"{name}.key"]
        with listening(folder, "--token-file", folder / "token", *files, url="tls://127.0.0.1:0") as worker:
            done = run_python("-c", use, env=environment(TORCH_REMOTE_WORKER=worker.url, **client), timeout=600)
            wrong += done.returncode == 0 or expected not in done.stderr or worker.sessions() > 0
            tried += 1
    files = ["--tls-cert", folder / "worker.pem", "--tls-key", folder / "worker.key"]
    with listening(folder, "--token-file", folder / "token", *files, url="tls://127.0.0.1:0") as worker:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        listener_before, seed = resident(worker.process.pid), random.Random(4)
        for i in range(count):
            stranger = socket.create_connection(("127.0.0.1", worker.port))
            stranger.settimeout(10)
            stranger.sendall(b"TRRC\x02\x03\x00\x00" + bytes(24) + seed.randbytes(32))
            with contextlib.suppress(OSError):
                answered = stranger.recv(40, socket.MSG_WAITALL)
                if i % 3 == 0:  # noise where TLS is to begin
                    stranger.sendall(seed.randbytes(100_000))
                    stranger.recv(100)
                else:  # TLS, and a proof that is none
                    with context.wrap_socket(stranger, server_hostname="127.0.0.1") as inside:
                        inside.sendall(b"TRRQ" + seed.randbytes(44) if i % 3 == 1 else seed.randbytes(100_000))
                        result = inside.recv(56)
                        wrong += len(result) > 0 and result[0] == 0
                wrong += len(answered) != 40 and len(answered) != 0
            stranger.close()
        tried += count
        wrong += worker.sessions() > 0
        script(use, TORCH_REMOTE_WORKER=worker.url, **client)
        wrong += resident(worker.process.pid) > listener_before + (1 << 20)  # the listener keeps nothing of them
        text = f"the listener grew by {(resident(worker.process.pid) - listener_before) >> 10} KiB"
    return "wrong authority, host and date of certificates; strangers inside of TLS", tried, wrong, text


def resident(pid: int) -> int:
    """Bytes of its memory; 0 if it is gone."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) << 10 if found else 0
    return 0


def slow_link(folder: Path, megabytes: int) -> Row:
    """12: 10 Mbit/s: nobody keeps more than what is on its way."""
    with listening(folder) as worker:
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
            megabytes, TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{proxy.port}",
        ).split()  # fmt: skip
    grown = int(out[1])
    limit = 512 << 20
    return (
        f"{megabytes} MB over 10 Mbit/s",
        megabytes,
        int(out[0]) + (grown > limit),
        f"client grew by {grown >> 20} MB",
    )


def soak(folder: Path, seconds: float) -> Row:
    """12: memory of both ends after the first tenth and at the end."""
    with listening(folder) as worker:
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
    return (
        f"soak of {seconds:g} s",
        steps,
        sum(g >= 1 for g in grown),
        f"client {grown[0]} %, session {grown[1]} % larger",
    )


def prepare(folder: Path) -> None:
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    subprocess.run([os.environ.get("CERTIFICATES", "remote/net/testing/make_certificates"), folder], check=True)


GATES: list[tuple[str, Callable[[Path, float], Row]]] = [
    ("2", lambda folder, share: broken_connections(folder, "tcp", int(1000 * share))),
    ("2", lambda folder, share: broken_connections(folder, "tls", int(1000 * share))),
    ("3", lambda folder, share: killed_workers(folder, max(2, int(50 * share)))),
    ("4", lambda folder, share: killed_clients(folder, max(2, int(50 * share)))),
    ("5", lambda folder, share: resumed(folder, int(500 * share), (3.0, 25.0, 45.0) if share == 1 else (5.0,))),
    ("6", lambda folder, share: lost_messages(folder, max(1, int(20 * share)))),
    ("7", lambda folder, share: out_of_memory(folder, max(3, int(50 * share)))),
    ("8", lambda folder, share: guessed_handles(folder, int(100_000 * share))),
    ("9", lambda folder, share: intruders(folder, int(10_000 * share))),
    ("9", lambda folder, share: tls_strangers(folder, int(1_000 * share))),
    ("12", lambda folder, share: slow_link(folder, max(2, int(60 * share)))),
    ("12", lambda folder, share: soak(folder, max(4.0, 600 * share))),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gates", nargs="*", help="numbers; default: all")
    parser.add_argument("--share", type=float, default=1, help="of the full counts")
    arguments = parser.parse_args()
    failed = 0
    print("| gate | what | count | wrong, lost or let in | | seconds |\n|---|---|---:|---:|---|---:|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for number, gate in GATES:
            if arguments.gates and number not in arguments.gates:
                continue
            begin = time.monotonic()
            try:
                what, count, wrong, text = gate(Path(name), arguments.share)
            except Exception as error:  # the others are to run, too
                what, count, wrong, text = "failed", 0, 1, re.sub(r"\s+", " ", str(error))[-300:]
            failed += wrong
            print(f"| {number} | {what} | {count:,} | {wrong} | {text} | {time.monotonic() - begin:.0f} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
