"""`torch-remote worker serve|status|stop|logs`."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from torch_remote_cli import output, state, status_file
from torch_remote_cli.exit_status import describe
from torch_remote_cli.service import LEVELS, Options, ServeError, Service, log_file

app = typer.Typer(help="Workers that listen on this machine.", no_args_is_help=True)

_TO_START = 60.0
_TO_STOP = 20.0
_NAME = typer.Argument(help="The worker's name; optional if only one runs.")
_AS_JSON = typer.Option("--json", help="Print JSON.")


def _address(text: str | None) -> tuple[str, int] | None:
    """Parses "9100" or "0.0.0.0:9100"."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        output.fail(f"--metrics {text}: write HOST:PORT, or a port of 127.0.0.1", 2)
    return host.strip("[]") or "127.0.0.1", int(port)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 0,
    unix: Annotated[Path | None, typer.Option(help="Listen on a Unix socket instead.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that clients must know.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM): clients connect with tls://.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Authority of clients' certificates (PEM).")] = None,
    device: Annotated[str, typer.Option(help="Where tensors live: cpu, cuda:0, ...")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, max=4096, help="Threads of a session; 0: torch's default.")] = 0,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Limit for a session's tensors: 8G, 500M; 0: none; default: 80 % of the machine's memory."),
    ] = None,
    allow_files: Annotated[
        Path | None, typer.Option(help="Clients may load files of this folder (torch.remote.load_file).")
    ] = None,
    allow_python: Annotated[
        bool, typer.Option(help="Clients may call Python functions here (torch_remote.function), as this user.")
    ] = False,
    python: Annotated[
        str | None, typer.Option(help="Interpreter for these functions, with torch; default: this one.")
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option(min=0, help="Clients at once; 0: any number; default: twice the cores, 16 at least."),
    ] = None,
    session_user: Annotated[
        str | None, typer.Option(help="User that sessions run as (needs root); default: this one.")
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        typer.Option(help="With --unix: a user whose processes may connect, in addition to this one and root."),
    ] = None,
    lease: Annotated[
        float | None, typer.Option(help="Seconds that a session waits for a client whose connection broke.")
    ] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Stop the worker after so many seconds without a client.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Serve /metrics (Prometheus) and /healthz at HOST:PORT, or a port of 127.0.0.1.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the worker for the other commands.")] = "worker",
    background: Annotated[bool, typer.Option(help="Run in the background.")] = False,
    log_level: Annotated[str, typer.Option(help=f"{', '.join(LEVELS)}.")] = "info",
    log_format: Annotated[str, typer.Option(help="text, or json with one record per line.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON where the worker listens.")] = False,
) -> None:
    """Listen for clients until Ctrl-C, or `torch-remote worker stop`."""
    if log_level not in LEVELS:
        output.fail(f"--log-level {log_level}: use one of {', '.join(LEVELS)}", 2)
    if log_format not in ("text", "json"):
        output.fail(f"--log-format {log_format}: use text or json", 2)
    if not name or "/" in name or name.startswith("."):
        output.fail(f"--name {name!r}: a name must not contain a slash or begin with a dot", 2)
    if (tls_cert is None) != (tls_key is None):
        output.fail("TLS needs both --tls-cert FILE and --tls-key FILE", 2)
    if unix is not None and (tls_cert is not None or token_file is not None):
        output.fail("a Unix socket has neither tokens nor TLS; restrict access with the mode of its folder", 2)
    if allow_user and unix is None:
        output.fail("--allow-user needs a Unix socket (--unix PATH); over a network, use tokens", 2)
    if client_ca is not None and tls_cert is None:
        output.fail("--client-ca needs TLS (--tls-cert FILE --tls-key FILE)", 2)
    if python is not None and not allow_python:
        output.fail("--python needs --allow-python", 2)
    if python is not None and shutil.which(python) is None:
        output.fail(f"--python {python}: there is no such program; give the path of an interpreter that has torch", 2)
    if memory_limit is not None and memory_limit.startswith("-"):
        output.fail(f"--memory-limit {memory_limit}: write 8G, 500M, or 0 for no limit", 2)
    for flag, seconds in (("--lease", lease), ("--idle-timeout", idle_timeout)):
        if seconds is not None and not 0 < seconds < math.inf:
            output.fail(f"{flag} {seconds:g}: give seconds, more than 0", 2)
    where = f"[{host}]" if ":" in host else host
    url = f"unix://{unix.resolve()}" if unix else f"{'tls' if tls_cert else 'tcp'}://{where}:{port}"
    arguments = ["--device", device, "--threads", str(threads)]
    given: dict[str, Any] = {
        "--token-file": token_file, "--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-client-ca": client_ca,
        "--memory-limit": memory_limit, "--lease": lease, "--allow-files": allow_files,
        "--max-sessions": max_sessions, "--session-user": session_user,
    }  # fmt: skip
    for flag, value in given.items():
        if value is not None:
            arguments += [flag, str(value)]
    for user in allow_user or []:
        arguments += ["--allow-user", user]
    if allow_python:
        arguments.append(f"--allow-python={python or sys.executable}")
    options = Options(name, url, arguments, _address(metrics), log_level, log_format == "json", idle_timeout)
    if background:
        return _serve_in_background(name, as_json)

    def ready(service: Service) -> None:
        entry = state.read("workers", name)
        assert entry is not None
        _say(entry, as_json)

    try:
        status = Service(options).run(ready)
    except (ServeError, OSError) as error:
        output.fail(str(error))
    raise typer.Exit(status)


