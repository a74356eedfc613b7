"""The environments of the conformance suite: a class for each provider, which creates and breaks machines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import api_server
import fake_modal
import sshd as sshd_module
import torch
from python_processes import Python

from torch_remote import _C, RemoteMachine

PACKAGE = Path(torch.__file__).parent
TOKEN = "7a0ffee57a0ffee57a0ffee57a0ffee5"


def descendants(pid: int) -> list[int]:
    """The child processes of a process, and their children, recursively."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def workers_of(pid: int) -> list[int]:
    """The descendants that are workers or their sessions."""
    return [child for child in descendants(pid) if is_worker(child)]


def is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("torch-remote-w")
    except OSError:
        return False


class ProviderFixture:
    provider = ""
    in_url = ""  # the option that the URL has after ://
    can_pause = False
    chooses = True  # supports a choice of threads and memory

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def machine(self, **arguments: object) -> RemoteMachine:
        return RemoteMachine(self.provider, **self.options(), **arguments)

    def options(self) -> dict[str, object]:
        return {}

    def sessions(self) -> list[int]:
        """Pids of the workers that serve a session."""
        raise NotImplementedError

    def lose(self) -> None:
        """Kills these workers."""
        for pid in self.sessions():
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        pass


class Local(ProviderFixture):
    provider = "local"
    can_pause = True

    def sessions(self) -> list[int]:
        return workers_of(os.getpid())


class Ssh(ProviderFixture):
    provider = "ssh"
    in_url = "host"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = sshd_module.Sshd(folder)

    def options(self) -> dict[str, object]:
        return {"host": self.server.host, "ssh": self.server.command, "torch_lib": str(PACKAGE / "lib")}

    def sessions(self) -> list[int]:
        return workers_of(self.server.process.pid)

    def close(self) -> None:
        self.server.stop()


class Tcp(ProviderFixture):
    provider = "tcp"
    in_url = "address"
    chooses = False
    listens = "tcp://127.0.0.1:0"
    arguments: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self.token.chmod(0o600)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
        self.process = Python(
            [sys.executable, "-m", "torch_remote.worker", "--listen", self.listens, "--token-file", self.token,
             "--lease", "1", *(argument.format(folder=folder) for argument in self.arguments)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().partition("://")[2]
        assert self.address

    def options(self) -> dict[str, object]:
        return {"address": self.address, "token_file": str(self.token)}

    def sessions(self) -> list[int]:
        return workers_of(self.process.pid)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Tls(Tcp):
    provider = "tls"
    listens = "tls://127.0.0.1:0"
    arguments = ("--tls-cert", "{folder}/worker.pem", "--tls-key", "{folder}/worker.key")

    def __init__(self, folder: Path) -> None:
        certificates(folder)
        super().__init__(folder)

    def options(self) -> dict[str, object]:
        return {**super().options(), "authorities": str(self.folder / "ca.pem")}


def certificates(folder: Path) -> None:
    subprocess.run(["remote/net/testing/make_certificates", str(folder)], check=True)


class Kubernetes(ProviderFixture):
    provider = "kubernetes"
    in_url = "context"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        certificates(folder)
        self.cluster = api_server.Cluster(folder, folder, descendants)

    def options(self) -> dict[str, object]:
        return {"context": "tests", "kubeconfig": str(self.cluster.kubeconfig), "image": "lab/torch-remote:1"}

    def sessions(self) -> list[int]:
        # The tree of a pod: the service, the listener, its sessions.
        listeners = [child for pid in self.cluster.processes() for child in workers_of(pid)]
        return [child for listener in listeners for child in workers_of(listener)]

    def close(self) -> None:
        self.cluster.close()
        left = (self.cluster.wrong, self.cluster.secrets, self.cluster.jobs)
        assert left == ([], {}, {}), left


class Modal(ProviderFixture):
    provider = "modal"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        certificates(folder)
        self.cloud = fake_modal.Cloud(folder)
        self.cloud.install()

    def sessions(self) -> list[int]:
        return [child for listener in self.cloud.processes() for child in workers_of(listener)]

    def close(self) -> None:
        self.cloud.close()


FIXTURES = {place.provider: place for place in (Local, Tcp, Tls, Ssh, Kubernetes, Modal)}
assert _C.device_count() >= 1
