"""The checks of `torch-remote doctor` that use a worker: its address, TLS, token, versions, machine and results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from torch_remote_cli import output
from torch_remote_cli.check import Check, failed, note, ok
from torch_remote_cli.exit_status import describe

_TIMEOUT = 300.0  # seconds

# Runs in a process of its own, which uses the device as a script would. It prints a line of JSON after each step.
_USE = """
import json, os, sys, time

def report(step, **found):
    print(json.dumps({"step": step, **found}), flush=True)

began = time.perf_counter()
import torch, torch_remote
from torch_remote.providers import MachineError, RemoteMachine
from torch_remote.providers.provider import provider_names
from torch_remote.providers.url import provider_of, read_url

imported = time.perf_counter() - began
report("imported")
url = os.environ["TORCH_REMOTE_WORKER"]
provider = provider_of(url)
file = None
if provider in provider_names():
    RemoteMachine(url).check()
    file = read_url(url, {})[1].get("token_file")
has_token = bool(file or os.environ.get("TORCH_REMOTE_TOKEN_FILE") or os.environ.get("TORCH_REMOTE_TOKEN"))
report("checked", provider=provider, has_token=has_token)

began = time.perf_counter()
properties = torch.remote.get_device_properties()
report(
    "connected", seconds=time.perf_counter() - began, imported=imported, torch=torch.__version__,
    worker=properties.worker, name=properties.name, type=properties.type, memory=properties.total_memory,
    cores=properties.multi_processor_count,
)

functional = torch.nn.functional
x = (torch.arange(48.0) % 7 - 3).view(6, 8)
weight = (torch.arange(18.0) % 5 - 2).view(1, 2, 3, 3)
ops = {
    "matmul": lambda x, w: x @ x.T,
    "softmax": lambda x, w: x.softmax(1),
    "layer_norm": lambda x, w: functional.layer_norm(x, (8,)),
    "conv2d": lambda x, w: functional.conv2d(x.view(1, 2, 4, 6), w),
    "cumsum": lambda x, w: x.cumsum(0),
    "sort": lambda x, w: x.sort(1).values,
    "index_select": lambda x, w: x.index_select(0, torch.tensor([4, 1], device=x.device)),
}
for name, op in ops.items():
    expected = op(x, weight)
    try:
        got = op(x.to("remote"), weight.to("remote")).cpu()
    except torch_remote.WorkerLost:
        raise
    except RuntimeError as error:
        report("op", op=name, error=str(error))
    else:
        report("op", op=name, right=torch.allclose(got, expected, rtol=1e-2, atol=1e-2))

y = x.to("remote")
times = []
for _ in range(50):
    began = time.perf_counter()
    (y + 1).sum().item()
    times.append(time.perf_counter() - began)
report("done", round_trip=sorted(times)[25])
"""

# What an error is about, by its text: the first pattern that matches counts. Other errors are about the machine.
_ABOUT = (
    ("versions", r"of the handshake|install the same torch-remote on both|agree about this op|protocol version"),
    ("token", r"\btokens?\b|TORCH_REMOTE_TOKEN"),
    ("TLS", r"\bTLS\b|\bcertificate|is not trusted"),
    (
        "address",
        r"no worker at|is not a worker|not the address|cannot be found|not found in time|does not answer|a Unix socket|"
        r"ended the connection|sent nothing|not a frame|cannot start a worker at|cannot connect",
    ),
)
_FIXES = {
    "address": "check the address, and that a worker listens there (torch-remote worker serve)",
    "TLS": "docs/workers.md describes TLS and its variables (On another machine)",
    "token": "set TORCH_REMOTE_TOKEN_FILE to a copy of the file that the worker was given (--token-file)",
    "versions": "install the same torch-remote on both machines",
    "machine": "look at the worker's log (torch-remote worker logs, on its machine)",
}
_WRONG_URL = "correct the URL; docs/machines.md lists the providers and their options"
_REPORT = "please report it, with the output of this command"


def checks(url: str) -> Iterator[Check]:
    """Yields the checks of the worker or machine at a URL, up to the first step that fails."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", _USE],
            capture_output=True, text=True, timeout=_TIMEOUT, env={**os.environ, "TORCH_REMOTE_WORKER": url},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        yield from found(url, printed, f"no answer within {_TIMEOUT:.0f} s", "")
        return
    if result.returncode == 0:
        yield from found(url, result.stdout, "", "")
    elif result.returncode < 0:
        yield from found(url, result.stdout, f"the process that used the worker {describe(result.returncode)}", _REPORT)
    else:
        yield from found(url, result.stdout, *output.reason(result.stderr))


