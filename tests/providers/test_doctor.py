"""torch-remote doctor and bench: what they find out about workers, and which failures they name."""

import json
import socket
import subprocess
import threading

import pytest
import torch
from command_client import client, ok
from provider_fixtures import TOKEN, certificates

from torch_remote_cli import doctor, output, service, worker_checks


def test_doctor(command):
    found = json.loads(ok(command("doctor", "--json")))
    by_name = {check["check"]: check for check in found["checks"]}
    assert found["failed"] == 0 and {"system", "installation", "torch", "GPU", "sandbox"} <= set(by_name)
    assert "no core files" in by_name["sandbox"]["found"]
    assert all(by_name[name]["state"] == "ok" for name in ("address", "versions", "machine", "result"))
    assert "round trip" in by_name["result"]["found"]
    status, output, _ = command("doctor", TORCH_REMOTE_WORKER="unix:///nowhere/w.sock")
    assert status == 1 and "no worker at unix:///nowhere/w.sock" in output
    assert "-> " in output and "torch-remote-worker --listen" in output
    status, output, _ = command("doctor", "--quick", TORCH_REMOTE_TOKEN_FILE="/nowhere", TORCH_REMOTE_TOKEN="hush hush")
    assert status == 1 and "correct TORCH_REMOTE_TOKEN_FILE" in output and "hush" not in output


def test_versions_of_torch_are_compared_as_numbers(monkeypatch, tmp_path):
    for minor in ("2.10", "2.9"):
        plugin = tmp_path / f"torch{minor}/libaten_plugin.so"
        plugin.parent.mkdir()
        plugin.touch()
    (tmp_path / "version.py").write_text((service.package() / "version.py").read_text())
    monkeypatch.setattr(service, "package", lambda: tmp_path)
    check = doctor._torch()
    assert check["state"] == "failed" and check["found"].endswith("this torch_remote is for torch 2.9 and 2.10")
    assert check["fix"] == "pip install 'torch==2.10.*'"


def test_a_worker_that_does_not_say_its_version(monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, 20)

    monkeypatch.setattr(doctor.subprocess, "run", run)
    check = doctor._installation()
    assert check["state"] == "failed" and "--version did not end within 20 s" in check["found"] and check["fix"]


@pytest.fixture
def files(tmp_path):
    """Tokens and certificates."""
    certificates(tmp_path)
    for name, text in (("token", TOKEN), ("other", TOKEN[::-1])):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    return tmp_path


def examine(command, url, **variables):
    """The exit status of `doctor --on URL`, and its checks of the worker by name. Each failure has a fix."""
    status, printed, errors = command("doctor", "--on", url, "--json", **variables)
    found = json.loads(printed)
    assert "Traceback" not in printed + errors
    assert all(check["fix"] for check in found["checks"] if check["state"] == "failed"), found
    assert bool(found["failed"]) == bool(status)
    return status, {check["check"]: check for check in found["checks"]}


def test_doctor_examines_a_worker(command, files):
    url = json.loads(ok(command("worker", "serve", "--background", "--json", "--unix", "w.sock")))["url"]
    status, by_name = examine(command, url)
    assert status == 0 and "GPU" not in by_name and "sandbox" not in by_name  # those are about this machine
    assert {"address", "versions", "machine", "result"} <= set(by_name) and not {"TLS", "token"} & set(by_name)
    assert f"ok     address: {url} answers\n" in ok(command("doctor", "--on", url))
    url = json.loads(ok(command("worker", "serve", "--background", "--json", "--name", "open")))["url"]
    status, by_name = examine(command, url)
    assert status == 0 and "not encrypted" in by_name["TLS"]["found"] and "requires none" in by_name["token"]["found"]
    token = ["--token-file", files / "token"]
    url = json.loads(ok(command("worker", "serve", "--background", "--json", "--name", "t", *token)))["url"]
    status, by_name = examine(command, url, TORCH_REMOTE_TOKEN_FILE=str(files / "token"))
    assert status == 0 and by_name["TLS"]["state"] == by_name["token"]["state"] == "ok"
    assert f"ATen {torch.__version__.partition('+')[0]}" in by_name["versions"]["found"]
    assert "cores" in by_name["machine"]["found"] and "matmul, softmax, " in by_name["result"]["found"]


