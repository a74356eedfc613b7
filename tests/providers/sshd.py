"""A private OpenSSH server for a test: on a free port of 127.0.0.1, with its own host key and authorized key."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _key(file: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return file.with_suffix(".pub").read_text()


class Sshd:
    """`command` is the value of TORCH_REMOTE_SSH; `home` is where the remote side stores the files that it gets."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.port = folder, _free_port()
        self.home = folder / "cache"
        host_key = _key(folder / "host_key")
        (folder / "authorized_keys").write_text(_key(folder / "user_key"))
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        variables = {"XDG_CACHE_HOME": str(self.home), **environment}
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\n"
            f"HostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\n"
            "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nLogLevel VERBOSE\nMaxStartups 100\n"
            "SetEnv " + " ".join(f'{name}="{value}"' for name, value in variables.items()) + "\n"
        )
        (folder / "config").write_text(
            f"Host *\n  User {getpass.getuser()}\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n  BatchMode yes\n"
        )
        self.command = f"ssh -F {folder}/config"
        self.host = f"127.0.0.1:{self.port}"
        if os.getuid() == 0:  # the privilege separation folder of a server run by root
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program is not None, "openssh-server is missing; ./bazelw installs it"
        self.log = (folder / "sshd.log").open("w+")
        self.process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=self.log)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.text()
                time.sleep(0.02)

    def text(self) -> str:
        self.log.flush()
        return (self.folder / "sshd.log").read_text()

    def sessions(self) -> list[int]:
        """Processes that serve connections."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def stop(self) -> None:
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):  # it has already exited
                os.kill(pid, 15)
        self.process.terminate()
        self.process.wait(20)
        self.log.close()
