"""The torch-remote command: workers, scripts on machines, metrics, and output for people and for programs."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import sshd as sshd_module
import torch
from command_client import client, ok
from python_processes import Python, run_python

from torch_remote_cli import metrics, service, state, status_file, worker
from torch_remote_cli.exit_status import describe


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_from_its_beginning_to_its_end(command, environment, tmp_path):
    (tmp_path / "token").write_text("a token of enough bytes\n")
    (tmp_path / "token").chmod(0o600)
    entry = json.loads(
        ok(command(
            "worker", "serve", "--background", "--name", "mine", "--token-file", "token", "--metrics", "0",
            "--max-sessions", "3", "--log-format", "json", "--log-level", "debug", "--json",
        ))
    )  # fmt: skip
    assert entry["name"] == "mine" and re.fullmatch(r"tcp://127\.0\.0\.1:\d+", entry["url"])
    assert get(entry["metrics"] + "/healthz") == (200, '{"status": "ok"}\n')
    assert get(entry["metrics"] + "/other")[0] == 404
    with client(environment, entry["url"], TORCH_REMOTE_TOKEN_FILE=str(tmp_path / "token")):
        (seen,) = json.loads(ok(command("worker", "status", "mine", "--json")))
        (session,) = seen["sessions"]
        assert session["messages"] > 0 and session["bytes_in"] > 0 and session["bytes_out"] > 0
        assert session["memory_bytes"] > 1 << 20 and session["client"].startswith("127.0.0.1:")
        text = ok(command("worker", "status"))
        assert f"mine: {entry['url']}" in text and session["client"] in text
        assert "1 sessions now (3 at most), " in text and seen["sessions_limit"] == 3
        assert "limits: 3 at once (--max-sessions), " in text and "confined: no new privileges, " in text
        assert entry["confined"].startswith("no new privileges, ") and "MiB for the tensors of each" in entry["limits"]
        status, body = get(entry["metrics"] + "/metrics")
        assert status == 200
        samples = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
        assert float(samples["torch_remote_up"]) == float(samples["torch_remote_sessions"]) == 1
        assert float(samples["torch_remote_sessions_limit"]) == 3
        assert float(samples["torch_remote_received_bytes_total"]) >= session["bytes_in"]
        assert float(samples[f'torch_remote_session_memory_bytes{{process="{session["process"]}"}}']) > 1 << 20
        look = json.loads(ok(command("top", "--json", "-n", "1", "-d", "0.2")).splitlines()[0])
        (worker,) = look["workers"]
        assert worker["name"] == "mine" and worker["sessions"][0]["process"] == session["process"]
        assert worker["sessions_limit"] == 3
        assert 0 <= worker["sessions"][0]["busy_share"] <= 1
        assert session["client"] in ok(command("top", "-n", "1", "-d", "0.1"))
    lines = [json.loads(line) for line in ok(command("worker", "logs", "mine", "-n", "1000")).splitlines()]
    assert all(set(line) == {"time", "level", "process", "message"} for line in lines)
    assert any("listening on" in line["message"] and line["level"] == "info" for line in lines)
    assert any(line["level"] == "debug" for line in lines) and "a token of" not in str(lines)
    status, _, errors = command("worker", "serve", "--name", "mine")
    assert status == 1 and "a worker called 'mine' runs already" in errors and "worker stop mine" in errors
    assert "mine was stopped" in ok(command("worker", "stop"))
    assert not Path(f"/proc/{entry['listener']}").exists()
    with pytest.raises(urllib.error.URLError):
        get(entry["metrics"] + "/healthz")
    assert json.loads(ok(command("worker", "status", "--json"))) == []
    assert "stopping" in ok(command("worker", "logs", "mine", "-n", "1"))


def test_a_worker_without_a_limit_of_sessions_says_so(command):
    entry = json.loads(
        ok(command("worker", "serve", "--background", "--max-sessions", "0", "--metrics", "0", "--json"))
    )
    (seen,) = json.loads(ok(command("worker", "status", "--json")))
    assert seen["sessions_limit"] == "no limit"
    assert "0 sessions now (no limit), 0 so far" in ok(command("worker", "status"))
    (worker,) = json.loads(ok(command("top", "--json", "-n", "1", "-d", "0.05")))["workers"]
    assert worker["sessions_limit"] == "no limit"
    assert "0 sessions, no limit" in ok(command("top", "-n", "1", "-d", "0.05"))
    assert "\ntorch_remote_sessions_limit +Inf\n" in get(entry["metrics"] + "/metrics")[1]
    assert json.loads(ok(command("worker", "stop", "--json"))) == [entry]
    assert json.loads(ok(command("worker", "stop", "--all", "--json"))) == []


BUSY = """
import sys, time, torch, torch_remote
x = torch.ones(700, 700, device="remote")
(x @ x).sum().item()
print("ready", flush=True)
end = time.monotonic() + 2
while time.monotonic() < end:
    for _ in range(20):
        y = x @ x
    y.sum().item()
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_that_computes_is_busy(command, environment, threads):
    entry = json.loads(ok(command("worker", "serve", "--background", "--json", "--threads", threads)))
    with Python(
        [sys.executable, "-c", BUSY], env={**environment, "TORCH_REMOTE_WORKER": entry["url"]},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            (before,) = status_file.read(Path(entry["status_file"])).sessions
            assert process.stdout.readline() == "done\n"
            (after,) = status_file.read(Path(entry["status_file"])).sessions
            (worker,) = json.loads(ok(command("worker", "status", "--json")))
            assert worker["sessions"][0]["busy_seconds"] > 1
        finally:
            process.kill()
    assert 1 < after.busy_seconds - before.busy_seconds < 2.5


def test_totals_keep_what_ended(command, environment):
    entry = json.loads(ok(command("worker", "serve", "--background", "--json", "--metrics", "127.0.0.1:0")))
    for _ in range(2):
        with client(environment, entry["url"]):
            pass
    deadline = time.monotonic() + 20
    while True:
        counts = status_file.read(Path(entry["status_file"]))
        if not counts.sessions:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert counts.sessions_total == 2 and counts.messages_total > 0 and counts.killed_total == 0
    assert "torch_remote_sessions_total 2" in get(entry["metrics"] + "/metrics")[1]


def test_serving_in_the_foreground_ends_with_ctrl_c(environment, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_remote_cli", "worker", "serve", "--unix", str(tmp_path / "w.sock"), "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    entry = json.loads(process.stdout.readline())
    assert entry["url"] == f"unix://{tmp_path}/w.sock"
    with client(environment, entry["url"]):
        pass
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0 and re.search(r"^\S+Z info \[\d+\] listening on unix://", log, re.M), log
    assert not Path(f"/proc/{entry['listener']}").exists()


def test_a_worker_that_nobody_uses_ends(environment, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "torch_remote_cli", "worker", "serve", "--idle-timeout", "0.3"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0 and "no client connected for 0.3 s" in result.stderr


def test_a_listener_does_not_outlive_who_looks_after_it(environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_remote_cli", "worker", "serve", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    entry = json.loads(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while state.process_began(entry["listener"]) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "serve", "--host", "0.0.0.0"], "give a token (--token-file FILE)"),
        (["worker", "serve", "--tls-cert", "x"], "TLS needs both --tls-cert FILE and --tls-key FILE"),
        (["worker", "serve", "--token-file", "/nowhere"], "/nowhere"),
        (["worker", "serve", "--device", "tpu"], "is not a device; there are cpu, cuda:0"),
        (
            ["worker", "serve", "--background", "--device", "gpu"],
            "--device: 'gpu' is not a device; there are cpu, cuda:0",
        ),
        (["worker", "serve", "--memory-limit", "lots"], "--memory-limit: 'lots': write 8G, 500M, or 0"),
        (["worker", "serve", "--memory-limit=-5"], "--memory-limit -5: write 8G, 500M, or 0 for no limit"),
        (["worker", "serve", "--client-ca", "ca.pem"], "--client-ca needs TLS (--tls-cert FILE --tls-key FILE)"),
        (["worker", "serve", "--allow-python", "--python", "python0"], "--python python0: there is no such program"),
        (["worker", "serve", "--lease", "nan"], "--lease nan: give seconds, more than 0"),
        (
            ["worker", "serve", "--background", "--lease", "100000"],
            "--lease: '100000.0': write seconds, from 0.01 to 86400",
        ),
        (["worker", "serve", "--idle-timeout=-1"], "--idle-timeout -1: give seconds, more than 0"),
        (["worker", "serve", "--threads", "many"], "'--threads'"),
        (["worker", "serve", "--background", "--threads=-1"], "'--threads'"),
        (["worker", "serve", "--fast"], "No such option: --fast"),
        (["worker", "serve", "--background", "--memory-limit", "lots"], "--memory-limit: 'lots': write 8G, 500M, or 0"),
        (["worker", "serve", "--allow-user", "root"], "--allow-user needs a Unix socket"),
        (["worker", "serve", "--session-user", "no such user"], "there is no user 'no such user'"),
        (["worker", "serve", "--device", "cuda:99"], "cuda"),
        (["worker", "serve", "--background", "--device", "cuda:99"], "cuda"),
        (["worker", "serve", "--metrics", "here"], "write HOST:PORT, or a port of 127.0.0.1"),
        (["worker", "serve", "--log-level", "loud"], "use one of trace, debug, info"),
        (["worker", "serve", "--name", "../x"], "a name must not contain a slash"),
        (["worker", "serve", "--background", "--host", "0.0.0.0"], "give a token (--token-file FILE)"),
        (["worker", "stop"], "no worker runs here; torch-remote worker serve starts one"),
        (["worker", "logs", "nobody"], "there is no worker called 'nobody'; none runs here"),
        (["run", "--on", "local", "nothing.py"], "there is no script and no program 'nothing.py'"),
        (["run", "--on", "ssh://a,ssh://b", "x.py"], "use --gpu-count for several devices"),
    ],
)
def test_what_is_wrong_is_said(command, arguments, message):
    status, output, errors = command(*arguments)
    assert status != 0 and message in errors.replace("\n", " "), output + errors
    assert "Traceback" not in errors


def test_a_worker_that_ends_before_it_listens_says_why(command, tmp_path):
    program = tmp_path / "worker"
    for source, message in (
        ("kill -SEGV $$", "the worker was killed by signal 11 (Segmentation fault) before it listened"),
        ("exit 3", "the worker exited with status 3 before it listened"),
        ("echo 'remote: one' >&2; echo two >&2; exit 1", "remote: one\ntwo\n"),
    ):
        program.write_text(f"#!/bin/sh\n{source}\n")
        program.chmod(0o755)
        for background in ([], ["--background"]):
            status, _, errors = command("worker", "serve", *background, TORCH_REMOTE_WORKER_BINARY=str(program))
            assert status == 1 and message in errors, errors


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exited with status 0"),
        (1, "exited with status 1"),
        (255, "exited with status 255"),
        (137, "exited with status 137 (signal 9, Killed)"),
        (-9, "was killed by signal 9 (Killed)"),
        (-11, "was killed by signal 11 (Segmentation fault)"),
    ],
)
def test_exit_statuses_have_the_names_of_signals(status, text):
    assert describe(status) == text


