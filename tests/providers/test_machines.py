"""GPU names, third-party providers, and machines that TORCH_REMOTE_WORKER names."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from torch_remote import _C, MachineError, RemoteMachine
from torch_remote.providers import forward, gpus, local
from torch_remote.providers.machine import bytes_of
from torch_remote.providers.url import is_url, provider_of, read_url
from torch_remote_cli.state import process_began


@pytest.mark.parametrize(
    ("given", "count", "canonical"),
    [
        ("A100", 1, ("A100", 1)),
        ("a100", 2, ("A100", 2)),
        ("NVIDIA A100", 1, ("A100", 1)),
        ("A100:4", 1, ("A100", 4)),
        ("h100:2", 2, ("H100", 2)),
        ("A100-80gb", 1, ("A100-80GB", 1)),
        ("rtx 4090", 1, ("RTX-4090", 1)),
        ("any:3", 1, ("any", 3)),
    ],
)
def test_names_of_gpus(given, count, canonical):
    assert gpus.canonical(given, count) == canonical


@pytest.mark.parametrize(
    ("given", "count", "message"),
    [
        ("A1000", 1, r"no GPU called 'A1000'; did you mean 'A100'\? Known are any, T4, "),
        ("abacus", 1, "no GPU called 'abacus'; .*Known are"),
        ("A100:two", 1, "has no count after the colon; write 'A100:2', or gpu_count=2"),
        ("A100:0", 1, "has no count"),
        ("A100:2", 3, "gpu='A100:2' and gpu_count=3 differ"),
    ],
)
def test_names_of_gpus_that_are_none(given, count, message):
    with pytest.raises(MachineError, match=message):
        gpus.canonical(given, count)


@pytest.mark.parametrize(
    ("gpu", "driver", "fits"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("A10", "NVIDIA A10", True),
        ("A10", "NVIDIA A100-PCIE-40GB", False),
        ("A100", "NVIDIA A10", False),
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("L4", "NVIDIA L40S", False),
        ("T4", "Tesla T4", True),
        ("RTX-4090", "NVIDIA GeForce RTX 4090", True),
        ("any", "NVIDIA Something New", True),
    ],
)
def test_what_drivers_call_gpus(gpu, driver, fits):
    assert gpus.matches(gpu, driver) is fits


def test_every_name_is_canonical_and_a_pattern():
    for name in gpus.names():
        assert gpus.canonical(name, 1) == (name, 1)
        assert not gpus.matches(name, "Voodoo 2") or name == gpus.ANY


def test_gpus_of_a_machine_are_chosen_by_the_drivers_numbers(tmp_path, monkeypatch):
    """The driver's order is not that of the buses, so nothing but the worker's list counts."""
    worker = tmp_path / "worker"
    monkeypatch.setenv("TORCH_REMOTE_WORKER_BINARY", str(worker))

    def list_gpus(*names, missing=""):
        devices = [{"device": f"cuda:{i}", "id": f"GPU-{i}", "name": name} for i, name in enumerate(names)]
        text = json.dumps({"devices": devices[::-1], "missing": missing})
        worker.write_text(f"#!/bin/sh\n[ \"$1\" = --list-devices ] && cat <<'END'\n{text}\nEND\n")
        worker.chmod(0o755)

    list_gpus("NVIDIA A10", "NVIDIA A100-SXM4-40GB", "NVIDIA A10")
    assert local.choose_gpus("A10", 2) == [0, 2]
    assert local.choose_gpus("A100", 1) == [1]
    with pytest.raises(MachineError, match=r"machine has NVIDIA A10, .*, but the machine needs 2 GPUs of kind A100"):
        local.choose_gpus("A100", 2)
    list_gpus(missing="cuda: there is no driver")
    with pytest.raises(MachineError, match=r"this machine has no NVIDIA GPU, but the machine needs 1 GPU.*no driver"):
        RemoteMachine(gpu="any").start()
    worker.write_text("#!/bin/sh\necho unknown option\n")
    with pytest.raises(MachineError, match="--list-devices printed 'unknown option"):
        local.choose_gpus("any", 1)


@pytest.mark.parametrize(
    ("text", "count"), [("8G", 8 << 30), ("500M", 500 << 20), ("1GiB", 1 << 30), (77, 77), ("12", 12)]
)
def test_numbers_of_bytes(text, count):
    assert bytes_of(text) == count


@pytest.mark.parametrize("size", ["much", 1e9, 0, "0G"])
def test_sizes_that_are_no_numbers_of_bytes(size):
    with pytest.raises(MachineError, match="write 8G, 500M or 1000000"):
        bytes_of(size)


def test_providers_that_there_are_not(remote):
    with pytest.raises(MachineError, match=r"no provider 'shh'; did you mean 'ssh'.*Known are.*local"):
        RemoteMachine("shh")
    with pytest.raises(MachineError, match="no provider 'gopher'"):
        torch.remote.add_machine("gopher://there")
    with pytest.raises(MachineError, match="'local' has no address; write 'local://'"):
        RemoteMachine("local://there")
    with pytest.raises(MachineError, match="gpu is given twice"):
        RemoteMachine("ssh://host?gpu=A100", gpu="H100")
    with pytest.raises(MachineError, match=r"needs the (host|worker's address)"):
        RemoteMachine("ssh").start()
    with pytest.raises(MachineError, match=r"needs the (host|worker's address)"):
        RemoteMachine("tcp").start()
    with pytest.raises(MachineError, match="not a host for ssh"):
        RemoteMachine("ssh", host="-oProxyCommand=touch/tmp/x").start()


@pytest.mark.parametrize(
    ("url", "provider", "arguments"),
    [
        ("local", "local", {}),
        ("local://", "local", {}),
        ("local?threads=1", "local", {"threads": "1"}),
        ("local://?threads=1&gpu_count=2", "local", {"threads": "1", "gpu_count": "2"}),
        ("ssh://user@host:22?gpu=A100", "ssh", {"host": "user@host:22", "gpu": "A100"}),
        ("ssh?host=user@host", "ssh", {"host": "user@host"}),
        ("ssh://host?ssh=ssh+-i+a%3A%2F%2Fb", "ssh", {"host": "host", "ssh": "ssh -i a://b"}),
        ("tls://[::1]:4500?token_file=/t", "tls", {"address": "[::1]:4500", "token_file": "/t"}),
        ("kubernetes://a/b", "kubernetes", {"context": "a/b"}),
    ],
)
def test_urls_of_machines(url, provider, arguments):
    assert read_url(url, {}) == (provider, arguments) and provider_of(url) == provider
    assert is_url(url) == (url != "local")


def test_a_machine_is_checked_without_being_started(tmp_path):
    RemoteMachine("local?threads=1").check()
    RemoteMachine("ssh://user@host").check()
    RemoteMachine("tcp://127.0.0.1:1").check()
    for url, message in (
        ("ssh://-oProxyCommand=x", "not a host for ssh"),
        ("ssh://host?allow_files=a b", "is not a folder"),
        ("tcp://127.0.0.1:1?memory_limit=1G", "runs already, so memory_limit="),
        (f"tls://host:1?token_file={tmp_path}/none", "cannot read the token file"),
        ("modal://?gpu=T4&lifetime=0", "is not a number of seconds"),
        ("modal://?cpu=two", "cpu='two' is not a number above 0"),
        ("modal://?memory=4Gi", "memory='4Gi' is not an integer above 0"),
    ):
        with pytest.raises(MachineError, match=message):
            RemoteMachine(url).check()


THEIRS = """
from torch_remote.providers.local import Local