def found(url: str, printed: str, error: str, fix: str) -> Iterator[Check]:
    """The checks, from the steps that a process printed, and the error that ended it, if any."""
    steps: dict[str, dict[str, Any]] = {}
    ops = []
    for line in printed.splitlines():
        if line.startswith('{"step": '):
            step = json.loads(line)
            steps[step["step"]] = step
            if step["step"] == "op":
                ops.append(step)
    if "imported" not in steps:
        yield failed("import", error, fix or "pip install --force-reinstall torch-remote")
    elif "connected" not in steps:
        unknown = "machine" if "checked" in steps else "address"
        about = next((name for name, pattern in _ABOUT if re.search(pattern, error)), unknown)
        if about != "address" and "the worker at" in error:  # it has sent something
            yield ok("address", f"{url} answers")
        yield failed(about, error, fix or (_FIXES[about] if "checked" in steps or about != "address" else _WRONG_URL))
    else:
        yield from _connection(url, **steps["checked"])
        yield _versions(steps["connected"], ops)
        yield _machine(steps["connected"])
        yield from _results(ops, steps.get("done"), error, fix)


def _connection(url: str, provider: str, has_token: bool, **_: Any) -> Iterator[Check]:
    """The checks that a connection has passed."""
    listens = provider in ("unix", "tcp", "tls")
    yield ok("address", f"{url} {'answers' if listens else 'starts a worker'}")
    if provider == "tls":
        yield ok("TLS", "TLS 1.3, and the worker's certificate is trusted here")
    elif provider == "tcp" and has_token:
        yield ok("TLS", "TLS 1.3, with a key from the token")
    elif provider == "tcp":
        yield note("TLS", "the connection is not encrypted, so it works on the loopback interface only")
    if provider in ("tcp", "tls") and has_token:
        yield ok("token", "the worker has the same token")
    elif provider in ("tcp", "tls"):
        yield note("token", "none is set, and the worker requires none")


def _versions(connected: dict[str, Any], ops: list[dict[str, Any]]) -> Check:
    for op in ops:
        if re.search(_ABOUT[0][1], op.get("error", "")):
            said, fix = output.reason(op["error"])
            return failed("versions", said, fix or _FIXES["versions"])
    theirs = re.search(r"ATen (\d+\.\d+)[\w.+]*", connected["worker"])
    runs = theirs[0] if theirs else "no ATen"
    found = f"the formats are the same on both sides; {runs} there, torch {connected['torch']} here"
    if theirs is not None and not connected["torch"].startswith(theirs[1] + "."):
        return note("versions", found, "results may differ; install the same torch on both machines")
    return ok("versions", found)


def _machine(connected: dict[str, Any]) -> Check:
    unit = "processors" if connected["type"] == "cuda" else "cores"
    return ok(
        "machine",
        f"{connected['name']}, {connected['cores']} {unit}, {connected['memory'] / 1e9:.1f} GB; {connected['worker']}; "
        f"import {connected['imported']:.2f} s, first use {connected['seconds']:.2f} s",
    )


def _results(ops: list[dict[str, Any]], done: dict[str, Any] | None, error: str, fix: str) -> Iterator[Check]:
    """Whether the worker's results are right."""
    wrong = [op["op"] for op in ops if op.get("right") is False]
    if wrong:
        yield failed("result", f"wrong results of {', '.join(wrong)}", _REPORT)
    for op in ops:
        if "error" in op and not re.search(_ABOUT[0][1], op["error"]):
            said, its_fix = output.reason(op["error"])
            yield failed("result", f"{op['op']}: {said}", its_fix or _FIXES["machine"])
    if done is None:
        yield failed("result", error, fix or _FIXES["machine"])
    elif all(op.get("right") for op in ops):
        names = ", ".join(op["op"] for op in ops)
        yield ok("result", f"{names} agree with this CPU; round trip {done['round_trip'] * 1e6:.0f} µs")