def test_the_log_names_the_signal_that_ended_a_listener(command):
    entry = json.loads(ok(command("worker", "serve", "--background", "--name", "mine", "--json")))
    os.kill(entry["listener"], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while state.process_began(entry["process"]) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "the listener was killed by signal 9 (Killed)" in ok(command("worker", "logs", "mine", "-n", "1"))


SCRIPT = """
import sys, torch
x = torch.ones(3, device="remote") + torch.ones(3, device=f"remote:{torch.remote.device_count() - 1}").to("remote")
print(sys.argv[1:], x.sum().item(), torch.remote.device_count(), torch.remote.get_device_properties().worker)
"""


def test_run_on_machines(command, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)  # the script does not import torch_remote
    output = ok(command("run", "script.py", "--flag", "1"))
    assert output.startswith("['--flag', '1'] 6.0 1 ")
    output = ok(command("run", "--on", "local", "--gpu-count", "2", "--threads", "1", "script.py"))
    assert output.startswith("[] 6.0 2 ")
    assert ok(command("run", "--on", "local", "-m", "script", "a")).startswith("['a'] 6.0 1 ")
    assert ok(command("run", sys.executable, "script.py")).startswith("[] 6.0 1 ")
    entry = json.loads(ok(command("worker", "serve", "--background", "--json")))
    assert " over tcp" in ok(command("run", "--on", entry["url"], "script.py"))
    (tmp_path / "bad.py").write_text("raise SystemExit(7)")
    assert command("run", "bad.py")[0] == 7


def test_run_takes_options_in_the_url(command, tmp_path):
    (tmp_path / "script.py").write_text("import torch; print(torch.ones(2, device='remote').sum().item())")
    for arguments in (["local?threads=1"], ["local?threads=1", "--memory-limit", "1G"], ["local://?threads=1"]):
        assert ok(command("run", "--on", *arguments, "script.py")) == "2.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["locl?threads=1"], "there is no provider 'locl'; did you mean 'local'?"),
        (["gopher://there"], "there is no provider 'gopher'"),
        (["somewhere"], "there is no provider 'somewhere'"),
        (["local?thread=1"], "provider 'local' has no option 'thread'; did you mean 'threads'?"),
        (["local?threads=x"], "threads='x' must be an integer from 1 to 4096"),
        (["local?threads=1", "--threads", "2"], "threads is given twice"),
        (["local", "--memory-limit", "lots"], "'lots' is not a number of bytes; write 8G, 500M or 1000000"),
        (["local", "--idle-timeout", "0"], "idle_timeout='0.0' is not a time"),
        (["local", "--gpu", "A1000"], "there is no GPU called 'A1000'; did you mean 'A100'?"),
        (["modal", "--gpu", "V100"], "Modal has no NVIDIA GPU of kind V100"),
        (["ssh"], "provider 'ssh' needs the host"),
        (["ssh://[::1"], "is not the URL of a machine"),
        (["tcp://127.0.0.1:1", "--threads", "2"], "runs already, so threads=2 cannot be chosen here"),
        (["unix:///w.sock", "--threads", "2"], "--threads is for a machine that is started"),
        (["inproc", "--memory-limit", "1G"], "--memory-limit is for a machine that is started"),
    ],
)
def test_run_checks_the_machine_before_it_starts_the_script(command, tmp_path, arguments, message):
    (tmp_path / "script.py").write_text("open('started', 'w')")
    status, _, errors = command("run", "--on", *arguments, "script.py")
    assert status == 2 and message in errors and "Traceback" not in errors, errors
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU")
def test_run_checks_the_gpus_of_this_machine_before_it_starts_the_script(command, tmp_path):
    (tmp_path / "script.py").write_text("open('started', 'w')")
    status, _, errors = command("run", "--gpu", "any", "script.py")
    assert status == 2 and "this machine has no NVIDIA GPU, but the machine needs 1 GPU" in errors
    assert not (tmp_path / "started").exists()


