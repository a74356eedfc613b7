"""`torch-remote doctor --gpu`: runs the worker's self-test on the first GPU, and writes a bundle for a report."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_remote_cli.check import Check, failed, note, ok
from torch_remote_cli.exit_status import describe
from torch_remote_cli.service import ServeError, package

BUNDLE = "gpu-report.tar.gz"
_TIMEOUT = 300.0  # seconds
# The bundle has the values of these variables only.
_VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "TORCH_REMOTE_CUDA_LIB",
)
_PACKAGES = ("torch", "torch-remote", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def _without_home(text: str) -> str:
    """Replaces the path of the user's home folder by `~`."""
    for home in {str(Path.home()), os.path.realpath(Path.home())} - {"/"}:
        text = text.replace(home, "~")
    return text


def _versions() -> str:
    lines = [f"python {platform.python_version()}", f"system {platform.system()} {platform.release()}"]
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    lines += [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return "\n".join(lines) + "\n"


def write_bundle(path: Path, found: dict[str, Any] | None, log: str) -> None:
    """Writes versions, the result of the self-test, the worker's log, and the programs of failed rows."""
    files = {"versions.txt": _versions(), "worker.log": log}
    if found is not None:
        # A UUID identifies the machine, and no report needs it.
        shown = {**found, "gpus": [{k: v for k, v in gpu.items() if k != "uuid"} for gpu in found.get("gpus", [])]}
        files["self_test.json"] = json.dumps(shown, indent=1) + "\n"
        for number, row in enumerate(found.get("self_test", [])):
            if row["state"] == "failed" and row["program"]:
                files[f"failed/{number}.txt"] = f"# {row['name']}: {row['reason']}\n{row['program']}\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            content = _without_home(text).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = int(time.time())
            archive.addfile(info, io.BytesIO(content))


def _row(row: dict[str, Any]) -> Check:
    name, state = row["name"], row["state"]
    if state == "ok":
        return ok(name, f"{row['milliseconds']:.1f} ms")
    reason, _, fix = row["reason"].partition("; ")
    if state == "failed":
        return failed(name, reason, fix)
    return note(name, f"{state}: {reason}", fix)


def checks(bundle: Path = Path(BUNDLE)) -> Iterator[Check]:
    """Yields one check per row of the self-test, and writes the bundle."""
    try:
        binary = os.environ.get("TORCH_REMOTE_WORKER_BINARY") or package() / "bin/torch-remote-worker"
        said = subprocess.run(
            [binary, "--probe", "--self-test", "--json"], capture_output=True, text=True, timeout=_TIMEOUT,
            env={**os.environ, "TORCH_REMOTE_WORKER_LOG": "debug"},
        )  # fmt: skip
    except (ServeError, OSError) as error:
        yield failed("self-test", f"the worker does not start: {error}", "pip install --force-reinstall torch-remote")
        return
    except subprocess.TimeoutExpired as error:
        log = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr or ""
        write_bundle(bundle, None, log)
        yield failed("self-test", f"no result within {_TIMEOUT:.0f} s", f"send {bundle} with a report")
        return
    try:
        found = json.loads(said.stdout)
    except json.JSONDecodeError:
        write_bundle(bundle, None, said.stderr)
        yield failed("self-test", f"the worker {describe(said.returncode)}", f"send {bundle} with a report")
        return
    write_bundle(bundle, found, said.stderr)
    rows = found.get("self_test", [])
    if not rows:
        driver = found["parts"][0]
        why = driver["missing"] or next((gpu["missing"] for gpu in found["gpus"] if gpu["missing"]), "there is no GPU")
        yield failed("self-test", why, driver["fix"] or "run it on a machine with a GPU that torch-remote supports")
    for row in rows:
        yield _row(row)
    yield note("bundle", f"{bundle} has versions, results and the worker's log", "attach it to a report")
