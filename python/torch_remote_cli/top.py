"""`torch-remote top`: what the workers of this machine do, now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from torch_remote_cli import output, state, status_file


def _look() -> list[dict[str, Any]]:
    """All workers, with their counters."""
    found = []
    for entry in state.entries("workers"):
        counts = status_file.read(Path(entry["status_file"]))
        if counts is not None:
            found.append({"name": entry["name"], "url": entry["url"], "counts": counts})
    return found


def rates(before: list[dict[str, Any]], now: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Returns what each worker and each of its sessions did in between, per second."""
    old = {entry["url"]: entry["counts"] for entry in before}
    all_of = []
    for entry in now:
        counts, then = entry["counts"], old.get(entry["url"])
        known = {(s.process, s.began): s for s in then.sessions} if then is not None else {}
        sessions = []
        for session in counts.sessions:
            was = known.get((session.process, session.began))
            sessions.append(
                {
                    "client": session.client,
                    "process": session.process,
                    "memory_bytes": status_file.memory_of(session.process),
                    "busy_share": _rate(session, was, "busy_seconds", seconds),
                    "messages_per_second": _rate(session, was, "messages", seconds),
                    "bytes_in_per_second": _rate(session, was, "bytes_in", seconds),
                    "bytes_out_per_second": _rate(session, was, "bytes_out", seconds),
                    "idle_seconds": session.idle_seconds,
                }
            )
        all_of.append(
            {"name": entry["name"], "url": entry["url"], "sessions_limit": counts.sessions_limit, "sessions": sessions}
        )
    return all_of


def _rate(now: Any, before: Any, name: str, seconds: float) -> float:
    return float((getattr(now, name) - (getattr(before, name) if before is not None else 0)) / seconds)


def _render(workers: list[dict[str, Any]]) -> Group:
    parts: list[Any] = []
    for worker in workers:
        count, limit = len(worker["sessions"]), worker["sessions_limit"]
        sessions = f"{count} of {limit} sessions" if isinstance(limit, int) else f"{count} sessions, {limit}"
        parts.append(Text(f"{worker['name']}  {worker['url']}  {sessions}", style="bold"))
        rows = [
            [
                session["client"], str(session["process"]), f"{session['memory_bytes'] / 1e6:.0f}",
                f"{100 * min(1, session['busy_share']):.0f}", f"{session['messages_per_second']:.0f}",
                output.size(session["bytes_in_per_second"]), output.size(session["bytes_out_per_second"]),
                output.age(session["idle_seconds"]),
            ]
            for session in worker["sessions"]
        ]  # fmt: skip
        if rows:
            parts.append(
                output.table(["client", "process", "MB", "busy %", "messages/s", "in/s", "out/s", "idle"], rows)
            )
    return Group(*(parts or [Text("no worker runs here (torch-remote worker serve)")]))


def top(
    seconds: Annotated[float, typer.Option("--interval", "-d", min=0.05, help="Seconds between updates.")] = 1.0,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Number of updates; 0: until Ctrl-C.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per update.")] = False,
) -> None:
    """Show sessions and their memory, load and traffic, until Ctrl-C."""
    looks = 0
    before, then = _look(), time.monotonic()
    live = None if as_json or not output.console.is_terminal else Live(_render([]), console=output.console, screen=True)
    try:
        if live is not None:
            live.start()
        while not count or looks < count:
            time.sleep(seconds)
            now, at = _look(), time.monotonic()
            found = rates(before, now, at - then)
            if as_json:
                output.print_json({"time": time.time(), "workers": found})
            elif live is not None:
                live.update(_render(found), refresh=True)
            else:
                output.console.print(_render(found))
            before, then, looks = now, at, looks + 1
    except KeyboardInterrupt:
        pass
    finally:
        if live is not None:
            live.stop()