def test_run_over_ssh(command, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    server = sshd_module.Sshd(tmp_path)
    try:
        where = f"ssh://{server.host}?torch_lib={Path(torch.__file__).parent / 'lib'}"
        output = ok(command("run", "--on", where, "--threads", "1", "script.py", TORCH_REMOTE_SSH=server.command))
        assert output.startswith("[] 6.0 1 ") and f"ssh://{server.host}" in output
    finally:
        server.stop()


def test_machines_of_all_processes(command, environment):
    assert json.loads(ok(command("machines", "--json"))) == []
    assert "no machine runs" in ok(command("machines"))
    with client(environment, "local://?threads=1") as process:
        (entry,) = json.loads(ok(command("machines", "--json")))
        assert entry["process"] == process.pid and entry["devices"] == ["remote:0"] and entry["provider"] == "local"
        assert entry["id"] in ok(command("machines"))
    assert json.loads(ok(command("machines", "--json"))) == []


def test_entries_of_killed_processes_go(command, environment):
    with client(environment, "local://?threads=1"):
        (entry,) = json.loads(ok(command("machines", "--json")))
        file = Path(environment["XDG_RUNTIME_DIR"], "torch-remote/machines", f"{entry['id']}.json")
        stale = file.with_name("m-stale.json")
        stale.write_text(json.dumps({**entry, "process_began": 1}))  # the pid now belongs to another process
        assert json.loads(ok(command("machines", "--json"))) == [entry]
        assert not stale.exists() and file.exists()


def test_help_loads_no_torch(command, environment):
    for arguments in ([], ["worker"], ["worker", "serve"], ["run"], ["top"], ["doctor"], ["bench"], ["machines"]):
        assert "Usage: torch-remote" in ok(command(*arguments, "--help"))
    code = "import sys, torch_remote_cli.commands; assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_the_package_loads_nothing_of_the_command(script, remote):
    script(
        """
        import sys, torch, torch_remote
        for name in ("typer", "rich", "ray", "modal", "kubernetes", "torch_remote.providers", "torch_remote_cli"):
            assert name not in sys.modules, name
        torch_remote.RemoteMachine
        assert "torch_remote.providers.ssh" not in sys.modules and "typer" not in sys.modules
        """
    )


def test_the_state_folder_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state.folder("machines").stat().st_mode & 0o777 == 0o700
    (tmp_path / "torch-remote").chmod(0o777)
    with pytest.raises(OSError, match="not a folder that only you can write to"):
        state.folder("machines")


def test_metrics_are_prometheus_text():
    session = status_file.Session(12, 1, 3, 4, 5, 0.5, 0.25, "127.0.0.1:1")
    text = metrics.text(status_file.Counts(1, 0, 7, 1, 2, 3, 4, 5, 1.5, [session]), "0.1")
    assert "\ntorch_remote_sessions_limit +Inf\n" in text
    for line in text.splitlines():
        assert re.fullmatch(
            r'# (HELP|TYPE) torch_remote_\w+ .+|torch_remote_\w+(\{\w+="[^"]*"\})? ([-+.e\d]+|\+Inf)', line
        ), line
    assert (
        "torch_remote_busy_seconds_total 1.5" in text and 'torch_remote_session_idle_seconds{process="12"} 0.25' in text
    )
    assert "torch_remote_up 0" in metrics.text(None, "0.1")
    assert text.endswith("\n")


def test_the_health_check_says_what_is_wrong():
    wrong = ["it is on fire"]
    endpoint = metrics.Endpoint("127.0.0.1", 0, lambda: "", lambda: wrong[0] if wrong else None)
    try:
        assert get(endpoint.url + "/healthz") == (503, '{"status": "failing", "why": "it is on fire"}\n')
        wrong.clear()
        assert get(endpoint.url + "/healthz")[0] == 200
    finally:
        endpoint.close()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        metrics.Endpoint("127.0.0.1", taken.getsockname()[1], lambda: "", lambda: None)


def test_metrics_over_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    endpoint = metrics.Endpoint("::1", 0, lambda: "", lambda: None)
    try:
        assert endpoint.url.startswith("http://[::1]:") and get(endpoint.url + "/healthz")[0] == 200
    finally:
        endpoint.close()


def test_a_log_without_a_reader_of_stderr(monkeypatch, tmp_path):
    """The thread that reads the worker's log goes on; otherwise the worker would wait for it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    class Closed(io.TextIOBase):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    log = service._Log(service.Options("w", "unix://w.sock"))
    log.write("info", "first")
    log.write("info", "second")
    log.close()
    log.write("info", "third")
    assert [line.split()[-1] for line in service.log_file("w").read_text().splitlines()] == ["first", "second"]


def test_functions_of_a_worker_that_serves(command, environment):
    assert "--allow-python" in command("worker", "serve", "--python", "python3")[2]
    url = json.loads(ok(command("worker", "serve", "--background", "--allow-python", "--json")))["url"]
    script = "import torch, torch_remote; print(torch_remote.function(lambda x: x + 1)(torch.ones(1, device='remote')))"
    result = run_python("-c", script, env={**environment, "TORCH_REMOTE_WORKER": url})
    assert result.stdout == "tensor([2.], device='remote:0')\n", result.stderr


def test_a_followed_log_continues_in_the_next_file(environment, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state.write(
        "workers", "mine", {"process": os.getpid(), "process_began": state.process_began(os.getpid()), "started": 0}
    )
    log = service.log_file("mine")
    log.write_text("first\n")
    follower = subprocess.Popen(
        [sys.executable, "-m", "torch_remote_cli", "worker", "logs", "mine", "-f"],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert follower.stdout.readline() == "first\n"
        log.replace(log.with_suffix(".log.1"))
        log.write_text("second\n")
        assert follower.stdout.readline() == "second\n"
        with log.open("a") as file:
            file.write("last\n")
        state.remove("workers", "mine")
        assert follower.stdout.readline() == "last\n"
    finally:
        follower.kill()
        follower.communicate()


def test_a_full_disk_does_not_end_the_reader_of_a_log(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    log = service._Log(service.Options("mine", "unix:///w", quiet=True))
    log._file.close()
    log._file = open("/dev/full", "a", buffering=1)  # noqa: SIM115 (close() does)
    log.write("info", "there is no space for this line")
    log.close()


def test_a_worker_that_has_just_ended_is_no_error(monkeypatch, capsys):
    ended = {"name": "mine", "process": 2**22, "process_began": 0, "started": 0}  # no process has this number
    monkeypatch.setattr(state, "entries", lambda kind: [ended])
    worker.stop(None, True, False)
    assert capsys.readouterr().out == "mine was stopped\n"
