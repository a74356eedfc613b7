"""Debuggers: what they show of tensors while the worker is away."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STOPPED = """
import os, pdb, io, signal, sys, time, torch, torch_remote
from torch_remote import _C

def stop():
    os.kill(_C.worker_info(0)["process"], signal.SIGSTOP)

def go_on():
    os.kill(_C.worker_info(0)["process"], signal.SIGCONT)

x = torch.ones(3, device="remote")
x.sum().item()
"""
AWAY = "<not read: the worker is busy or away; print() waits for it>"
THERE = "tensor([1., 1., 1.], device='remote:0')"


def pdb(script: Any, commands: list[str], before: str) -> list[str]:
    """Runs commands of pdb. Returns what each prints."""
    result = script(
        STOPPED
        + f"commands = io.StringIO({chr(10).join([*commands, 'continue', ''])!r})\n"
        + "debugger = pdb.Pdb(stdin=commands, stdout=sys.stdout)\ndebugger.use_rawinput = False\n"
        + f"{before}\ndebugger.set_trace()\nlast = True\ngo_on()\n"
    )
    return [re.sub(r"\n *", " ", text.strip()) for text in result.stdout.split("(Pdb) ")[1 : len(commands) + 1]]


def test_pdb_does_not_wait_for_a_worker_that_is_away(script, remote):
    p, bare, pretty, parameter, empty, told, printed, there = pdb(
        script,
        [
            "p x",
            "x",
            "pp {'a': [x, x]}",
            "p weight",
            "p x[:0]",
            "p time.perf_counter() - begin < 5",
            "go_on(); print(x); time.sleep(1.5)",
            "p x",
        ],
        "weight = torch.nn.Parameter(x * 2)\nbegin = time.perf_counter()\nstop()",
    )
    away = f"tensor({AWAY}, size=(3,), device='remote:0')"
    assert p == bare == away
    assert pretty == f"{{'a': [{away}, {away}]}}"
    assert parameter == f"Parameter containing: tensor({AWAY}, size=(3,), device='remote:0', requires_grad=True)"
    assert empty == "tensor([], device='remote:0')"
    assert told == "True"
    assert printed == there == THERE


def test_pdb_shows_numbers_and_errors(script, remote):
    idle, failed, again = pdb(
        script,
        ["p x", "p x[torch.tensor([9], device='remote')]", "p x"],
        "",
    )
    assert idle == again == THERE
    assert "IndexError: index 9 is out of bounds for dimension 0 with size 3" in failed


def test_many_variables_do_not_wait_longer_than_one(script, remote):
    _, seconds = pdb(script, ["p [x] * 50", "p time.perf_counter() - begin"], "begin = time.perf_counter()\nstop()")
    assert float(seconds) < 5  # 50 times 0.2 s are 10 s


def test_pdb_before_and_after_the_worker(script, remote):
    texts = pdb(
        script,
        ["p y", "print(y)", "p y", "os.kill(_C.worker_info(0)['process'], signal.SIGKILL)", "p y", "p y"],
        "torch.remote.restart()\ny = torch.ones(3, device='remote')\ngo_on = int",
    )
    assert texts[0] == (
        "tensor(<not read: the worker has not started; print() starts it>, size=(3,), device='remote:0')"
    )
    assert texts[1] == texts[2] == THERE
    assert "WorkerLost: " in texts[4] or texts[4] == texts[5]
    assert texts[5] == "tensor(<not read: the worker is lost>, size=(3,), device='remote:0')"


class Adapter:
    """A client of debugpy's Debug Adapter Protocol."""

    def __init__(self, port: int) -> None:
        for attempt in itertools.count():
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except ConnectionRefusedError:
                if attempt == 600:
                    raise
                time.sleep(0.1)
        self._file = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return number

    def _receive(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message = json.loads(self._file.read(length))
        if message["type"] == "event":
            self._events.append(message)
        return message

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = self.send(command, **arguments)
        while True:
            message = self._receive()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return message.get("body", {})

    def wait(self, name: str) -> dict[str, Any]:
        """The body of the next event with this name."""
        while True:
            for event in self._events:
                if event["event"] == name:
                    self._events.remove(event)
                    return event.get("body", {})
            self._receive()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("away", [True, False])
def test_debugpys_view_of_variables(tmp_path: Path, remote, away):
    """debugpy is the debugger of VS Code and JupyterLab."""
    script = tmp_path / "script.py"
    lines = [*STOPPED.splitlines(), "def f(x):", "    y = {'x': x}", f"    {'stop()' if away else ''}", "    return y"]
    script.write_text("\n".join([*lines, "f(x * 1)", "print('done')"]))
    port = free_port()
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", str(port), "--wait-for-client"]
    with (tmp_path / "output").open("w") as file:  # no pipe, which debugpy's own process would keep open
        process = subprocess.Popen([*command, str(script)], env=os.environ, stdout=file)
    try:
        adapter = Adapter(port)
        adapter.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        adapter.send("attach", justMyCode=True)
        adapter.wait("initialized")
        adapter.ask("setBreakpoints", source={"path": str(script)}, breakpoints=[{"line": len(lines)}])
        adapter.ask("configurationDone")
        thread = adapter.wait("stopped")["threadId"]
        frame = adapter.ask("stackTrace", threadId=thread)["stackFrames"][0]["id"]
        scope = adapter.ask("scopes", frameId=frame)["scopes"][0]["variablesReference"]
        begin = time.perf_counter()
        shown = {v["name"]: v for v in adapter.ask("variables", variablesReference=scope)["variables"]}
        children = adapter.ask("variables", variablesReference=shown["x"]["variablesReference"])["variables"]
        hover = adapter.ask("evaluate", expression="[x]", frameId=frame, context="hover")["result"]
        seconds = time.perf_counter() - begin
        adapter.ask("evaluate", expression="go_on()", frameId=frame, context="repl")
        adapter.ask("evaluate", expression="print('printed', x)", frameId=frame, context="repl")
        adapter.ask("continue", threadId=thread)
        adapter.wait("terminated")
        adapter.ask("disconnect")
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    output = (tmp_path / "output").read_text()
    value = f"tensor({AWAY}, size=(3,), device='remote:0')" if away else THERE
    plain = {name: re.sub(r"\n *", " ", v["value"]) for name, v in shown.items()}
    assert plain["x"] == value and plain["y"] == f"{{'x': {value}}}"
    assert re.sub(r"\n *", " ", hover) == f"[{value}]"
    transposed = next(child["value"] for child in children if child["name"] == "real")
    assert re.sub(r"\n *", " ", transposed) == value
    assert seconds < 5
    assert f"printed {THERE}" in output and "done" in output