@pytest.mark.parametrize("address", ["local?threads=1", "local"])
def test_doctor_examines_a_machine_that_is_started(command, address):
    status, by_name = examine(command, address)
    assert status == 0 and by_name["address"]["found"] == f"{address} starts a worker"
    assert by_name["result"]["state"] == "ok"


def test_doctor_names_the_step_that_fails(command, files):
    """Each address has one thing wrong with it, and the variables that a user would have set."""

    def serve(name, *arguments):
        return json.loads(ok(command("worker", "serve", "--background", "--json", "--name", name, *arguments)))["url"]

    certificate = ["--tls-cert", files / "worker.pem", "--tls-key", files / "worker.key"]
    plain, token = serve("plain"), serve("token", "--token-file", files / "token")
    tls = serve("tls", "--token-file", files / "token", *certificate)
    mutual = serve("mutual", "--client-ca", files / "ca.pem", *certificate)
    ca = {"TORCH_REMOTE_TLS_CA": str(files / "ca.pem")}
    good, other, missing = ({"TORCH_REMOTE_TOKEN_FILE": str(files / name)} for name in ("token", "other", "missing"))
    for url, variables, step, message, fix in (
        ("tcp://127.0.0.1:1", {}, "address", "Connection refused", "start one there"),
        ("unix:///nowhere", {}, "address", "No such file or directory", "start one with"),
        ("tcp://127.0.0.1", {}, "address", "is not the address of a worker", "write it like"),
        ("somewhere", {}, "address", "is not a worker", "use 'local'"),
        ("local?threads=x", {}, "address", "must be an integer", "correct the URL"),
        (token, {}, "token", "requires a token", "set TORCH_REMOTE_TOKEN_FILE"),
        (token, other, "token", "is not that of the worker", "set TORCH_REMOTE_TOKEN_FILE"),
        (token, missing, "token", "cannot read the token file", "TORCH_REMOTE_TOKEN_FILE"),
        (f"{token}?token_file=missing", {}, "token", "cannot read the token file", "TORCH_REMOTE_TOKEN_FILE"),
        (plain, good, "token", "has none, so it cannot prove", "start it with --token-file"),
        (tls, ca, "token", "requires a token", "set TORCH_REMOTE_TOKEN_FILE"),
        (tls, good, "TLS", "authority that is not trusted here", "set TORCH_REMOTE_TLS_CA"),
        (mutual, ca, "TLS", "requires a certificate from its clients", "set TORCH_REMOTE_TLS_CERT"),
        (plain.replace("tcp", "tls"), {}, "TLS", "has no TLS", f"connect with {plain}"),
        (tls.replace("tls", "tcp"), {}, "TLS", "requires TLS", f"connect with {tls}"),
    ):
        status, by_name = examine(command, url, **variables)
        check = by_name[step]
        assert status == 1 and check["state"] == "failed", (url, by_name)
        assert message in check["found"] and fix in check["fix"], check
        assert "result" not in by_name and "machine" not in by_name, by_name