class Cupboard(Local):
    options = {"shelf": "which one"}
    started = []

    def start(self, spec):
        self.started.append(spec.options["shelf"])
        return super().start(spec)

    def price(self):
        return 0.25
"""


def install(folder, name, source, entries):
    """Creates a package with one module, whose entry points are providers."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch_remote.providers]\n{entries}")


def test_a_status_while_another_device_connects():
    provider = local.Local()

    class Worker:
        pid = 7

        def end(self):
            provider._workers[1] = self  # what another thread does meanwhile
            return None

    provider._workers[0] = Worker()
    assert provider.status().state == "running"
    provider._workers.clear()
    provider.stop()


def test_a_device_by_what_it_computes_on(remote):
    """Users of libraries with "cuda" and "cpu" devices of one machine write it this way."""
    with RemoteMachine() as machine:
        first = machine.device()
        assert machine.device("cpu") == machine.device("cpu:0") == machine.device("cpu", 0) == first
        assert torch.ones(2, device=machine.device("cpu")).sum().item() == 2
        for wrong, error, message in (
            (("cuda",), MachineError, r"computes on 'cpu', not on 'cuda'; write device\(0\); a machine with a GPU"),
            (("cpu", 1), MachineError, r"has 1 device, and no device\(1\); request more with gpu_count="),
            (("cpu:1",), MachineError, r"has 1 device, and no device\(1\)"),
            (("remote:0",), MachineError, r"computes on 'cpu' or 'cuda'; write device\(\), device\(1\)"),
            (("gpu",), MachineError, "computes on 'cpu' or 'cuda'"),
            (("cpu:0", 0), TypeError, "has two indices"),
            ((0, 0), TypeError, "has two indices"),
            (("cpu", "0"), TypeError, "'0' is not an index; write device"),
            ((1.0,), TypeError, r"1\.0 is not an index"),
            ((True,), TypeError, "True is not an index"),
        ):
            with pytest.raises(error, match=message):
                machine.device(*wrong)


def test_a_provider_of_another_package(script, remote, tmp_path):
    install(tmp_path, "cupboard", THEIRS, "cupboard = cupboard:Cupboard\nlocal = x:y\n")
    script(
        """
        import torch, torch_remote, cupboard
        with torch_remote.RemoteMachine("cupboard", shelf="top", gpu_count=2) as machine:
            assert torch.ones(2, device=machine.device(1)).sum().item() == 2
            assert machine.status().price == 0.25 and cupboard.Cupboard.started == ["top"]
        with torch_remote.RemoteMachine() as machine:  # nobody replaces the package's own
            assert type(machine._provider).__module__ == "torch_remote.providers.local"
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )


BROKEN = """
from torch_remote.providers.provider import Endpoint, MachineError, Provider, ProviderStatus

class Broken(Provider):
    options = {"how": ""}
    stopped = 0

    def start(self, spec):
        how = spec.options["how"]
        if how == "raises":
            raise ValueError("out of order")
        return Endpoint("pigeon://there" if how == "scheme" else "tcp://127.0.0.1:1")

    def stop(self):
        Broken.stopped += 1

    def status(self):
        return ProviderStatus("running")

    def logs(self):
        return "coo"
"""


def test_a_provider_that_fails_is_stopped(script, remote, tmp_path):
    install(tmp_path, "broken", BROKEN, "broken = broken:Broken\nmissing = nowhere:No\n")
    script(
        """
        import pytest, torch, torch_remote, broken
        from torch_remote import MachineError, RemoteMachine, machines
        for count, (how, kind, message) in enumerate([
            ("raises", ValueError, "out of order"),
            ("scheme", MachineError, "'pigeon://there', which is not an address"),
            ("port", MachineError, "127.0.0.1:1"),
        ], 1):
            machine = RemoteMachine("broken", how=how)
            with pytest.raises(kind, match=message):
                machine.start()
            assert broken.Broken.stopped == count and machine.status().state == "stopped" and machines() == []
            assert machine.logs() == "coo"
        with pytest.raises(MachineError, match="provider 'missing' cannot be loaded"):
            RemoteMachine("missing")
        assert torch.ones(1, device="remote").item() == 1
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )


NAMED = """
import os, signal, torch, torch_remote
from torch_remote import machines
assert torch.remote.device_count() == 3 and machines() == []
a, b = (torch.full((2,), float(i), device=f"remote:{i}") for i in (1, 2))
assert (a.sum().item(), b.sum().item()) == (2, 4)
(machine,) = machines()
assert [str(device) for device in machine.devices()] == ["remote:1", "remote:2"]
assert machine.spec.threads == 1 and machine.spec.gpu_count == 2
with torch_remote.RemoteMachine() as other:
    assert str(other.device()) == "remote:3" and torch.remote.device_count() == 4
    assert torch.ones(1, device=other.device()).item() == 1
pids = machine.status().detail.removeprefix("pid ").split(", ")
os.kill(int(pids[0]), signal.SIGKILL)
try:
    (a + 1).cpu()
except torch.remote.WorkerLost as error:
    assert f"the worker (pid {pids[0]}) was killed by signal 9" in str(error), error
else:
    raise AssertionError
torch.remote.restart(1)
assert torch.ones(2, device="remote:1").sum().item() == 2
machine.stop()
assert torch.ones(3, device="remote:2").sum().item() == 3  # started anew: it is named
assert len(machines()) == 1 and machines()[0] is not machine
print(os.getpid())
"""


def test_the_environment_names_machines(script, remote):
    for name in ("local://?threads=1&gpu_count=2", "local?threads=1&gpu_count=2"):
        script(NAMED, TORCH_REMOTE_WORKER=f"local,{name},{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("somewhere", "'somewhere' is not a worker .*'ssh://user@host'"),
        ("gopher://x", "no provider 'gopher'"),
        ("local://?colour=red", "has no option 'colour'"),
        ("tcp://127.0.0.1:1?threads=2", "runs already, so threads=2"),
    ],
)
def test_names_that_are_wrong(script, remote, name, message):
    script(
        f"""
        import pytest, torch, torch_remote
        x = torch.ones(2, device="remote")
        with pytest.raises(RuntimeError, match={message!r}):
            x.cpu()
        """,
        TORCH_REMOTE_WORKER=name,
    )


