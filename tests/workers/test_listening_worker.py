"""A listening worker: it starts as the error message recommends, has a session for each client, and never stays
silent."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from python_processes import Python

import torch_remote

COMMAND = [sys.executable, "-m", "torch_remote.worker"]


@pytest.fixture
def worker(remote, tmp_path_factory):
    """Starts workers: worker(*arguments) -> (url, process)."""
    processes = []

    def start(*arguments, url=None, command=COMMAND):
        url = url or f"unix://{tmp_path_factory.mktemp('s')}/w"
        process = Python([*command, "--listen", url, *arguments], env=environment(), stderr=subprocess.PIPE, text=True)
        processes.append(process)
        path = Path(url.removeprefix("unix://"))
        deadline = time.monotonic() + 60
        while not path.is_socket():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return url, process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def environment():
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}


USE = "import torch, torch_remote; assert torch.ones(3, device='remote').sum().item() == 3"


def sessions(process):
    """Pids of a listening worker's sessions."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


TWO_DEVICES = """
    import torch, torch_remote
    a, b = torch.ones(3, device="remote:0"), torch.full((3,), 2.0, device="remote:1")
    assert (a.to("remote:1") + b).tolist() == [3, 3, 3]
    workers = {torch.remote.get_device_properties(i).worker for i in range(2)}
    assert len(workers) == 2, workers  # two sessions
"""


def test_one_worker_as_two_devices(script, worker):
    url, _ = worker()
    script(TWO_DEVICES, TORCH_REMOTE_WORKER=f"{url},{url}")
    script(TWO_DEVICES, TORCH_REMOTE_WORKER=f"{url},local")


MAPPED_READ_ONLY = """
    import torch, torch_remote
    from pathlib import Path
    x = torch.arange(100_000, dtype=torch.float32)
    y = x.to("remote") * 2
    assert y.cpu().equal(x * 2)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "torch-remote" in line]
    assert {permissions for _, permissions, *_ in maps} == {"rw-s", "r--s"}, maps  # its own segments, and the worker's
    x.add_(1)  # what was sent stays as it was
    assert y.cpu().equal((x - 1) * 2)
"""


def test_a_client_cannot_write_to_the_workers_memory(script, worker):
    script(MAPPED_READ_ONLY, TORCH_REMOTE_WORKER="local")
    script(MAPPED_READ_ONLY, TORCH_REMOTE_WORKER=worker()[0])


