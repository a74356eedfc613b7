"""A number that is another one for each commit: tests that run a part of what they could choose the part by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit() -> str:
    """TORCH_REMOTE_TEST_COMMIT, or the checkout's HEAD; "" where there is no git."""
    if "TORCH_REMOTE_TEST_COMMIT" in os.environ:
        return os.environ["TORCH_REMOTE_TEST_COMMIT"]
    folder = Path(__file__).resolve().parent  # in the checkout, of which Bazel's files are links
    try:
        git = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return git.stdout.strip() if git.returncode == 0 else ""


def commit_number() -> int:
    """The commit's first 28 bits; 0 without a commit."""
    return int(commit()[:7] or "0", 16)