def test_machines_end_with_the_process(script, remote, tmp_path):
    output = script(
        """
        import torch, torch_remote
        machine = torch_remote.RemoteMachine(gpu_count=2).start()
        machine.pause()
        print(machine.status().detail.removeprefix("pid "))
        torch_remote.RemoteMachine(idle_timeout=1000).start()
        """,
        XDG_RUNTIME_DIR=str(tmp_path),
    ).stdout
    for pid in output.strip().split(", "):
        assert not Path(f"/proc/{pid}").exists()
    assert not list((tmp_path / "torch-remote/machines").iterdir())


def test_paused_machines_end_with_a_killed_process(script, remote, tmp_path):
    output = script(
        """
        import os, signal, sys, torch, torch_remote
        machine = torch_remote.RemoteMachine().start()
        machine.pause()
        print(machine.status().detail.removeprefix("pid "), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        status=-9,
    ).stdout
    deadline = time.monotonic() + 20
    while process_began(int(output)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_machine_that_computes_is_not_idle(remote):
    with RemoteMachine() as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        worker = int(machine.status().detail.removeprefix("pid "))
        os.kill(worker, signal.SIGSTOP)  # stands for an op that takes long
        try:
            y = x + 1
            _C.flush(machine.device().index)
            machine.status()  # notices the message
            time.sleep(0.05)
            assert machine.status().idle_seconds == 0
        finally:
            os.kill(worker, signal.SIGCONT)
        assert y.tolist() == [2, 2, 2]
        deadline = time.monotonic() + 20
        while machine.status().idle_seconds == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_machine_that_was_used_again_is_not_stopped_as_idle(remote):
    """The watch decides first and then waits for the lock; the machine may be used in between."""
    with RemoteMachine(idle_timeout=1000) as machine:
        machine.idle_for_too_long()
        assert machine.status().state == "running"
        assert torch.ones(2, device=machine.device()).sum().item() == 2


RENTED = """
import os
from torch_remote.providers.local import Local

class Rented(Local):
    def stop(self):
        with open(os.environ["STOPPED"], "a") as file:
            file.write(f"{os.getpid()} ")
        super().stop()
        if self._spec.threads == 1:
            raise OSError("the cloud is away")
"""


def test_a_forked_child_ends_no_machines_of_its_parent(script, remote, tmp_path):
    install(tmp_path, "rented", RENTED, "rented = rented:Rented\n")
    stopped = tmp_path / "stopped"
    script(
        """
        import os, sys, torch, torch_remote
        with torch_remote.RemoteMachine("rented") as machine:
            x = torch.ones(2, device=machine.device())
            assert x.sum().item() == 2
            child = os.fork()
            if child == 0:
                sys.exit()  # leaves the block, and runs what is registered with atexit
            assert os.waitpid(child, 0)[1] == 0
            assert not os.path.exists(os.environ["STOPPED"])
            assert machine.status().state == "running" and x.tolist() == [1, 1]
        assert open(os.environ["STOPPED"]).read() == f"{os.getpid()} "
        """,
        fresh=True,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        STOPPED=str(stopped),
    )


SLOW = """
from torch_remote.providers.local import Local
from torch_remote_cli import state

class Slow(Local):
    seen = []

    def start(self, spec):
        self.seen += [entry["id"] for entry in state.entries("machines")]
        raise RuntimeError("too slow")
"""


def test_a_machine_is_listed_while_it_starts(script, remote, tmp_path):
    """So `torch-remote machines --left-over` does not remove it."""
    install(tmp_path, "slow", SLOW, "slow = slow:Slow\n")
    script(
        """
        import slow, torch_remote
        from torch_remote_cli import state
        machine = torch_remote.RemoteMachine("slow")
        try:
            machine.start()
        except torch_remote.MachineError:
            assert slow.Slow.seen == [machine.id] and state.entries("machines") == []
        else:
            raise AssertionError
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        XDG_RUNTIME_DIR=str(tmp_path),
    )


class BusyListener(socket.socket):
    """Has too many open files for its first connection."""

    failures = 1

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return super().accept()


