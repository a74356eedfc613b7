"""Runs the examples of a page: its fenced blocks, `python name=FILE` and `console`. Indented blocks are not run."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import torch

import torch_remote

Block = tuple[str, str, str]


def blocks(text: str) -> list[Block]:
    """(language, file name, text) of each block."""
    return re.findall(r"^```(\w+)(?: name=(\S+))?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def comparable(text: str) -> list[str]:
    """The lines without parts that differ between runs: numbers (except for lines of scripts), units, folders,
    columns."""
    text = re.sub(r"(?<![\w.])/[\w./-]*/", "", text)
    text = re.sub(r"\.py:(\d+)", lambda m: ".py:" + "".join(chr(ord("a") + int(d)) for d in m[1]), text)
    text = re.sub(r"\bnode \d+", "node", text)
    text = re.sub(r"\b0x[0-9a-f]+", "N", text)
    text = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?( (ns|µs|us|ms|s|KB|B)\b)?", "N", text)
    return [" ".join(line.split()) for line in text.rstrip().splitlines()]


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines are the expected ones. "..." stands for any number of lines."""
    if not expected:
        return not actual
    if expected[0] == "...":
        return any(matches(expected[1:], actual[i:]) for i in range(len(actual) + 1))
    return bool(actual) and expected[0] == actual[0] and matches(expected[1:], actual[1:])


def environment(folder: Path, programs: dict[str, Path]) -> dict[str, str]:
    """The environment, whose path has `python`, the installed programs and `programs`."""
    package = Path(torch_remote.__file__).parent
    path = folder / ".bin"
    path.mkdir()
    names = ("remote-dump", "remote-opt", "remote-viz", "remote-replay", "remote-reduce", "torch-remote-worker")
    for name, file in {**{name: package / "bin" / name for name in names}, **programs}.items():
        (path / name).symlink_to(file.resolve())
    (path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (path / "torch-remote").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch_remote_cli "$@"\n')
    for name in ("python", "torch-remote"):
        (path / name).chmod(0o755)
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": str(folder),
        "PATH": f"{path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
        "TORCH_REMOTE_PACKAGE": str(package.resolve()),
        "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib"),
    }


def check(page: list[Block], folder: Path, variables: dict[str, str]) -> None:
    """Runs the blocks in order and compares their output. Background processes that they leave end with this
    function."""
    groups = []
    try:
        for language, name, text in page:
            if language == "python":
                assert name, f"a script without a name:\n{text}"
                (folder / name).write_text(text)
                continue
            assert language == "console"
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
                with open(folder / ".output", "w+") as output:
                    process = subprocess.Popen(
                        command, shell=True, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )  # fmt: skip
                    groups.append(process.pid)
                    process.wait(timeout=120)
                    output.seek(0)
                    # A line that torch's CUDA builds log on machines without a GPU.
                    printed = re.sub(r".*No CUDA runtime is found, using CUDA_HOME=.*\n", "", output.read())
                assert matches(comparable(expected), comparable(printed)), f"$ {command}\n{printed}"
    finally:
        for group in groups:
            with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                os.killpg(group, signal.SIGKILL)
