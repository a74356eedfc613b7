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
        for one in found if remove else ():
            one.remove()
    except MachineError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from error
    rows: list[dict[str, Any]] = [
        {"id": one.id, "what": one.what, "made": one.made, "process": one.process, "removed": remove} for one in found
    ]
    if as_json:
        return output.print_json(rows)
    if not rows:
        print(f"there are no leftover machines at {url}")
        return None
    for row in rows:
        print(f"{row['id']}: {row['what']}, made {row['made']} by process {row['process']}" + ", removed" * remove)
    return None