def test_doctor_recognizes_other_versions_and_other_programs(command):
    def answer(bytes_):
        """Answers one connection."""
        client, _ = server.accept()
        client.recv(64)
        client.sendall(bytes_)
        client.close()

    for bytes_, step, message in (
        (b"TRRW\x63\x02\x00\x00", "versions", "speaks version 99 of the handshake"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "address", "is not a worker of torch-remote"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=answer, args=(bytes_,))
            thread.start()
            status, by_name = examine(command, f"tcp://127.0.0.1:{server.getsockname()[1]}")
            thread.join()
        assert status == 1 and by_name[step]["state"] == "failed" and message in by_name[step]["found"], by_name


def test_doctor_says_who_uses_a_worker_that_is_busy(command, environment):
    entry = json.loads(ok(command("worker", "serve", "--background", "--json", "--max-sessions", "1")))
    with client(environment, entry["url"]):
        status, by_name = examine(command, entry["url"])
    assert status == 1 and by_name["address"]["state"] == "ok" and by_name["machine"]["state"] == "failed"
    assert "is busy: it serves 1 client at most" in by_name["machine"]["found"]


PASSED = [
    {"step": "imported"},
    {"step": "checked", "provider": "unix", "has_token": False},
    {
        "step": "connected", "seconds": 0.1, "imported": 1.0, "torch": "2.13.0+cpu", "worker": "ATen 2.13.0, pid 7",
        "name": "a processor", "type": "cpu", "memory": 1 << 30, "cores": 2,
    },
]  # fmt: skip


def test_doctor_says_which_ops_are_wrong_or_refused():
    """No worker that is built here does these."""

    def found(*steps, error="", fix=""):
        printed = "\n".join(json.dumps(step) for step in [*PASSED, *steps])
        return {check["check"]: check for check in worker_checks.found("unix:///w", printed, error, fix)}

    done = {"step": "done", "round_trip": 1e-5}
    right, wrong = ({"step": "op", "op": "matmul", "right": right} for right in (True, False))
    assert all(check["state"] == "ok" for check in found(right, done).values())
    assert found(wrong, done)["result"]["found"] == "wrong results of matmul"
    refused = (
        "remote: the program contains the op 'aten::mm', but this side does not know it; use versions of torch-remote"
    )
    refused += " that agree about this op on both sides"
    by_name = found({"step": "op", "op": "matmul", "error": refused}, done)
    assert by_name["versions"]["state"] == "failed" and "'aten::mm'" in by_name["versions"]["found"]
    assert by_name["versions"]["fix"].startswith("use versions of torch-remote that agree") and "result" not in by_name
    by_name = found({"step": "op", "op": "conv2d", "error": "remote: conv2d needs cuDNN; install it"}, done)
    assert by_name["result"]["found"] == "conv2d: conv2d needs cuDNN" and by_name["result"]["fix"] == "install it"
    by_name = found(right, error="the worker (pid 7) was killed by signal 9 (Killed)")
    assert by_name["result"]["state"] == "failed" and "signal 9" in by_name["result"]["found"]
    other = {**PASSED[2], "torch": "2.12.1"}
    assert found(other, right, done)["versions"]["state"] == "note"


def test_the_reason_of_an_error_has_no_name_of_an_exception():
    for line in ("RuntimeError: remote: it is full; wait", "torch_remote.errors.WorkerLost: remote: it is full; wait"):
        assert output.reason(f"Traceback (most recent call last):\n  File ...\n{line}\n") == ("it is full", "wait")
    assert output.reason("") == ("no message", "")


def test_bench(command):
    found = json.loads(ok(command("bench", "--on", "local", "--seconds", "0.02", "--json")))
    figures = {key: value for key, value in found.items() if key != "worker"}
    assert len(figures) == 6 and all(value > 0 for value in figures.values()), found
    assert "round trip" in ok(command("bench", "--seconds", "0.02"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://127.0.0.1:1", "no worker at 127.0.0.1:1: Connection refused; start one there: "),
        ("unix:///nowhere/w.sock", "no worker at unix:///nowhere/w.sock: No such file or directory; start one with: "),
        ("tcp://127.0.0.1", "'tcp://127.0.0.1' is not the address of a worker "),
        ("somewhere", "'somewhere' is not a worker "),
        ("local?threads=x", "threads='x' must be an integer from 1 to 4096; torch-remote doctor --on local?threads=x "),
    ],
)
def test_bench_says_in_one_line_why_a_machine_cannot_be_used(command, address, message):
    status, printed, errors = command("bench", "--on", address)
    assert status == 1 and not printed and errors.startswith(f"remote: {message}"), errors
    assert errors.count("\n") == 1 and "Traceback" not in errors, errors
