"""Gates 8 and 9: clients that use another client's handles, and strangers who have no token or certificate."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from python_processes import Python, run_python

from tests.gates.faults import Proxy, environment, listening
from tests.gates.pieces import TALK, TOKEN, Outcome, Piece, script


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
