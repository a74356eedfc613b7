"""The command `torch-remote`: workers, scripts on machines, and the state of both."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit("torch-remote: the command needs typer and rich: pip install typer rich")
    from torch_remote_cli.commands import app

    app(prog_name="torch-remote")
