"""Files of docs/ that a command generates."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(command: str, doc: str, make: Callable[[Path], dict[str, str]]) -> None:
    """Writes what `make` returns for the root of the tree: the text of each file, by its path from there. With --check
    it writes nothing, and exits with an error if a file has another text. `doc`: the text of --help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    root = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    for name, text in make(root).items():
        target = root / name
        if not check:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            sys.exit(f"{name} is not what ./bazelw run {command} writes: run it")
