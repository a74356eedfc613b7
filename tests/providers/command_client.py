"""Clients of workers that the command torch-remote starts, and its results."""

import contextlib
import subprocess
import sys

from python_processes import Python

CLIENT = """
import sys, torch, torch_remote
x = torch.arange(4.0, device="remote")
x.sum().item()
print("ready", flush=True)
sys.stdin.readline()
assert x.sum().item() == 6
"""


def ok(result):
    status, output, errors = result
    assert status == 0, output + errors
    return output


@contextlib.contextmanager
def client(environment, url, **variables):
    with Python(
        [sys.executable, "-c", CLIENT], env={**environment, "TORCH_REMOTE_WORKER": url, **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 0