def test_a_forwarder_accepts_again_after_an_error(monkeypatch):
    def listen(address):
        made = BusyListener()
        made.bind(address)
        made.listen()
        return made

    monkeypatch.setattr(forward.socket, "create_server", listen)
    ours, theirs = socket.socketpair()
    forwarder = forward.Forwarder(lambda: forward.RemoteSocket(theirs), "there")
    try:
        host, port = forwarder.address.split(":")
        with socket.create_connection((host, int(port)), 20) as near, ours:
            ours.settimeout(20)
            near.sendall(b"x")
            assert ours.recv(1) == b"x"
    finally:
        forwarder.close()


def test_at_exit_a_machine_that_cannot_be_stopped_does_not_keep_the_others(script, remote, tmp_path):
    install(tmp_path, "rented", RENTED, "rented = rented:Rented\n")
    stopped = tmp_path / "stopped"
    result = script(
        """
        import torch_remote
        torch_remote.RemoteMachine("rented", threads=1, name="first").start()
        torch_remote.RemoteMachine("rented", threads=2, name="second").start()
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        STOPPED=str(stopped),
    )
    assert len(stopped.read_text().split()) == 2
    assert "first" in result.stderr and "could not be stopped: the cloud is away" in result.stderr


UNSTEADY = """
from torch_remote.providers.local import Local

class Unsteady(Local):
    failures = 0

    def stop(self):
        if Unsteady.failures:
            Unsteady.failures -= 1
            raise OSError("the cloud is away")
        super().stop()
"""


def test_a_stop_that_failed_is_tried_again(script, remote, tmp_path):
    install(tmp_path, "unsteady", UNSTEADY, "unsteady = unsteady:Unsteady\n")
    script(
        """
        import pytest, torch, unsteady
        from torch_remote import RemoteMachine, machines
        from torch_remote_cli import state
        machine = RemoteMachine("unsteady")
        for again in (machine.stop, lambda: machine.start().stop()):
            machine.start()
            assert torch.ones(2, device=machine.device()).sum().item() == 2
            unsteady.Unsteady.failures = 1
            with pytest.raises(OSError, match="the cloud is away"):
                machine.stop()
            status = machine.status()
            assert status.state == "running" and status.devices == ()
            assert "could not stop it; stop() it again" in status.detail
            assert machines() == [machine]
            assert [entry["id"] for entry in state.entries("machines")] == [machine.id]
            again()
            assert machine.status().state == "stopped" and machines() == [] and state.entries("machines") == []
        machine.start()
        unsteady.Unsteady.failures = 1
        with pytest.raises(OSError, match="the cloud is away"):
            machine.stop()
        print(machine.id)  # the end of the script stops it
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    assert not list((tmp_path / "torch-remote/machines").iterdir())


def test_an_idle_machine_that_could_not_be_stopped_is_stopped_later(script, remote, tmp_path):
    install(tmp_path, "unsteady", UNSTEADY, "unsteady = unsteady:Unsteady\n")
    result = script(
        """
        import time, unsteady
        from torch_remote import RemoteMachine, machines
        from torch_remote.providers import machine as module
        module._TO_RETRY = 0.05
        unsteady.Unsteady.failures = 2
        machine = RemoteMachine("unsteady", idle_timeout=0.2).start()
        deadline = time.monotonic() + 20
        while machine.status().state != "stopped":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert unsteady.Unsteady.failures == 0 and machines() == []
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )
    assert "was idle but could not be stopped: the cloud is away" in result.stderr


def test_a_forked_child_may_not_start_machines(script, remote):
    script(
        """
        import os, torch, torch_remote
        torch.ones(1, device="remote").item()
        pid = os.fork()
        if pid == 0:
            try:
                torch_remote.RemoteMachine().start()
            except RuntimeError as error:
                os._exit(0 if "use the 'spawn' start method" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert torch.ones(1, device="remote").item() == 1
        """
    )


def test_sixteen_devices_are_the_most(script, remote):
    script(
        """
        import pytest, torch, torch_remote
        from torch_remote import MachineError, RemoteMachine, machines
        first = RemoteMachine(gpu_count=14, threads=1).start()
        assert torch.remote.device_count() == 15
        with pytest.raises(RuntimeError, match="all 16 devices are in use; stop a machine"):
            RemoteMachine(gpu_count=2, threads=1).start()
        assert machines() == [first]
        with RemoteMachine(threads=1) as last:
            assert torch.ones(1, device=last.device()).item() == 1
            with pytest.raises(RuntimeError, match="all 16 devices are in use"):
                RemoteMachine().start()
        first.stop()
        with RemoteMachine(gpu_count=15, threads=1) as again:
            assert torch.ones(1, device=again.device(14)).item() == 1
        """
    )
