"""`torch-remote run --on ssh://host script.py`: an unchanged script, with its device on another machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from torch_remote_cli import output


def run(
    command: Annotated[list[str], typer.Argument(help="A script and its arguments, or a program (torchrun ...).")],
    on: Annotated[
        str,
        typer.Option(
            help="The machine: ssh://user@host, tcp://host:port, tls://host:port, unix://path, local. Options follow a "
            "question mark: local?threads=1."
        ),
    ] = "local",
    gpu: Annotated[str | None, typer.Option(help="GPU that the machine must have: A100, H100:2, any.")] = None,
    gpu_count: Annotated[int, typer.Option(min=1, max=16, help="Number of devices: remote:0, remote:1, ...")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each worker.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Limit for each worker's tensors: 8G, 500M.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Stop the machine after so many seconds without use.")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="Run a module, like python -m.")] = False,
    log_level: Annotated[str | None, typer.Option(help="Log level of the worker: warn, info, debug, trace.")] = None,
) -> None:
    """Run a script with the device `remote` on a machine."""
    if gpu is not None and ":" in gpu:
        gpu, _, count = gpu.partition(":")
        if not count.isdigit() or gpu_count not in (1, int(count)):
            output.fail(f"--gpu {gpu}:{count}: write --gpu {gpu} --gpu-count 2", 2)
        gpu_count = int(count)
    wanted = {
        "gpu": gpu, "gpu_count": gpu_count if gpu_count > 1 else None, "threads": threads,
        "memory_limit": memory_limit, "idle_timeout": idle_timeout,
    }  # fmt: skip
    options = {key: value for key, value in wanted.items() if value is not None}
    query = urlencode(options)
    if "," in on + query:
        output.fail(f"--on {on}: use --gpu-count for several devices, not commas", 2)
    machine = on
    if query and _takes_options(on, list(options)):
        machine += ("&" if "?" in on else "?") + query
    arguments = _arguments(command, module)
    _check(machine)
    environment = dict(os.environ)
    environment["TORCH_REMOTE_WORKER"] = ",".join([machine] * gpu_count)
    environment.setdefault("TORCH_REMOTE_AUTOLOAD", "1")  # so a script need not import torch_remote
    if log_level is not None:
        environment["TORCH_REMOTE_WORKER_LOG"] = log_level
    sys.stdout.flush()
    try:
        os.execvpe(arguments[0], arguments, environment)
    except OSError as error:
        output.fail(f"cannot run {arguments[0]}: {error.strerror}")


def _takes_options(on: str, names: list[str]) -> bool:
    """Whether `on` is a machine. Others are workers, which only the number of devices applies to."""
    if on != "inproc" and not on.startswith("unix://"):
        return True
    for name in names:
        if name != "gpu_count":
            output.fail(
                f"--on {on}: --{name.replace('_', '-')} is for a machine that is started, such as local or ssh://HOST; "
                "set it where this worker is started",
                2,
            )
    return False


def _check(machine: str) -> None:
    """Ends the command if no machine can be started at that URL: its provider or an option is unknown, or a GPU or a
    size is impossible. Nothing is started. This imports torch, so it is left out for URLs that need no check."""
    if "?" not in machine and machine.partition("://")[0] in ("local", "inproc", "unix", "tcp", "tls"):
        return
    try:
        from torch_remote.providers import MachineError, RemoteMachine
    except ImportError:
        return  # the command may be a Python that has torch
    try:
        RemoteMachine(machine).check()
    except MachineError as error:
        output.fail(str(error), 2)


def _arguments(command: list[str], module: bool) -> list[str]:
    """The command to execute."""
    first = command[0]
    if module:
        return [sys.executable, "-m", *command]
    if Path(first).is_file() and (first.endswith(".py") or not os.access(first, os.X_OK)):
        return [sys.executable, *command]
    if Path(first).is_dir() and (Path(first) / "__main__.py").exists():
        return [sys.executable, *command]
    if shutil.which(first) is None:
        output.fail(f"there is no script and no program {first!r}", 2)
    return command
