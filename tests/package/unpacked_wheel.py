"""A wheel that is unpacked instead of installed, so that two wheels can run next to each other."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path


def unpack(wheel: Path, folder: Path) -> None:
    """Unpacks a wheel of torch_remote, as pip would: its programs can be executed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for program in (folder / "torch_remote/bin").iterdir():
        program.chmod(0o755)


def environment(**variables: object) -> dict[str, str]:
    """This process's environment with `variables`, and without the other settings of torch_remote."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_REMOTE_")}
    return {**inherited, **{name: str(value) for name, value in variables.items()}}
