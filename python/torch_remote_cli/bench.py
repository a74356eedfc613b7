"""`torch-remote bench`: measures how fast a machine and the connection to it are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated

import typer

from torch_remote_cli import output
from torch_remote_cli.exit_status import describe

# Each figure is the median of several measurements, after one that does not count.
_SCRIPT = """
import json, sys, time
import torch, torch_remote

seconds = float(sys.argv[1])

def middle(call, enough):
    call()
    times = []
    end = time.perf_counter() + enough
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]

began = time.perf_counter()
x = torch.ones(8, device="remote")
x.sum().item()
found = {"first_use_s": time.perf_counter() - began}
found["round_trip_us"] = 1e6 * middle(lambda: (x + 1).sum().item(), seconds)

big = torch.empty(16 << 20)
there = big.to("remote")
torch.remote.synchronize()

def up():
    there.copy_(big)
    torch.remote.synchronize()

found["up_mb_per_s"] = big.nbytes / 1e6 / middle(up, seconds)
found["down_mb_per_s"] = big.nbytes / 1e6 / middle(there.cpu, seconds)

a = torch.randn(1024, 1024, device="remote")
def multiply():
    b = a
    for _ in range(4):
        b = b @ a
    b.sum().item()

found["matmul_gflops"] = 4 * 2 * 1024**3 / 1e9 / middle(multiply, seconds)

def small():
    y = x
    for _ in range(1000):
        y = y * 1.0001
    y.sum().item()

found["ops_per_s"] = 1000 / middle(small, seconds)
found["worker"] = torch.remote.get_device_properties().worker
print(json.dumps(found))
"""

_ROWS = [
    ("first use", "first_use_s", "s", 2),
    ("round trip", "round_trip_us", "µs", 0),
    ("to the worker", "up_mb_per_s", "MB/s", 0),
    ("from the worker", "down_mb_per_s", "MB/s", 0),
    ("1024 x 1024 matmul", "matmul_gflops", "GFLOP/s", 1),
    ("small ops", "ops_per_s", "a second", 0),
]


def bench(
    on: Annotated[str | None, typer.Option(help="The machine; default: TORCH_REMOTE_WORKER, local.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds to measure for each figure.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure round trips, bandwidth each way, matmuls and small ops."""
    environment = dict(os.environ)
    if on is not None:
        environment["TORCH_REMOTE_WORKER"] = on
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(seconds)], capture_output=True, text=True, env=environment
    )
    if result.returncode != 0:
        said, fix = output.reason(result.stderr)
        if result.returncode < 0:
            said, fix = f"the process that measures {describe(result.returncode)}", ""
        doctor = "torch-remote doctor" + (f" --on {on}" if on else "")
        output.fail(f"{said}; {fix or f'{doctor} searches for the cause'}")
    print(result.stderr, end="", file=sys.stderr)
    found = json.loads(result.stdout.splitlines()[-1])
    if as_json:
        return output.print_json(found)
    print(found["worker"])
    rows = [[name, f"{found[key]:,.{digits}f} {unit}"] for name, key, unit, digits in _ROWS]
    output.console.print(output.table(["", ""], rows))
    return None
