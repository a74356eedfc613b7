"""`torch-remote machines --left-over URL`: machines at a provider whose clients are gone."""

from __future__ import annotations

from typing import Any

import typer

from torch_remote_cli import output, state


def list_or_remove(url: str, remove: bool, as_json: bool) -> None:
    """Lists or removes machines that are labeled as this user's on this host, and that no running script uses."""
    from torch_remote.providers.provider import MachineError, find_provider  # imports torch
    from torch_remote.providers.url import read_url

    used = {entry["id"] for entry in state.entries("machines")}
    try:
        provider, options = read_url(url, {})
        found = [one for one in find_provider(provider).leftovers(options) if one.id not in used]
    except MachineError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from error
    errors: list[str] = []
    rows: list[dict[str, Any]] = []
    for one in found:
        removed = remove
        if remove:
            try:
                one.remove()
            except MachineError as error:
                removed = False
                errors.append(f"{one.id}: {error}")
        rows.append({"id": one.id, "what": one.what, "made": one.made, "process": one.process, "removed": removed})
    if as_json:
        output.print_json(rows)
    elif not rows:
        print(f"there are no leftover machines at {url}")
    else:
        for row in rows:
            removed_text = ", removed" if row["removed"] else ""
            print(f"{row['id']}: {row['what']}, made {row['made']} by process {row['process']}{removed_text}")
    for text in errors:
        typer.echo(text, err=True)
    if errors:
        raise typer.Exit(1)
