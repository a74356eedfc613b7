"""A number that differs from commit to commit. Tests that run a part of their cases choose the part by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit() -> str:
    """TORCH_REMOTE_TEST_COMMIT (`bazel test --test_env=TORCH_REMOTE_TEST_COMMIT=...`), or the HEAD of the checkout.

    Raises RuntimeError if there is neither; otherwise each run would test the same part.
    """
    given = os.environ.get("TORCH_REMOTE_TEST_COMMIT", "")
    if given:
        return given
    folder = Path(__file__).resolve().parent  # in the checkout, because Bazel's runfiles are symbolic links
    reason = ""
    try:
        git = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        if git.returncode == 0 and git.stdout.strip():
            return git.stdout.strip()
        reason = git.stderr.strip()
    except OSError as error:
        reason = str(error)
    raise RuntimeError(
        f"the commit is not known, and this test chooses what it runs by it: git says '{reason}'; "
        "pass --test_env=TORCH_REMOTE_TEST_COMMIT=<hash> to bazel test"
    )


def commit_number() -> int:
    """The first 28 bits of the commit's hash."""
    return int(commit()[:7], 16)


def chosen_seed(seeds_per_commit: int = 1) -> int:
    """The first seed of a test: TORCH_REMOTE_TEST_SEED, or one that differs from commit to commit."""
    given = os.environ.get("TORCH_REMOTE_TEST_SEED")
    return int(given) if given else commit_number() * seeds_per_commit
