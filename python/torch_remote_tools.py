"""Entry point of the command line tools: `remote-opt`, `torch-remote-worker` and the others are programs in
torch_remote/bin.

This module is next to the package, not in it: importing torch_remote imports torch, which takes two seconds.
"""

import importlib.util
import os
import sys
from pathlib import Path


def run(name: str, arguments: list[str]) -> None:
    """Replaces this process by the tool, with the location of torch's libraries in its environment."""
    binary = Path(__file__).parent / "torch_remote" / "bin" / name
    torch = importlib.util.find_spec("torch")  # found, not imported
    environment = dict(os.environ)
    if torch is not None and torch.origin is not None:
        environment.setdefault("TORCH_REMOTE_TORCH_LIB", str(Path(torch.origin).parent / "lib"))
    try:
        os.execve(binary, [name, *arguments], environment)
    except OSError as error:
        sys.exit(f"remote: cannot run {binary}: {error.strerror}; install torch_remote again")


def main() -> None:
    """Replaces this process by the tool with the name of this process."""
    run(Path(sys.argv[0]).name, sys.argv[1:])
