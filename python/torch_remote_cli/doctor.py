"""`torch-remote doctor`: checks whether everything is there and works, and says what to do if not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from torch_remote_cli import output
from torch_remote_cli.service import ServeError, package, version

Check = dict[str, Any]

_TRY = """
import json, time
import torch
began = time.perf_counter()
import torch_remote
imported = time.perf_counter() - began
began = time.perf_counter()
x = torch.arange(6.0, device="remote").view(2, 3)
right = (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
connected = time.perf_counter() - began
times = []
for _ in range(50):
    began = time.perf_counter()
    (x + 1).sum().item()
    times.append(time.perf_counter() - began)
print(json.dumps({
    "torch": torch.__version__, "import": imported, "connect": connected, "right": right,
    "round_trip": sorted(times)[25], "worker": torch.remote.get_device_properties().worker,
    "cores": torch.remote.get_device_properties().multi_processor_count,
    "memory": torch.remote.get_device_properties().total_memory, "devices": torch.remote.device_count(),
}))
"""


def _ok(name: str, found: str) -> Check:
    return {"check": name, "state": "ok", "found": found, "fix": ""}


def _bad(name: str, found: str, fix: str) -> Check:
    return {"check": name, "state": "failed", "found": found, "fix": fix}


def _note(name: str, found: str, fix: str = "") -> Check:
    return {"check": name, "state": "note", "found": found, "fix": fix}


def _system() -> Check:
    libc, glibc = platform.libc_ver()
    found = f"{platform.system()} on {platform.machine()}, {libc} {glibc}, Python {platform.python_version()}"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or libc != "glibc":
        return _bad("system", found, "torch_remote runs on Linux on x86-64 with glibc")
    return _ok("system", found)


def _installation() -> Check:
    try:
        folder = package()
        found = f"torch_remote {version()} in {folder}"
    except (ServeError, importlib.metadata.PackageNotFoundError) as error:
        return _bad("installation", str(error), "pip install torch_remote, in this environment")
    for name in ("bin/torch-remote-worker", "lib/libtorch_remote_codegen.so", "torch2*/libaten_plugin.so"):
        if not any(folder.glob(name)):
            return _bad("installation", f"{folder / name} is missing", "pip install --force-reinstall torch_remote")
    binary = folder / "bin/torch-remote-worker"
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20)
    except OSError as error:
        return _bad("installation", f"{binary}: {error.strerror}", f"chmod +x {binary}, or install torch_remote again")
    if said.returncode != 0:
        missing = re.search(r"(\S+\.so[.\d]*): cannot open", said.stderr)
        fix = f"install the library {missing[1]}" if missing else "pip install --force-reinstall torch_remote"
        return _bad("installation", said.stderr.strip(), fix)
    return _ok("installation", f"{found}; {said.stdout.strip()}")


def _torch() -> Check:
    try:
        built_for = sorted(
            file.parent.name.removeprefix("torch") for file in package().glob("torch2*/libaten_plugin.so")
        )
    except ServeError:
        built_for = []  # _installation reports it
    fix = f"pip install 'torch=={built_for[-1]}.*'" if built_for else "pip install torch_remote"
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return _bad("torch", "torch is not installed here", fix)
    if built_for and ".".join(found.split(".")[:2]) not in built_for:
        return _bad("torch", f"torch {found}; this torch_remote is for torch {' and '.join(built_for)}", fix)
    return _ok("torch", f"torch {found}")


def _environment() -> Iterator[Check]:
    ours = sorted(name for name in os.environ if name.startswith("TORCH_REMOTE_"))
    if ours:
        yield _note(
            "environment", ", ".join(f"{n}={'...' if n == 'TORCH_REMOTE_TOKEN' else os.environ[n]}" for n in ours)
        )
    file = os.environ.get("TORCH_REMOTE_TOKEN_FILE")
    if file:
        try:
            info = os.stat(file)
        except OSError as error:
            yield _bad("token", f"{file}: {error.strerror}", "correct TORCH_REMOTE_TOKEN_FILE")
            return
        if info.st_mode & 0o077:
            yield _bad("token", f"other users can read {file}", f"chmod 600 {file}")


def _gpus() -> Iterator[Check]:
    """The GPUs that the worker finds for `--device cuda:0`, if there is a driver."""
    import json

    try:
        binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or package() / "bin/torch-remote-worker"
        said = subprocess.run([binary, "--probe", "--json"], capture_output=True, text=True, timeout=60)
        found = json.loads(said.stdout)
    except (ServeError, OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        # the check of the installation reports why it does not run
        yield _note("GPU", "the worker cannot search for GPUs")
        return
    driver = found["parts"][0]
    if driver["missing"] and not Path("/proc/driver/nvidia").is_dir():
        yield _note("GPU", "no NVIDIA driver here: workers of this machine compute on the CPU")
        return
    if driver["missing"]:
        yield _bad("GPU", driver["missing"], driver["fix"])
        return
    for gpu in found["gpus"]:
        text = f"{gpu['device']} {gpu['name']}, driver {driver['version']}"
        if gpu["missing"]:
            yield _note("GPU", f"{text}: {gpu['missing']}")
        else:
            yield _ok("GPU", f"{text}, sm_{gpu['sm']}, {gpu['all_memory'] / 2**30:.1f} GiB")
    for part in found["parts"][1:]:
        if part["missing"]:
            yield _note(part["name"], f"{part['missing']}; without it {part['without']}", part["fix"])
        else:
            yield _ok(part["name"], ", ".join(filter(None, [part["version"], part["path"]])))


def _sandbox() -> Check:
    """Reports what the kernel isolates in sessions of a worker that listens here."""
    import json

    try:
        binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or package() / "bin/torch-remote-worker"
        said = subprocess.run([binary, "--probe-sandbox"], capture_output=True, text=True, timeout=60)
        found = json.loads(said.stdout)
    except (ServeError, OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return _note("sandbox", "the worker does not report what confines its sessions")
    active = f"sessions of a worker that listens: {', '.join(found['active'])}"
    if found["missing"]:
        return _note(
            "sandbox", f"{active}; not active: {'; '.join(found['missing'])}", "docs/workers.md describes each of these"
        )
    return _ok("sandbox", active)


def _tools() -> Iterator[Check]:
    from shutil import which

    if which("ssh") is None:
        yield _note("ssh", "ssh is not installed", "install openssh-client for machines of ssh://")
    else:
        yield _ok("ssh", str(which("ssh")))


def _device(on: str | None) -> Check:
    """Uses the device as a script would, in a process of its own."""
    where = on or os.environ.get("TORCH_REMOTE_WORKER") or "local"
    environment = {**os.environ, "TORCH_REMOTE_WORKER": where}
    began = time.monotonic()
    try:
        result = subprocess.run(
            [sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=300, env=environment
        )
    except subprocess.TimeoutExpired:
        return _bad(
            "device", f"the worker ({where}) did not answer for 300 s", "look at its log (torch-remote worker logs)"
        )
    if result.returncode != 0:
        said, fix = output.reason(result.stderr)
        return _bad("device", said, fix or f"the worker is {where}")
    import json

    found = json.loads(result.stdout.splitlines()[-1])
    if not found["right"]:
        return _bad("device", "a matmul returned a wrong result", "please report it, with the output of this command")
    return _ok(
        "device",
        f"{found['devices']} at {where}: {found['worker']}; {found['cores']} cores, {found['memory'] / 1e9:.1f} GB; "
        f"import {found['import']:.2f} s, first use {found['connect']:.2f} s, "
        f"round trip {found['round_trip'] * 1e6:.0f} µs (all: {time.monotonic() - began:.1f} s)",
    )


def checks(quick: bool, on: str | None = None) -> Iterator[Check]:
    """Yields all checks, as they are done."""
    yield _system()
    installed = _installation()
    yield installed
    torch = _torch()
    yield torch
    yield from _environment()
    yield from _gpus()
    yield _sandbox()
    yield from _tools()
    if not quick and installed["state"] == torch["state"] == "ok":
        yield _device(on)


_MARKS: dict[str, str] = {"ok": "[green]ok[/]    ", "failed": "[red]failed[/]", "note": "[yellow]note[/]  "}


def doctor(
    on: Annotated[str | None, typer.Option(help="The machine; default: TORCH_REMOTE_WORKER, local.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not use the device.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation, versions, GPUs and the device, and print how to fix problems."""
    from rich.markup import escape

    show: Callable[[Check], None] = lambda check: None  # noqa: E731
    if not as_json:

        def show(check: Check) -> None:
            fix = f"\n       -> {escape(check['fix'])}" if check["fix"] else ""
            output.console.print(
                f"{_MARKS[check['state']]} {check['check']}: {escape(check['found'])}{fix}", soft_wrap=True
            )

    done = []
    for check in checks(quick, on):
        show(check)
        done.append(check)
    failed = sum(check["state"] == "failed" for check in done)
    if as_json:
        output.print_json({"checks": done, "failed": failed})
    raise typer.Exit(1 if failed else 0)