def test_clients_at_the_same_time_have_a_session_each(script, worker):
    url, _ = worker()
    client = Python(
        [sys.executable, "-c", CLIENT], env={**environment(), "TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline() == "ready\n"
    script(USE, TORCH_REMOTE_WORKER=url)
    assert client.communicate("\n", timeout=60)[0] == "6.0\n" and client.returncode == 0


CLIENT = """
import torch, torch_remote
x = torch.arange(4.0, device="remote")
x.sum().item()
print("ready", flush=True)
input()
print(x.sum().item())
"""


def test_a_full_worker_refuses_at_once_and_a_client_that_dies_makes_room(script, worker):
    url, _ = worker("--max-sessions", "1")
    client = Python(
        [sys.executable, "-c", CLIENT], env={**environment(), "TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline() == "ready\n"
    output = script(
        """
        import time, torch, torch_remote
        begin = time.perf_counter()
        try:
            torch.ones(1, device="remote").item()
        except RuntimeError as error:
            print(error)
            assert time.perf_counter() - begin < 20
            raise SystemExit(3)
        """,
        status=3,
        TORCH_REMOTE_WORKER=url,
    ).stdout
    for part in ("is busy", url, f"process {client.pid} uses it", "--max-sessions", "torch-remote-worker --listen"):
        assert part in output, output
    client.kill()
    client.wait()
    script(
        """
        import torch, torch_remote
        for i in range(3):  # its own old session makes room in time, too
            assert torch.ones(3, device="remote").sum().item() == 3
            torch.remote.restart()
        """,
        TORCH_REMOTE_WORKER=url,
    )


def test_clients_that_say_nothing_keep_no_process(worker):
    url, process = worker("--max-sessions", "1")
    silent = []
    for _ in range(19):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(url.removeprefix("unix://"))
        assert len(sessions(process)) <= 1 + 16
    silent[-1].settimeout(30)
    assert silent[-1].recv(1) == b"", "one too many is not sent away at once"
    for client in silent[1:]:  # the first one has a session until its handshake times out
        client.settimeout(30)
        assert client.recv(1) == b""
    deadline = time.monotonic() + 30
    while len(sessions(process)) > 1:
        assert time.monotonic() < deadline, "refused clients keep processes"
        time.sleep(0.05)
    for client in silent:
        client.close()


def test_a_session_that_dies_is_lost_to_its_client_only(script, worker):
    url, process = worker()
    client = Python(
        [sys.executable, "-c", CLIENT], env={**environment(), "TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline() == "ready\n"
    (session,) = sessions(process)
    os.kill(session, signal.SIGSEGV)
    assert "WorkerLost" in client.communicate("\n", timeout=60)[1]
    script(USE, TORCH_REMOTE_WORKER=url)
    process.terminate()
    assert f"the session of process {client.pid} (pid {session}) was killed by signal 11" in process.communicate()[1]


def test_sessions_end_with_their_worker(worker):
    url, process = worker()
    client = Python(
        [sys.executable, "-c", CLIENT], env={**environment(), "TORCH_REMOTE_WORKER": url},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline() == "ready\n"
    (session,) = sessions(process)
    process.kill()
    deadline = time.monotonic() + 30
    while not ended(session):
        assert time.monotonic() < deadline, "the session lives on"
        time.sleep(0.01)
    assert "WorkerLost" in client.communicate("\n", timeout=60)[1]


def test_the_program_finds_plugin_and_torch_by_itself(script, worker):
    """As the error recommends: without --plugin. The bare executable needs torch's folder if it is not next to it."""
    package = Path(torch_remote.__file__).parent.resolve()
    output = script(
        "import torch, torch_remote; torch.ones(1, device='remote').item()",
        status=1,
        TORCH_REMOTE_WORKER="unix:///proc/nonexistent/w",
    ).stderr
    assert "torch-remote-worker --listen unix:///proc/nonexistent/w" in output
    assert "python -m torch_remote.worker --listen unix:///proc/nonexistent/w" in output
    os.environ["TORCH_REMOTE_TORCH_LIB"] = str(Path(torch.__file__).parent / "lib")
    try:
        url, _ = worker(command=[str(package / "bin/torch-remote-worker")])
    finally:
        del os.environ["TORCH_REMOTE_TORCH_LIB"]
    script(USE, TORCH_REMOTE_WORKER=url)


def run(*arguments, **variables):
    return subprocess.run(
        [*COMMAND, *arguments], env={**environment(), **variables}, capture_output=True, text=True, timeout=60
    )


def test_help_has_examples_that_are_its_options(remote):
    text = run("--help").stdout
    assert "torch-remote-worker --listen unix:///tmp/worker.sock" in text and "TORCH_REMOTE_WORKER=unix://" in text
    for option in ("--threads", "--memory-limit", "--max-sessions", "--plugin"):
        assert text.count(option) >= 1


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, "torch-remote-worker --listen unix:///tmp/worker.sock"),
        (["--listen", "http://localhost:1"], {}, "--listen needs unix://PATH, tcp://HOST:PORT or tls://HOST:PORT"),
        (["--listen", "unix:///no/such/folder/w"], {}, "No such file or directory"),
        (["--listen", "unix:///tmp/w", "--memory-limit", "much"], {}, "--memory-limit: 'much': write 8G, 500M, or 0"),
        (["--listen", "unix:///tmp/w", "--memory-limit=-5"], {}, "--memory-limit: '-5': write 8G, 500M, or 0"),
        (
            ["--listen", "unix:///tmp/w", "--memory-limit", "9" * 20],
            {},
            "--memory-limit: '99999999999999999999': write",
        ),
        (["--listen", "unix:///tmp/w", "--memory-limit", "99999999999G"], {}, "--memory-limit: "),
        (["--listen", "unix:///tmp/w", "--max-sessions=-1"], {}, "--max-sessions: '-1': write 16, or 0 for any number"),
        (
            ["--listen", "unix:///tmp/w", "--max-sessions", "9" * 20],
            {},
            "--max-sessions: '99999999999999999999': write",
        ),
        (["--listen", "unix:///tmp/w", "--max-sessions", "2x"], {}, "--max-sessions"),
        (["--listen", "unix:///tmp/w", "--threads=-1"], {}, "--threads: Value -1 not in range"),
        (["--listen", "unix:///tmp/w", "--threads", "nan"], {}, "--threads"),
        (["--listen", "unix:///tmp/w", "--threads", "100000"], {}, "--threads: Value 100000 not in range"),
        (["--listen", "unix:///tmp/w", "--lease", "nan"], {}, "--lease: 'nan': write seconds, from 0.01 to 86400"),
        (["--listen", "unix:///tmp/w", "--lease", "inf"], {}, "--lease: 'inf': write seconds, from 0.01 to 86400"),
        (["--listen", "unix:///tmp/w", "--lease=-1"], {}, "--lease: '-1': write seconds, from 0.01 to 86400"),
        (["--listen", "unix:///tmp/w", "--heartbeat", "nan"], {}, "--heartbeat: 'nan': write seconds, from 0.01 to"),
        (["--listen", "unix:///tmp/w"], {"TORCH_REMOTE_WORKER_LOG": "loud"}, "use 'warn' (the default), 'off', "),
        (["--listen", "unix:///tmp/w"], {"TORCH_REMOTE_WORKER_LGO": "info"}, "did you mean TORCH_REMOTE_WORKER_LOG?"),
    ],
)
def test_wrong_calls_say_what_is_right(remote, arguments, variables, message):
    result = run(*arguments, **variables)
    assert result.returncode != 0 and message in result.stdout + result.stderr, result


REFERENCE = """
    import torch, torch_remote
    from torch import nn

    def train(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        x, labels = torch.randn(8, 16).to(device), torch.arange(8).remainder(4).to(device)
        losses = []
        for _ in range(4):
            loss = nn.functional.cross_entropy(net(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train("cpu")
    with torch.remote.profile() as profile:
        losses = train("remote")
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-4), (losses, expected)
    ops = [event["args"] for event in profile.events if event.get("cat") == "op"]
    print(*sorted({op["runner"] for op in ops}), sep=", ")
"""


def test_the_reference_target(worker, tmp_path):
    url, _ = worker("--device", "reference")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(REFERENCE))
    run = subprocess.run(
        [sys.executable, script], env={**environment(), "TORCH_REMOTE_WORKER": url}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    runners = run.stdout.strip().split(", ")
    assert "interpreted loops" in runners and "matmuls by definition" in runners, runners
    wrong = subprocess.run([*COMMAND, "--device", "reference:1"], env=environment(), capture_output=True, text=True)
    assert "'reference:1' is not a device; there are cpu, cuda:0, cuda:1, ..., reference" in wrong.stderr
