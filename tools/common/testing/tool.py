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
    """Runs a tool and returns its result with the output as text; bytes that are not UTF-8 become U+FFFD."""
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
    """Returns a file with the text of a graph of about this many ops (perceptron.cpp)."""
    path = Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))) / f"perceptron_{ops}.txt"
    path.write_bytes(subprocess.run([str(INPUTS / "perceptron"), str(ops)], check=True, stdout=subprocess.PIPE).stdout)
    return path


def capture(path: Path, *arguments: str) -> Path:
    """Writes a capture to `path` (session.cpp) and returns the path."""
    subprocess.run([str(INPUTS / "session"), str(path), *arguments], check=True)
    return path


def output(tool: str, *arguments: object, stdin: str | bytes = b"") -> str:
    """Runs a tool that must succeed without messages; returns its standard output."""
    result = run(tool, *arguments, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout
