"""Providers `tcp` and `tls`: workers that already run and listen."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from torch_remote.providers.provider import Endpoint, MachineError, MachineSpec, Provider, ProviderStatus

_TOKEN = {"token_file": "file with the worker's token; default: TORCH_REMOTE_TOKEN_FILE, TORCH_REMOTE_TOKEN"}


class Tcp(Provider):
    """Each device is a session at one worker. The listener is not ours, so stopping only ends the sessions."""

    scheme: ClassVar[str] = "tcp"
    address = "address"
    options = {"address": "HOST:PORT of the worker", **_TOKEN}

    def __init__(self) -> None:
        self._url = ""
        self._running = False

    @classmethod
    def check(cls, spec: MachineSpec) -> None:
        address = spec.options.get("address")
        if not address:
            raise MachineError(
                f"remote: provider {cls.scheme!r} needs the worker's address: RemoteMachine({cls.scheme!r}, "
                "address='HOST:PORT')"
            )
        for name, value in (("gpu", spec.gpu), ("threads", spec.threads), ("memory_limit", spec.memory_limit)):
            if value is not None:
                flag = {"gpu": "device"}.get(name, name.replace("_", "-"))
                raise MachineError(
                    f"remote: the worker at {cls.scheme}://{address} runs already, so {name}={value!r} cannot be "
                    f"chosen here; it is started with --{flag}"
                )
        _token(spec.options.get("token_file"))

    def start(self, spec: MachineSpec) -> Endpoint:
        self.check(spec)
        self._url = f"{self.scheme}://{spec.options['address']}"
        endpoint = Endpoint(
            self._url,
            token=_token(spec.options.get("token_file")),
            certificate=spec.options.get("certificate"),
            key=spec.options.get("key"),
            authorities=spec.options.get("authorities"),
        )
        self._running = True
        return endpoint

    def stop(self) -> None:
        self._running = False

    def status(self) -> ProviderStatus:
        return ProviderStatus("running" if self._running else "stopped", self._url)

    def logs(self) -> str:
        return f"the log of the worker at {self._url} is on its machine (torch-remote worker logs)\n"


class Tls(Tcp):
    """Like Tcp, with a worker that presents a certificate."""

    scheme = "tls"
    options = {
        **Tcp.options,
        "authorities": "PEM file with the authority of the worker's certificate; default: TORCH_REMOTE_TLS_CA",
        "certificate": "PEM file with this client's certificate; default: TORCH_REMOTE_TLS_CERT",
        "key": "PEM file with its key; default: TORCH_REMOTE_TLS_KEY",
    }


def _token(file: str | None) -> str | None:
    """The first line of a file, as `--token-file` reads it."""
    if file is None:
        return None
    try:
        lines = Path(file).read_text().splitlines()
    except OSError as error:
        raise MachineError(f"remote: cannot read the token file {file}: {error.strerror}") from error
    token = lines[0].strip() if lines else ""
    if len(token) < 16:
        raise MachineError(
            f"remote: {file} has no token: its first line must have 16 bytes or more (openssl rand -hex 32)"
        )
    return token