def _say(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(entry)
    else:
        print(
            f"{entry['name']} listens on {entry['url']}"
            + (f", metrics at {entry['metrics']}" if entry["metrics"] else "")
        )
        print(f"sessions: {entry['limits']}")
        print(f"confined: {entry['confined']}")
    sys.stdout.flush()


def _serve_in_background(name: str, as_json: bool) -> None:
    """Starts the same command without --background, in a session of its own."""
    known = state.read("workers", name)
    if known is not None and state.is_alive(known):
        output.fail(
            f"a worker called {name!r} runs already, at {known['url']} (process {known['process']}); stop it "
            f"(torch-remote worker stop {name}), or give this one another --name"
        )
    arguments = [argument for argument in sys.argv[1:] if argument != "--background"]
    said = state.folder("workers") / f"{name}.out"
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch_remote_cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _TO_START
    try:
        while time.monotonic() < deadline:
            entry = state.read("workers", name)
            if entry is not None and entry["process"] == process.pid:
                return _say(entry, as_json)
            if process.poll() is not None:
                output.fail(_error_in(said.read_text()) or f"the worker {describe(process.returncode)}")
            time.sleep(0.05)
        process.terminate()
        output.fail(f"the worker did not listen within {_TO_START:.0f} s; its log is {log_file(name)}")
    except KeyboardInterrupt:
        process.terminate()  # Ctrl-C does not reach its session
        raise
    finally:
        said.unlink(missing_ok=True)


def _error_in(text: str) -> str:
    """The error at the end of a command's output; empty if there is none."""
    lines = text.strip().splitlines()
    begin = next((i for i, line in reversed([*enumerate(lines)]) if line.startswith("remote: ")), len(lines) - 1)
    return "\n".join(lines[max(begin, 0) :])


def _find(name: str | None) -> dict[str, Any]:
    """Returns the entry of a running worker."""
    there = {entry["name"]: entry for entry in state.entries("workers")}
    if name is None and len(there) == 1:
        return next(iter(there.values()))
    if name is None:
        output.fail(
            f"which one? {', '.join(there)}" if there else "no worker runs here; torch-remote worker serve starts one"
        )
    if name not in there:
        has = f"there are {', '.join(there)}" if there else "none runs here"
        output.fail(f"there is no worker called {name!r}; {has}")
    return there[name]


@app.command()
def status(name: Annotated[str | None, _NAME] = None, as_json: Annotated[bool, _AS_JSON] = False) -> None:
    """Show which workers run here, and their sessions."""
    entries = [_find(name)] if name is not None else state.entries("workers")
    described = []
    for entry in entries:
        counts = status_file.read(Path(entry["status_file"]))
        sessions = counts.sessions if counts is not None else []
        described.append(
            {
                **entry,
                "sessions": [
                    {**vars(session), "memory_bytes": status_file.memory_of(session.process)} for session in sessions
                ],
                "sessions_total": counts.sessions_total if counts is not None else 0,
                "sessions_limit": counts.sessions_limit if counts is not None else None,
            }
        )
    if as_json:
        return output.print_json(described)
    if not described:
        print("no worker runs here (torch-remote worker serve)")
    for entry in described:
        limit = entry["sessions_limit"]
        most = "" if limit is None else f" ({limit} at most)" if isinstance(limit, int) else f" ({limit})"
        print(
            f"{entry['name']}: {entry['url']}, process {entry['process']}, runs "
            f"{output.age(time.time() - entry['started'])}, {len(entry['sessions'])} sessions now{most}, "
            f"{entry['sessions_total']} so far"
        )
        print(f"  limits: {entry['limits']}")
        print(f"  confined: {entry['confined']}")
        for session in entry["sessions"]:
            print(
                f"  {session['client']}: process {session['process']}, {output.size(session['memory_bytes'])}, in "
                f"{output.size(session['bytes_in'])}, out {output.size(session['bytes_out'])}, worked "
                f"{session['busy_seconds']:.1f} s, idle {output.age(session['idle_seconds'])}"
            )
    return None


@app.command()
def stop(
    name: Annotated[str | None, _NAME] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all workers that run here.")] = False,
    as_json: Annotated[bool, _AS_JSON] = False,
) -> None:
    """Stop a worker: its sessions end, with their tensors."""
    entries = state.entries("workers") if everything else [_find(name)]
    for entry in entries:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(entry["process"], signal.SIGTERM)
    deadline = time.monotonic() + _TO_STOP
    for entry in entries:
        while state.is_alive(entry):
            if time.monotonic() > deadline:
                output.fail(f"{entry['name']} (process {entry['process']}) does not end; kill -9 it")
            time.sleep(0.02)
        if not as_json:
            print(f"{entry['name']} was stopped")
    if as_json:
        output.print_json(entries)


@app.command()
def logs(
    name: Annotated[str | None, _NAME] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines from the end of the log.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing while the worker runs.")] = False,
) -> None:
    """Print the log of a worker that runs or has ended."""
    ended = name is not None and "/" not in name and log_file(name).exists()
    file = log_file(name) if name is not None and ended else Path(_find(name)["log"])
    entry = state.read("workers", file.stem)
    text = file.open(errors="replace")
    try:
        before = text.readlines()
        print("".join(before[-lines:] if lines else []), end="", flush=True)
        while follow:
            runs = entry is not None and state.is_alive(entry)  # before the read: its last lines come as it ends
            if line := text.readline():
                print(line, end="", flush=True)
            elif _is_replaced(text, file):  # a long log
                print(text.read(), end="", flush=True)
                text.close()
                text = file.open(errors="replace")
            elif not runs:
                return
            else:
                time.sleep(0.1)
    finally:
        text.close()


def _is_replaced(text: IO[str], file: Path) -> bool:
    """Whether an open file has another name now, and the name another file."""
    try:
        return not os.path.samestat(os.fstat(text.fileno()), file.stat())
    except OSError:
        return False
