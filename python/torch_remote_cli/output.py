"""The output of commands: rich text for people, JSON for programs, and one form for errors."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def fail(message: str, status: int = 1) -> NoReturn:
    """Prints what is wrong and what helps, and ends the command."""
    text = message if message.startswith("remote:") else f"remote: {message}"
    print(text, file=sys.stderr)
    raise typer.Exit(status)


def print_json(value: Any) -> None:
    print(json.dumps(value))


def table(columns: list[str], rows: list[list[str]]) -> Table:
    """A table of text, with one line per row."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column, justify="right" if column.endswith(("/s", "%", "MB", "sessions")) else "left", no_wrap=True
        )
    for row in rows:
        made.add_row(*row)
    return made


def size(count: float) -> str:
    """The size as text, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def age(seconds: float) -> str:
    """The age as text, such as 2h 5m."""
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60}m"


def reason(errors: str) -> tuple[str, str]:
    """The last message about the device on a script's standard error, and what to do about it, which may be empty."""
    lines = errors.strip().splitlines()
    last = next((line for line in reversed(lines) if "remote: " in line), lines[-1] if lines else "no message")
    message = last.partition("remote: ")[2] or last  # without the exception's name
    said, _, fix = message.rpartition("; ")
    return (said, fix) if said else (message, "")
