"""Runs one of the tools as a user would."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

BINARIES = Path("python/torch_remote/bin")
INPUTS = Path("tools/common/testing")


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


@functools.cache
def perceptron(ops: int) -> Path:
    """A file with the text of a graph of about so many ops; perceptron.cpp says which."""
    path = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))) / f"perceptron_{ops}.txt"
    path.write_bytes(subprocess.run([str(INPUTS / "perceptron"), str(ops)], check=True, stdout=subprocess.PIPE).stdout)
    return path


def capture(path: Path, *arguments: str) -> Path:
    """Writes a capture there; session.cpp says which."""
    subprocess.run([str(INPUTS / "session"), str(path), *arguments], check=True)
    return path


def output(tool: str, *arguments: object, stdin: str | bytes = b"") -> str:
    """The standard output of a run that must succeed in silence."""
    result = run(tool, *arguments, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout
