"""A piece of a part, its outcome, and the scripts that gates run as clients."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import textwrap
from pathlib import Path

from python_processes import run_python

from tests.gates.faults import environment

TOKEN = "5c0ffee5c0ffee5c0ffee5c0ffee5c0ffee"


@dataclasses.dataclass
class Piece:
    """A piece of a part: `count` units, beginning with unit `first`."""

    folder: Path
    first: int
    count: int

    @property
    def seed(self) -> int:
        return self.first + 1

    @property
    def random(self) -> random.Random:
        return random.Random(self.seed)


@dataclasses.dataclass
class Outcome:
    """The result of a piece. `times` are compared with the part's limit; `worst` is published if there are none."""

    count: int
    wrong: int
    times: list[float] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    text: str = ""


def script(source: str, *arguments: object, timeout: float = 3000, **variables: object) -> str:
    done = run_python("-c", textwrap.dedent(source), *arguments, env=environment(**variables), timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


def prepare(folder: Path) -> None:
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    subprocess.run([os.environ.get("CERTIFICATES", "remote/net/testing/make_certificates"), folder], check=True)


TALK = """
    import os, sys, time, torch, torch_remote
    x = torch.zeros((), device="remote")
    x.item()
    print("ready", flush=True)
    sum = 0
    for line in sys.stdin:
        begin = time.monotonic()
        sum += int(line)
        x += int(line)
        print(x.item() == sum, time.monotonic() - begin, flush=True)
"""
