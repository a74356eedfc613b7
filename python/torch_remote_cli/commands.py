"""All commands of `torch-remote`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from torch_remote_cli import output, state
from torch_remote_cli.bench import bench
from torch_remote_cli.doctor import doctor
from torch_remote_cli.left_over import list_or_remove
from torch_remote_cli.run import run
from torch_remote_cli.top import top
from torch_remote_cli.worker import app as worker

app = typer.Typer(
    help="Starts and inspects workers of the PyTorch device `remote`, and runs scripts on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(worker, name="worker")
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(doctor)
app.command()(bench)
app.command()(top)


def _version(wanted: bool) -> None:
    if wanted:
        from torch_remote_cli.service import version

        print(version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Starts and inspects workers of the PyTorch device `remote`, and runs scripts on them."""


@app.command()
def machines(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    left_over: Annotated[
        str | None,
        typer.Option(metavar="URL", help="List machines at kubernetes://CONTEXT or modal:// whose scripts are gone."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="With --left-over: stop these machines.")] = False,
) -> None:
    """List the machines that scripts of this user started."""
    if left_over is not None:
        return list_or_remove(left_over, remove, as_json)
    if remove:
        raise typer.BadParameter("--remove needs --left-over URL")
    entries = state.entries("machines")
    if as_json:
        return output.print_json(entries)
    if not entries:
        print("no machine runs (torch-remote run --on ssh://HOST script.py starts one)")
        return None
    rows = [
        [
            entry["id"], entry["name"], entry["provider"], ",".join(entry["devices"]),
            f"{entry['gpu'] or 'cpu'} x {entry['gpu_count']}", str(entry["process"]),
            output.age(time.time() - entry["started"]),
        ]
        for entry in entries
    ]  # fmt: skip
    output.console.print(output.table(["id", "name", "provider", "devices", "computes on", "process", "runs"], rows))
    return None
