"""`torch-remote doctor`: checks whether everything is there and works, and says what to do if not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from torch_remote_cli import gpu_report, output, system_checks, worker_checks
from torch_remote_cli.check import Check, failed, note, ok
from torch_remote_cli.exit_status import describe
from torch_remote_cli.service import ServeError, package, version, version_module


def _installation() -> Check:
    try:
        folder = package()
        found = f"torch_remote {version()} in {folder}"
    except (ServeError, importlib.metadata.PackageNotFoundError) as error:
        return failed("installation", str(error), "pip install torch-remote, in this environment")
    for name in ("bin/torch-remote-worker", "lib/libtorch_remote_codegen.so", "torch[0-9]*/libaten_plugin.so"):
        if not any(folder.glob(name)):
            return failed("installation", f"{folder / name} is missing", "pip install --force-reinstall torch-remote")
    binary = folder / "bin/torch-remote-worker"
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20)
    except OSError as error:
        return failed(
            "installation", f"{binary}: {error.strerror}", f"chmod +x {binary}, or install torch_remote again"
        )
    except subprocess.TimeoutExpired as error:
        return failed(
            "installation",
            f"{binary} --version did not end within {error.timeout:g} s",
            f"check that the file system of {binary} answers, or install torch_remote on a local disk",
        )
    if said.returncode != 0:
        missing = re.search(r"(\S+\.so[.\d]*): cannot open", said.stderr)
        fix = f"install the library {missing[1]}" if missing else "pip install --force-reinstall torch-remote"
        return failed("installation", said.stderr.strip() or f"{binary} {describe(said.returncode)}", fix)
    return ok("installation", f"{found}; {said.stdout.strip()}")


def _torch() -> Check:
    try:
        versions = version_module()
        built_for = versions.torch_minors()
    except ServeError:
        built_for = []  # _installation reports it
    fix = f"pip install 'torch=={built_for[-1]}.*'" if built_for else "pip install torch-remote"
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return failed("torch", "torch is not installed here", fix)
    if built_for and versions.torch_minor(found) not in built_for:
        return failed("torch", f"torch {found}; this torch_remote is for torch {' and '.join(built_for)}", fix)
    return ok("torch", f"torch {found}")


def _environment() -> Iterator[Check]:
    ours = sorted(name for name in os.environ if name.startswith("TORCH_REMOTE_"))
    if ours:
        yield note(
            "environment", ", ".join(f"{n}={'...' if n == 'TORCH_REMOTE_TOKEN' else os.environ[n]}" for n in ours)
        )
    file = os.environ.get("TORCH_REMOTE_TOKEN_FILE")
    if file:
        try:
            info = os.stat(file)
        except OSError as error:
            yield failed("token", f"{file}: {error.strerror}", "correct TORCH_REMOTE_TOKEN_FILE")
            return
        if info.st_mode & 0o077:
            yield failed("token", f"other users can read {file}", f"chmod 600 {file}")


def _gpus() -> Iterator[Check]:
    """The GPUs that the worker finds for `--device cuda:0`, if there is a driver."""
    import json

    try:
        binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or package() / "bin/torch-remote-worker"
        said = subprocess.run([binary, "--probe", "--json"], capture_output=True, text=True, timeout=60)
        found = json.loads(said.stdout)
    except (ServeError, OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        # the check of the installation reports why it does not run
        yield note("GPU", "the worker cannot search for GPUs")
        return
    driver = found["parts"][0]
    if driver["missing"] and not Path("/proc/driver/nvidia").is_dir():
        yield note("GPU", "no NVIDIA driver here: workers of this machine compute on the CPU")
        return
    if driver["missing"]:
        yield failed("GPU", driver["missing"], driver["fix"])
        return
    for gpu in found["gpus"]:
        text = f"{gpu['device']} {gpu['name']}, driver {driver['version']}"
        if gpu["missing"]:
            yield note("GPU", f"{text}: {gpu['missing']}")
        else:
            yield ok("GPU", f"{text}, sm_{gpu['sm']}, {gpu['all_memory'] / 2**30:.1f} GiB")
    for part in found["parts"][1:]:
        if part["missing"]:
            yield note(part["name"], f"{part['missing']}; without it {part['without']}", part["fix"])
        else:
            yield ok(part["name"], ", ".join(filter(None, [part["version"], part["path"]])))


def _sandbox() -> Check:
    """Reports what the kernel isolates in sessions of a worker that listens here."""
    import json

    try:
        binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or package() / "bin/torch-remote-worker"
        said = subprocess.run([binary, "--probe-sandbox"], capture_output=True, text=True, timeout=60)
        found = json.loads(said.stdout)
    except (ServeError, OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return note("sandbox", "the worker does not report what confines its sessions")
    active = f"sessions of a worker that listens: {', '.join(found['active'])}"
    if found["missing"]:
        return note(
            "sandbox", f"{active}; not active: {'; '.join(found['missing'])}", "docs/workers.md describes each of these"
        )
    return ok("sandbox", active)


def _tools() -> Iterator[Check]:
    from shutil import which

    if which("ssh") is None:
        yield note("ssh", "ssh is not installed", "install openssh-client for machines of ssh://")
    else:
        yield ok("ssh", str(which("ssh")))


def checks(quick: bool, on: str | None = None) -> Iterator[Check]:
    """Yields all checks, as they are done. With a URL, they are about the worker there, and not about workers here."""
    yield system_checks.system()
    yield from system_checks.memory()
    installed = _installation()
    yield installed
    torch = _torch()
    yield torch
    yield from _environment()
    if on is None:
        yield from _gpus()
        yield _sandbox()
    if on is None or on.startswith("ssh"):
        yield from _tools()
    if not quick and installed["state"] == torch["state"] == "ok":
        urls = on or os.environ.get("TORCH_REMOTE_WORKER") or "local"
        for url in dict.fromkeys(urls.split(",")):
            yield from worker_checks.checks(url)


_MARKS: dict[str, str] = {"ok": "[green]ok[/]    ", "failed": "[red]failed[/]", "note": "[yellow]note[/]  "}


def doctor(
    on: Annotated[
        str | None,
        typer.Option(help="Check the worker or machine at this URL; default: TORCH_REMOTE_WORKER, local."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not use the device.")] = False,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help="Test the first GPU of this machine, and write gpu-report.tar.gz for a report."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this installation and a worker, and print how to fix problems."""
    from rich.markup import escape

    show: Callable[[Check], None] = lambda check: None  # noqa: E731
    if not as_json:

        def show(check: Check) -> None:
            fix = f"\n       -> {escape(check['fix'])}" if check["fix"] else ""
            output.console.print(
                f"{_MARKS[check['state']]} {check['check']}: {escape(check['found'])}{fix}", soft_wrap=True
            )

    if gpu and on is not None:
        raise typer.BadParameter("--gpu tests this machine's GPU; run it on the machine of --on")
    done = []
    for check in gpu_report.checks() if gpu else checks(quick, on):
        show(check)
        done.append(check)
    failed = sum(check["state"] == "failed" for check in done)
    if as_json:
        output.print_json({"checks": done, "failed": failed})
    raise typer.Exit(1 if failed else 0)
