"""SSH machines: what is copied to the remote host, and only once, and the errors when something is missing there."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import sshd as sshd_module
import torch

import torch_remote
from torch_remote import MachineError, RemoteMachine, WorkerLost
from torch_remote.providers import bundle, gpus, ssh
from torch_remote.providers.processes import Log

TORCH_LIB = Path(torch.__file__).parent / "lib"


@pytest.fixture
def server(tmp_path, remote):
    """The remote side has neither torch_remote nor torch."""
    (tmp_path / "bin").mkdir()
    for tool in (
        "sh",
        "tar",
        "gzip",
        "head",
        "mkdir",
        "mv",
        "rm",
        "touch",
        "find",
        "uname",
        "getconf",
        "cat",
        "sed",
        "tr",
    ):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    made = sshd_module.Sshd(tmp_path, PATH=str(tmp_path / "bin"))
    yield made
    made.stop()


def machine(server, **arguments):
    return RemoteMachine(f"ssh://{server.host}", ssh=server.command, **arguments)


def use(device):
    assert torch.arange(4.0, device=device).square().sum().item() == 14


def bundles(server):
    folder = server.home / "torch-remote/bundles"
    return {entry.name: entry for entry in folder.iterdir()} if folder.exists() else {}


def test_all_that_is_needed_is_brought_once(server):
    archives = {bundle.worker().digest, bundle.libtorch().digest}
    with machine(server) as there:
        use(there.device())
        (worker,) = workers(server)
        maps = Path(f"/proc/{worker}/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    for name in ("libtorch_cpu.so", "libaten_plugin.so", "libgomp"):
        (path,) = [library for library in libraries if name in library]
        assert path.startswith(str(server.home)), path
    assert os.path.dirname(sys.prefix) not in "".join(sorted(libraries)) or str(server.home).startswith(sys.prefix)
    first = bundles(server)
    assert set(first) == archives
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o700 for entry in first.values())
    made = {name: entry.stat().st_ino for name, entry in first.items()}
    with machine(server) as there:
        use(there.device())
    assert {name: entry.stat().st_ino for name, entry in bundles(server).items()} == made


def workers(server):
    import provider_fixtures

    return provider_fixtures.workers_of(server.process.pid)


def test_a_torch_that_is_there_is_used(tmp_path, remote):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin/python3").chmod(0o755)
    server = sshd_module.Sshd(
        tmp_path, PATH=f"{tmp_path}/bin:{os.environ['PATH']}", PYTHONPATH=os.pathsep.join(sys.path)
    )
    try:
        with machine(server) as there:
            use(there.device())
            (worker,) = workers(server)
            assert str(TORCH_LIB.resolve()) in Path(f"/proc/{worker}/maps").read_text()
        assert set(bundles(server)) == {bundle.worker().digest}
    finally:
        server.stop()


def test_functions_are_called_where_that_is_allowed(tmp_path, remote):
    server = sshd_module.Sshd(tmp_path, PATH=os.environ["PATH"], PYTHONPATH=os.pathsep.join(sys.path))
    double = torch_remote.function(lambda x: x * 2)
    try:
        with machine(server, torch_lib=str(TORCH_LIB)) as there, pytest.raises(RuntimeError, match="--allow-python"):
            double(torch.ones(2, device=there.device()))
        with machine(server, torch_lib=str(TORCH_LIB), allow_python=sys.executable) as there:
            assert double(torch.ones(2, device=there.device())).tolist() == [2, 2]
    finally:
        server.stop()


def test_two_bring_it_at_once(server):
    """Both clients upload everything; one copy remains."""
    errors = []

    def bring():
        try:
            with machine(server, torch_lib=str(TORCH_LIB)) as there:
                use(there.device())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=bring) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert set(bundles(server)) == {bundle.worker().digest}


def test_an_archive_that_was_cut_gets_no_name(server):
    """A client that dies during the upload leaves nothing."""
    script = Path(bundle.__file__).with_name("bootstrap.sh").read_text()
    command = [*server.command.split(), "-p", str(server.port), "127.0.0.1", f"exec sh -c '{script}'"]
    pieces = b"".join(bundle.worker().packed())
    for data in (pieces[: len(pieces) // 2], pieces[:100000] + b"\0" + pieces[100001:]):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdin.write(b"put 0123\n%d\n" % len(data) + data)
            if len(data) == len(pieces):
                process.stdin.write(b"0\n")
            process.stdin.close()
            said = process.stdout.read().decode().splitlines()
        assert said[1].startswith("failed cannot unpack"), said
        assert not bundles(server), bundles(server)


@pytest.mark.parametrize("where", ["python3", "torch_lib", "nowhere"])
@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_libraries_of_nvidia_are_those_of_the_hosts_python(tmp_path, where, device):
    """The worker that was copied finds what `pip install torch-remote[cuda]` has installed there."""
    for environment in ("python3", "torch_lib"):
        (tmp_path / environment / "nvidia/cu13/lib").mkdir(parents=True)
        (tmp_path / environment / "nvidia/cu13/lib/libcublasLt.so.13").write_text(environment)
    (tmp_path / "torch_lib/torch/lib").mkdir(parents=True)
    root = tmp_path / "cache/torch-remote/bundles"
    (root / "1234/bin").mkdir(parents=True)
    worker = root / "1234/bin/torch-remote-worker"
    worker.write_text('#!/bin/sh\ncat "$TORCH_REMOTE_PACKAGE/../nvidia/cu13/lib/libcublasLt.so.13"\n')
    worker.chmod(0o755)
    (tmp_path / "bin").mkdir()
    paths = f"sys.path.insert(0, '{tmp_path}/python3')" if where != "nowhere" else "sys.path.clear()"
    (tmp_path / "bin/python3").write_text(
        f'#!/bin/sh\nexec {sys.executable} -I -c "import sys, glob, importlib.util; {paths}; exec(sys.argv[1])" "$2"\n'
    )
    (tmp_path / "bin/python3").chmod(0o755)
    (tmp_path / "bin/python").symlink_to("python3")
    torch_lib = tmp_path / "torch_lib/torch/lib" if where == "torch_lib" else ""
    script = Path(bundle.__file__).with_name("bootstrap.sh").read_text()
    done = subprocess.run(
        ["sh", "-c", script], input=f"run info --device {device}\n{root}/1234\n{torch_lib}\n",
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": f"{tmp_path}/cache"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[1] == "ok", done
    found = done.stdout.splitlines()[2:]
    assert found == ([where] if device != "cpu" and where != "nowhere" else []), done
    assert "'" not in script, "it is sent between single quotes"


def test_gpus_are_listed_by_the_worker_on_that_machine(tmp_path):
    """Its driver knows their numbers."""
    text = json.dumps({"devices": [{"device": "cuda:0", "id": "GPU-1", "name": 'A "quoted" \\n name'}], "missing": ""})
    worker = tmp_path / "a folder/bin/torch-remote-worker"
    worker.parent.mkdir(parents=True)
    worker.write_text(f"#!/bin/sh\n[ \"$*\" = --list-devices ] && cat <<'END'\n{text}\nEND\n")
    worker.chmod(0o755)
    script = Path(bundle.__file__).with_name("bootstrap.sh").read_text()
    done = subprocess.run(
        ["sh", "-c", script], input=f"gpus\n{tmp_path}/a folder\n", capture_output=True, text=True, check=False
    )
    answer = done.stdout.splitlines()[1]
    assert answer.startswith("ok ") and gpus.read_list(answer[3:]) == (['A "quoted" \\n name'], ""), done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ssh": "{command} -o IdentityFile=/dev/null"}, "Permission denied.*ssh-copy-id"),
        ({"ssh": "{command} -o UserKnownHostsFile=/dev/null"}, "Host key verification failed.*check the host's key"),
        ({"ssh": "no-such-ssh"}, "cannot run 'no-such-ssh'.*openssh-client"),
        ({"torch_lib": "/nowhere"}, "libtorch_cpu.so"),
        ({"gpu": "H100:2"}, "has no NVIDIA GPU, but the machine needs 2 GPUs of kind H100"),
    ],
)
def test_what_is_wrong_is_said(server, arguments, message):
    arguments = {"torch_lib": str(TORCH_LIB), "ssh": "{command}", **arguments}
    arguments["ssh"] = arguments["ssh"].format(command=server.command)
    if "IdentityFile" in arguments["ssh"]:
        config = Path(server.folder / "config")
        config.write_text(config.read_text().replace(f"  IdentityFile {server.folder}/user_key\n", ""))
    there = RemoteMachine(f"ssh://{server.host}", **arguments)
    with pytest.raises(MachineError, match=f"(?s){message}"):
        there.start()
    assert there.status().state == "stopped"


def test_a_host_that_is_not_there(server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(MachineError, match=r"Connection refused.*does an ssh server run there"):
        RemoteMachine(f"ssh://127.0.0.1:{port}", ssh=server.command).start()


def test_a_shell_that_prints_something_first(server):
    config = server.folder / "sshd_config"
    noise = 'echo Welcome, have a lot of fun; echo and more >&2; eval "$SSH_ORIGINAL_COMMAND"'
    config.write_text(config.read_text() + f"ForceCommand {noise}\n")
    server.process.send_signal(1)  # SIGHUP: reload the configuration
    time.sleep(0.5)
    with machine(server, torch_lib=str(TORCH_LIB)) as there:
        use(there.device())


def test_a_connection_that_breaks_is_a_lost_worker_that_says_why(server):
    with machine(server, torch_lib=str(TORCH_LIB)) as there:
        x = torch.ones(3, device=there.device())
        assert x.sum().item() == 3
        for pid in server.sessions():
            os.kill(pid, 9)
        with pytest.raises(WorkerLost, match=r"ssh to ssh://127\.0\.0\.1:\d+ exited with status 255: .*"):
            (x + 1).cpu()
        deadline = time.monotonic() + 20
        while workers(server):  # the remote side ends, too
            assert time.monotonic() < deadline
            time.sleep(0.02)
        torch.remote.restart(there.device())
        use(there.device())


def test_the_environment_names_it(server, script):
    script(
        """
        import torch, torch_remote
        assert torch.arange(4.0, device="remote").sum().item() == 6
        assert "ssh://127.0.0.1" in torch.remote.get_device_properties().worker
        """,
        TORCH_REMOTE_WORKER=f"ssh://{server.host}?torch_lib={TORCH_LIB}",
        TORCH_REMOTE_SSH=server.command,
    )
    deadline = time.monotonic() + 20
    while workers(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # The same machine twice: two devices, each with its own channel.
    script(
        """
        import torch, torch_remote
        x = torch.arange(4.0, device="remote:0").to("remote:1")
        assert x.sum().item() == 6 and len(torch_remote.machines()) == 2
        """,
        TORCH_REMOTE_WORKER=",".join([f"ssh://{server.host}?torch_lib={TORCH_LIB}"] * 2),
        TORCH_REMOTE_SSH=server.command,
    )


def test_archives_are_named_by_their_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    first = bundle.Archive({"bin/a": tmp_path / "a"})
    assert b"".join(first.packed()) == b"".join(first.packed())
    (tmp_path / "b").write_bytes(b"one")
    assert bundle.Archive({"bin/a": tmp_path / "b"}).digest == first.digest
    assert bundle.Archive({"bin/b": tmp_path / "a"}).digest != first.digest
    (tmp_path / "c").write_bytes(b"two")
    assert bundle.Archive({"bin/a": tmp_path / "c"}).digest != first.digest
    assert bundle.worker().needs_glibc() == (2, 28)


def test_a_connection_that_stands_still_is_said(monkeypatch):
    monkeypatch.setattr(ssh, "_TO_ANSWER", 0.05)
    log = Log()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        talk = ssh._Conversation(SimpleNamespace(socket=ours), log, "ssh://host")
        with pytest.raises(MachineError, match=r"ssh://host takes no data for 0 s: it printed nothing"):
            talk._send(bytes(64 << 20))
    log.close()
