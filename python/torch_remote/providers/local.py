"""Provider `local`: workers that are child processes of this one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torch_remote.providers import gpus
from torch_remote.providers.processes import ChildProcess, Log
from torch_remote.providers.provider import Endpoint, MachineError, MachineSpec, Provider, ProviderStatus
from torch_remote.version import plugin

_package = Path(__file__).parent.parent
_LIST_LIMIT = 60.0  # seconds; a driver that no process uses may take several seconds to start
# These options state what clients of a worker may do in addition to ops. Providers whose worker is elsewhere have them.
ALLOWANCES = {
    "allow_files": "a folder there whose files torch.remote.load_file may have read; True: all files",
    "allow_python": "True, or an interpreter there that has torch: torch_remote.function may call functions there",
}


def _allowed(name: str, value: Any) -> str | None:
    """The value of an allowance's flag; None: the flag is not given."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, str):
        value = words.get(value.lower(), value)
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or value is False:
        return None
    if value is True:
        return ""
    # no character that is special in a shell
    if not isinstance(value, str) or not re.fullmatch(r"[\w/.~+@%:][\w/.~+@%:=-]*", value):
        what = "a folder" if name == "allow_files" else "an interpreter"
        raise MachineError(f"remote: {name}={value!r} is not {what}; give True, or a name without spaces")
    return value


def allowances(options: Mapping[str, Any], python: str = "python3") -> list[str]:
    """Arguments of torch-remote-worker for `ALLOWANCES`. python: the default interpreter."""
    arguments = []
    if (folder := _allowed("allow_files", options.get("allow_files"))) is not None:
        arguments.append(f"--allow-files={folder or '/'}")
    if (named := _allowed("allow_python", options.get("allow_python"))) is not None:
        arguments.append(f"--allow-python={named or python}")
    return arguments


def worker_arguments(spec: MachineSpec, gpu: int | None) -> list[str]:
    """Arguments of torch-remote-worker."""
    arguments = []
    if spec.threads is not None:
        arguments += ["--threads", str(spec.threads)]
    if spec.memory_limit is not None:
        arguments += ["--memory-limit", str(spec.memory_limit)]
    if gpu is not None:
        arguments += ["--device", f"cuda:{gpu}"]
    return arguments + allowances(spec.options)


def worker_binary() -> str:
    """The path of the worker's program."""
    binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or str(_package / "bin/torch-remote-worker")
    if not os.access(binary, os.X_OK):
        raise MachineError(
            f"remote: the worker's program {binary} is missing or not executable; install torch_remote again"
        )
    return binary


def choose_gpus(gpu: str, count: int) -> list[int]:
    """The numbers of `count` GPUs of this machine, as in `--device cuda:0`.

    We ask the worker, because only the driver knows them: it numbers GPUs by speed or by bus (CUDA_DEVICE_ORDER), and
    CUDA_VISIBLE_DEVICES hides some. /proc and nvidia-smi have other numbers.
    """
    command = [worker_binary(), "--list-devices"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"remote: the driver does not list its GPUs within {_LIST_LIMIT:.0f} s") from error
    there, why = gpus.read_list(said.stdout)
    return gpus.choose(gpu, count, there, "this machine", why)


class Local(Provider):
    """A child process per device, which shares memory with this process."""

    can_pause = True

    def __init__(self) -> None:
        self._workers: dict[int, ChildProcess] = {}
        self._log = Log()
        self._paused = False

    @classmethod
    def check(cls, spec: MachineSpec) -> None:
        worker_arguments(spec, None)
        if spec.gpu:
            choose_gpus(spec.gpu, spec.gpu_count)

    def start(self, spec: MachineSpec) -> Endpoint:
        self._spec = spec
        self._binary = worker_binary()
        self._gpus = choose_gpus(spec.gpu, spec.gpu_count) if spec.gpu else None
        return self.connect(0)

    def connect(self, index: int) -> Endpoint:
        if index in self._workers:
            self._workers.pop(index).stop()
        arguments = [
            self._binary,
            "--socket-fd",
            "{socket}",
            "--allow-files=/",
            *([f"--allow-python={sys.executable}"] if sys.executable else []),
            "--plugin",
            str(plugin(torch.__version__)),
        ]
        environment = dict(os.environ)
        environment.setdefault("TORCH_REMOTE_TORCH_LIB", str(Path(torch.__file__).parent / "lib"))
        worker = ChildProcess(
            [*arguments, *worker_arguments(self._spec, self._gpus[index] if self._gpus else None)],
            self._log,
            environment=environment,
            stdio=False,
            what="the worker",
        )
        worker.what = f"the worker (pid {worker.pid})"
        self._workers[index] = worker
        return Endpoint("socket:", socket=worker.take_socket())

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()
        self._log.close()

    def status(self) -> ProviderStatus:
        workers = list(self._workers.values())  # another thread may connect a device
        ends = [end for worker in workers if (end := worker.end())]
        if ends:
            return ProviderStatus("lost", "; ".join(ends))
        pids = ", ".join(str(worker.pid) for worker in workers)
        if not workers:
            return ProviderStatus("stopped")
        return ProviderStatus("paused" if self._paused else "running", f"pid {pids}")

    def logs(self) -> str:
        return self._log.text()

    def pause(self) -> None:
        self._paused = True
        for worker in self._workers.values():
            worker.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._paused = False
        for worker in self._workers.values():
            worker.signal(signal.SIGCONT)
