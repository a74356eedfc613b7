"""Runs one of the tools as a user would."""

from __future__ import annotations

import subprocess
from pathlib import Path

BINARIES = Path("frontend/torch_remote/bin")
GRAPHS = Path("tools/common/testing")


def run(tool: str, *arguments: object, stdin: str | bytes = b"", timeout: float = 60) -> subprocess.CompletedProcess:
    """Its output as text; bytes that are none become U+FFFD."""
    result = subprocess.run(
        [str(BINARIES / tool), *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=timeout,
    )
    result.stdout_bytes = result.stdout
    result.stdout, result.stderr = (out.decode(errors="replace") for out in (result.stdout, result.stderr))
    return result


def capture(path: Path, *arguments: str) -> Path:
    """Writes a capture there; session.cpp says which."""
    subprocess.run([str(GRAPHS / "session"), str(path), *arguments], check=True)
    return path


def output(tool: str, *arguments: object, stdin: str | bytes = b"") -> str:
    """The standard output of a run that must succeed in silence."""
    result = run(tool, *arguments, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout
