"""Entry point of the command line tools: `remote-opt` and the others are programs in torch_remote/bin.

A module beside the package, not in it: importing torch_remote imports torch, which takes two seconds.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the tool by whose name this process was started."""
    name = Path(sys.argv[0]).name
    binary = Path(__file__).parent / "torch_remote" / "bin" / name
    try:
        os.execv(binary, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"remote: cannot run {binary}: {error.strerror}; install torch_remote again")
