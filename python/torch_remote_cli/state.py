"""Small files about running machines and workers, in a folder of the user's."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any


def folder(kind: str) -> Path:
    """$XDG_RUNTIME_DIR/torch-remote/KIND, or a folder in /tmp; created if missing. Nobody else can write there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "torch-remote" if runtime else Path(tempfile.gettempdir()) / f"torch-remote-{os.getuid()}"
    base.mkdir(mode=0o700, parents=bool(runtime), exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{base} is not a folder that only you can write to; remove it, or set XDG_RUNTIME_DIR")
    (base / kind).mkdir(mode=0o700, exist_ok=True)
    return base / kind


def write(kind: str, name: str, entry: dict[str, Any]) -> None:
    """Replaces the entry atomically."""
    file = folder(kind) / f"{name}.json"
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(entry))
    partial.replace(file)


def remove(kind: str, name: str) -> None:
    (folder(kind) / f"{name}.json").unlink(missing_ok=True)


def process_began(pid: int) -> int | None:
    """When a process began, in ticks since boot; with the pid this identifies a process. None: the process does not
    exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(") ")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(entry: dict[str, Any]) -> bool:
    """Whether the process that an entry names still runs."""
    began = process_began(entry["process"])
    return began is not None and began == entry["process_began"]


def read(kind: str, name: str) -> dict[str, Any] | None:
    """The entry with that name, or None."""
    try:
        entry = json.loads((folder(kind) / f"{name}.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return entry if isinstance(entry, dict) else None


def entries(kind: str) -> list[dict[str, Any]]:
    """All entries whose process runs, the oldest first; deletes the files of the others."""
    alive = []
    for file in folder(kind).glob("*.json"):
        entry = read(kind, file.stem)
        if entry is not None and is_alive(entry):
            alive.append(entry)
        elif entry is not None:
            with contextlib.suppress(OSError):
                file.unlink()
    return sorted(alive, key=lambda entry: entry["started"])
