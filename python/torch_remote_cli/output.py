"""How commands talk: to people with rich, to programs in JSON, errors in one way."""

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
    """Says what is wrong, and what helps; ends the command."""
    text = message if message.startswith("remote:") else f"remote: {message}"
    print(text, file=sys.stderr)
    raise typer.Exit(status)


def print_json(value: Any) -> None:
    print(json.dumps(value))


def table(columns: list[str], rows: list[list[str]]) -> Table:
    """Of text, with one line a row."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column, justify="right" if column.endswith(("/s", "%", "MB", "sessions")) else "left", no_wrap=True
        )
    for row in rows:
        made.add_row(*row)
    return made


def size(count: float) -> str:
    """1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def age(seconds: float) -> str:
    """2h 5m."""
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60}m"


def reason(errors: str) -> tuple[str, str]:
    """What a script said last on standard error about the device, and what to do, which may be empty."""
    lines = errors.strip().splitlines()
    last = next((line for line in reversed(lines) if "remote: " in line), lines[-1] if lines else "no message")
    message = last.partition("Error: ")[2] or last
    said, _, fix = message.removeprefix("remote: ").rpartition("; ")
    return (said, fix) if said else (message, "")
