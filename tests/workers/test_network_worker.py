"""Workers over TCP and TLS: authentication, broken connections, and what ends a session."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from python_processes import Python

import torch_remote

PACKAGE = Path(torch_remote.__file__).parent.resolve()
COMMAND = [sys.executable, "-m", "torch_remote.worker"]
TOKEN = "5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee"
USE = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"


def environment():
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A token, and certificates for the tests of TLS."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    (folder / "other").write_text("another token of enough bytes\n")
    (folder / "other").chmod(0o600)
    subprocess.run(["remote/net/testing/make_certificates", str(folder)], check=True)
    return folder


@pytest.fixture
def worker(remote, tmp_path):
    """Starts workers: worker(*arguments) -> (url, process). Their log is worker.log in tmp_path."""
    processes = []

    def start(*arguments, url="tcp://127.0.0.1:0", check=True):
        log = (tmp_path / f"log{len(processes)}").open("w+")
        process = subprocess.Popen(
            [*COMMAND, "--listen", url, *map(str, arguments)],
            env=environment() | {"TORCH_REMOTE_WORKER_LOG": "debug"}, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        process.log = Path(log.name)
        processes.append(process)
        if not check:
            process.wait(60)
            return process.log.read_text()
        url = process.stdout.readline().strip()
        assert url, process.log.read_text()
        return url, process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def tls(files, *arguments):
    return ["--tls-cert", files / "worker.pem", "--tls-key", files / "worker.key", *arguments]


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def error_of(script, **variables):
    """The error message of a connection attempt."""
    return script(
        """
        import torch, torch_remote
        try:
            torch.ones(3, device="remote").sum().item()
        except Exception as error:
            print(type(error).__name__, error)
        """,
        **variables,
    ).stdout


def test_a_token_opens_a_worker_and_nothing_else_does(script, worker, files):
    url, process = worker("--token-file", files / "token")
    script(USE, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN_FILE=files / "token")
    script(USE, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN=TOKEN)
    assert "requires a token; set TORCH_REMOTE_TOKEN_FILE" in error_of(script, TORCH_REMOTE_WORKER=url)
    wrong = error_of(script, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN_FILE=files / "other")
    assert "the token is not that of the worker at" in wrong and "--token-file" in wrong
    log = process.log.read_text()
    assert "its proof is wrong" in log and TOKEN not in log
    assert re.search(r"127\.0\.0\.1:\d+ is refused: it has no token$", log, re.MULTILINE), log
    assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
    # A worker without a token cannot prove that it knows it.
    url, _ = worker()
    assert "has none, so it cannot prove" in error_of(script, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN=TOKEN)


def test_tls_is_checked_on_both_sides(script, worker, files):
    url, _ = worker(*tls(files, "--tls-client-ca", files / "ca.pem"), url="tls://127.0.0.1:0")
    trusts = {"TORCH_REMOTE_WORKER": url, "TORCH_REMOTE_TLS_CA": files / "ca.pem"}
    client = {"TORCH_REMOTE_TLS_CERT": files / "worker.pem", "TORCH_REMOTE_TLS_KEY": files / "worker.key"}
    script(USE, **trusts, **client)
    assert "set TORCH_REMOTE_TLS_CERT and TORCH_REMOTE_TLS_KEY" in error_of(script, **trusts)
    assert "set TORCH_REMOTE_TLS_CA" in error_of(script, TORCH_REMOTE_WORKER=url, **client)
    named = url.replace("127.0.0.1", "localhost")
    wrong = error_of(script, **trusts | {"TORCH_REMOTE_WORKER": named}, **client)
    assert "is not for 'localhost'" in wrong


def test_a_mistaken_scheme_or_port_is_said(script, worker, files):
    url, _ = worker()
    wrong = error_of(script, TORCH_REMOTE_WORKER=url.replace("tcp", "tls"), TORCH_REMOTE_TLS_CA=files / "ca.pem")
    assert f"has no TLS; connect with {url}" in wrong
    url, _ = worker(*tls(files), url="tls://127.0.0.1:0")
    assert f"requires TLS; connect with {url}" in error_of(script, TORCH_REMOTE_WORKER=url.replace("tls", "tcp"))
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            client, _ = other.accept()
            client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            client.close()

        thread = threading.Thread(target=answer)
        thread.start()
        port = other.getsockname()[1]
        assert "is not a worker of torch-remote" in error_of(script, TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{port}")
        thread.join()
    refused = error_of(script, TORCH_REMOTE_WORKER=f"tcp://127.0.0.1:{port}")
    assert f"torch-remote-worker --listen tcp://127.0.0.1:{port}" in refused


def test_what_other_machines_reach_needs_a_token(worker, files):
    assert "give a token" in worker(url="tcp://0.0.0.0:0", check=False)
    assert "give a token" in worker(*tls(files), url="tls://0.0.0.0:0", check=False)
    _, process = worker("--token-file", files / "token", url="tcp://0.0.0.0:0")
    deadline = time.monotonic() + 10  # it prints its address first
    while "listening on" not in process.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "listening on" in process.log.read_text()
    assert "--tls-cert FILE --tls-key FILE" in worker(url="tls://127.0.0.1:0", check=False)
    no_key = ["--tls-cert", files / "worker.pem", "--tls-key", files / "none"]
    assert "(No such file or directory)" in worker(*no_key, url="tls://127.0.0.1:0", check=False)


def test_the_listener_loads_nothing_that_sessions_need(script, worker):
    url, process = worker()
    script(USE, TORCH_REMOTE_WORKER=url)
    heavy = re.compile(r"libtorch|libaten|libc10|LLVM|MLIR|codegen|libcuda|libpython", re.I)
    assert not heavy.findall(Path(f"/proc/{process.pid}/maps").read_text())
    libraries = subprocess.run(["ldd", PACKAGE / "bin/torch-remote-worker"], capture_output=True, text=True, check=True)
    assert not heavy.findall(libraries.stdout)


def test_strangers_end_neither_the_listener_nor_the_others_sessions(script, worker, files):
    url, process = worker(*tls(files, "--token-file", files / "token"), url="tls://127.0.0.1:0")
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    client_hello = b"TRRC\x02\x03\x00\x00" + bytes(56)
    seed = random.Random(5)
    for i in range(150):
        with socket.create_connection(address) as stranger:
            words = client_hello if i % 4 == 1 else client_hello[: seed.randrange(70)] if i % 2 else b""
            stranger.sendall(words + seed.randbytes(seed.randrange(200)))
            if i % 3 == 0:
                stranger.settimeout(0.05)
                with contextlib.suppress(OSError):
                    stranger.recv(100)
    silent = [socket.create_connection(address) for _ in range(80)]  # more than it keeps
    script(USE, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN=TOKEN, TORCH_REMOTE_TLS_CA=files / "ca.pem")
    assert process.poll() is None
    for stranger in silent:
        stranger.close()


def test_an_older_client_is_told_the_version(worker):
    url, _ = worker()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as old:
        old.settimeout(5)
        old.sendall(b"TRRC\x01\x00\x00\x00" + bytes(16))
        assert old.recv(100) == b"TRRW\x02\x02\x00\x00"


def test_a_token_file_that_others_can_read_is_said_at_both_ends(script, worker, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o644)
    url, process = worker("--token-file", token)
    assert f"other users can read the token: chmod 600 {token}" in process.log.read_text()
    done = script(USE, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN_FILE=token)
    assert done.stderr.count(f"other users can read the token in TORCH_REMOTE_TOKEN_FILE: chmod 600 '{token}'") == 1
    token.chmod(0o600)
    assert "other users" not in script(USE, TORCH_REMOTE_WORKER=url, TORCH_REMOTE_TOKEN_FILE=token).stderr


class Tunnel(threading.Thread):
    """Forwards connections to a port, and records what clients send. While it is down, its port refuses."""

    def __init__(self, port, at=0):
        super().__init__(daemon=True)
        self.to, self.heard, self.open = ("127.0.0.1", port), [], []
        self.listener = socket.create_server(("127.0.0.1", at))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            ends = client, socket.create_connection(self.to)
            self.open += ends
            self.heard.append(b"")
            for up in (True, False):
                threading.Thread(target=self.carry, args=(*ends[:: 1 if up else -1], up), daemon=True).start()

    def carry(self, a, b, up):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                if up and len(self.heard[-1]) < 4096:
                    self.heard[-1] += data
                b.sendall(data)
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def go_down(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def come_back(self):
        return Tunnel(self.to[1], self.port)


IDLE = """
import sys, torch, torch_remote
x = torch.arange(4.0, device="remote")
x.sum().item()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print((x + 1).sum().item(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@contextlib.contextmanager
def idle(port, scheme="tcp", **variables):
    """A client that computes on request."""
    with Python(
        [sys.executable, "-c", IDLE],
        env=environment() | {"TORCH_REMOTE_WORKER": f"{scheme}://127.0.0.1:{port}"} | variables,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == "ready\n"
        yield client


def compute(client):
    client.stdin.write("\n")
    client.stdin.flush()
    return client.stdout.readline()


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_silent_strangers_who_heard_a_session_cost_it_nothing(worker, files, scheme):
    arguments = tls(files) if scheme == "tls" else []
    lease = ["--heartbeat", "0.3", "--lease", "3"]
    url, process = worker(*arguments, *lease, "--token-file", files / "token", url=f"{scheme}://127.0.0.1:0")
    tunnel = Tunnel(int(url.rpartition(":")[2]))
    variables = {"TORCH_REMOTE_TOKEN": TOKEN, "TORCH_REMOTE_TLS_CA": str(files / "ca.pem")}
    with idle(tunnel.port, scheme, **variables) as client:
        tunnel.cut()
        assert compute(client) == "10.0\n"
        came_back = process.log.read_text().count("a session goes on")
        assert came_back == 1 and len(tunnel.heard) == 2 and len(children(process)) == 1
        strangers = []
        for client_hello in [said[:64] for said in tunnel.heard] * 4:  # of the first and the second connection
            strangers.append(socket.create_connection(tunnel.to))
            strangers[-1].sendall(client_hello)
        time.sleep(4)  # longer than the lease, and many heartbeats
        assert compute(client) == "10.0\n"
        log = process.log.read_text()
        assert log.count("a session goes on") == came_back, log  # the client's connection was never cut
        for stranger in strangers:
            stranger.close()
        client.stdin.close()
        assert client.wait(60) == 0


def test_a_client_tries_while_the_port_refuses_as_long_as_the_lease(worker, files):
    url, process = worker("--heartbeat", "0.3", "--lease", "30", "--token-file", files / "token")
    tunnel = Tunnel(int(url.rpartition(":")[2]))
    with idle(tunnel.port, TORCH_REMOTE_TOKEN=TOKEN) as client:
        tunnel.go_down()
        client.stdin.write("\n")
        client.stdin.flush()
        time.sleep(8)  # far more than three heartbeats
        os.kill(client.pid, signal.SIGINT)  # the wait can be interrupted
        assert client.stdout.readline() == "interrupted\n"
        tunnel.come_back()
        assert compute(client) == "10.0\n"
        assert len(children(process)) == 1
        client.stdin.close()
        assert client.wait(60) == 0
        said = client.stderr.read()
    assert said.count("broke; trying to connect again for 30 s, as long as it keeps the session") == 1, said
    assert said.count("is back") == 1, said


def test_a_lease_that_is_over_is_a_lost_worker(worker):
    url, _ = worker("--heartbeat", "0.3", "--lease", "2")
    tunnel = Tunnel(int(url.rpartition(":")[2]))
    source = IDLE.replace("KeyboardInterrupt", "torch.remote.WorkerLost").replace("interrupted", "lost")
    with Python(
        [sys.executable, "-c", source], env=environment() | {"TORCH_REMOTE_WORKER": f"tcp://127.0.0.1:{tunnel.port}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == "ready\n"
        tunnel.go_down()
        begin = time.monotonic()
        assert compute(client) == "lost\n"
        assert 1 < time.monotonic() - begin < 20
        client.stdin.close()
        client.wait(60)


def test_a_full_worker_says_who_uses_it(script, worker):
    url, _ = worker("--max-sessions", "1")
    with Python(
        [sys.executable, "-c", CLIENT], env=environment() | {"TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == "ready\n"
        output = error_of(script, TORCH_REMOTE_WORKER=url)
        assert "is busy: it serves 1 client at most, and 127.0.0.1:" in output and "--max-sessions" in output
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.wait(60) == 0
    script(USE, TORCH_REMOTE_WORKER=url)


CLIENT = """
import torch, torch_remote
x = torch.arange(4.0, device="remote")
x.sum().item()
print("ready", flush=True)
input()
assert x.sum().item() == 6
"""


def test_a_client_that_dies_frees_its_session_with_the_lease(worker):
    url, process = worker("--lease", "0.5")
    with Python(
        [sys.executable, "-c", CLIENT], env=environment() | {"TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == "ready\n"
        assert len(children(process)) == 1
        client.kill()
    wait_until(lambda: not children(process))


def test_a_session_that_is_killed_is_a_lost_worker_with_its_reason(script, worker):
    url, _ = worker()
    output = script(
        """
        import os, re, signal, time, torch, torch_remote
        x = torch.ones(3, device="remote")
        x.sum().item()
        pid = int(re.search(r"pid (\\d+)", torch.remote.get_device_properties().worker)[1])
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        try:
            (x + 1).sum().item()
        except torch.remote.WorkerLost as error:
            print(error)
        assert time.monotonic() - begin < 10
        torch.remote.restart()
        assert torch.ones(3, device="remote").sum().item() == 3
        """,
        TORCH_REMOTE_WORKER=url,
    ).stdout
    assert "it was killed by signal 9" in output


def test_strangers_that_connect_later_do_not_displace_a_client(worker):
    """The worker keeps 64 connections whose hello has not come. It is stopped meanwhile, as on a busy machine."""
    url, process = worker()
    address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    process.send_signal(signal.SIGSTOP)
    with contextlib.ExitStack() as sockets:
        client = sockets.enter_context(socket.create_connection(address))
        client.sendall(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n")
        for _ in range(100):
            sockets.enter_context(socket.create_connection(address))
        process.send_signal(signal.SIGCONT)
        client.settimeout(20)
        assert client.recv(100) != b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_clients_learn_at_once_that_their_worker_has_ended(worker, number):
    """Otherwise they would try to reconnect for the whole lease, even at their exit."""
    url, process = worker()
    with Python(
        [sys.executable, "-c", CLIENT], env=environment() | {"TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as client:  # fmt: skip
        assert client.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.wait()
        begin = time.monotonic()
        error = client.communicate("\n", timeout=50)[1]
    assert "WorkerLost" in error and "has ended the session" in error
    assert time.monotonic() - begin < 20


class CuttingProxy(threading.Thread):
    """Forwards connections, and cuts them after a random number of bytes, at any position."""

    def __init__(self, port, seed, between, cuts):
        super().__init__(daemon=True)
        self.to, self.random, self.between, self.left = ("127.0.0.1", port), random.Random(seed), between, cuts
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.cuts = self.listener.getsockname()[1], 0
        self.start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            ends = client, socket.create_connection(self.to)
            budget = [self.random.randrange(1, self.between) if self.left > 0 else 1 << 62]
            for a, b in (ends, ends[::-1]):
                threading.Thread(target=self.forward, args=(a, b, budget, ends), daemon=True).start()

    def forward(self, a, b, budget, ends):
        try:
            while data := a.recv(65536):
                passed = data[: max(budget[0], 0)]
                b.sendall(passed)
                budget[0] -= len(data)
                if budget[0] <= 0:
                    self.cuts += 1
                    self.left -= 1
                    break
        except OSError:
            pass
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


TRAIN = """
    import hashlib, torch, torch_remote
    from torch import nn
    torch.manual_seed(0)
    torch.remote.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 8)).to("remote")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(4, 64, 64)
    count = torch.zeros((), dtype=torch.int64, device="remote")
    losses = []
    for step in range(STEPS):
        loss = model(data[step % 4].to("remote")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1  # a run that is done twice shows
        if step % 5 == 0:
            losses.append(loss.item())
            model[0].weight.cpu()
    assert count.item() == STEPS, count
    state = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(state).hexdigest(), losses[-1])
"""


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_training_over_a_connection_that_is_cut_all_the_time(script, worker, files, scheme):
    cuts = int(os.environ.get("TORCH_REMOTE_TEST_CUTS", "100"))
    train = TRAIN.replace("STEPS", str(max(300, 3 * cuts)))
    fixed = {"TORCH_REMOTE_FUSION": "0"}  # which kernels are compiled in time depends on the machine
    expected = script(train, TORCH_REMOTE_WORKER="local", **fixed).stdout
    arguments = tls(files) if scheme == "tls" else []
    url, _ = worker(*arguments, "--token-file", files / "token", url=f"{scheme}://127.0.0.1:0")
    proxy = CuttingProxy(int(url.rpartition(":")[2]), 11, 60_000, cuts)
    output = script(
        train,
        TORCH_REMOTE_WORKER=f"{scheme}://127.0.0.1:{proxy.port}",
        TORCH_REMOTE_TOKEN=TOKEN,
        TORCH_REMOTE_TLS_CA=files / "ca.pem",
        timeout=600,
        **fixed,
    ).stdout
    assert output == expected
    assert proxy.cuts >= cuts


def test_stdio_serves_one_client_and_ends_with_it(remote):
    with subprocess.Popen(
        [PACKAGE / "bin/torch-remote-worker", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdin.close()
        assert process.stdout.read() == b"" and process.wait(60) == 1  # it sent nothing


def test_a_stopped_worker_does_not_hold_up_an_interrupt(script, worker):
    url, process = worker()
    os.kill(process.pid, signal.SIGSTOP)
    output = script(
        """
        import signal, threading, time, os, torch, torch_remote
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            torch.ones(3, device="remote").sum().item()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 5)
        """,
        TORCH_REMOTE_WORKER=url,
    ).stdout
    os.kill(process.pid, signal.SIGCONT)
    assert output == "interrupted True\n"
