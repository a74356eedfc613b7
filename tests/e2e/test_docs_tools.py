"""The worked examples of docs/tools.md do what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_remote

PAGE = Path("docs/tools.md")


def sections():
    """Title -> blocks of (language, file name, text)."""
    text = PAGE.read_text().split("## Worked examples", 1)[1].split("\n## ", 1)[0]
    titles = re.split(r"^### (.*)$", text, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^```(\w+)(?: name=(\S+))?\n(.*?)^```", body, flags=re.MULTILINE | re.DOTALL)
        for title, body in zip(titles[::2], titles[1::2], strict=True)
    }


SECTIONS = sections() if PAGE.exists() else {}


def comparable(text):
    """Lines without what differs from run to run: numbers (but for lines of scripts), units, folders, columns."""
    text = re.sub(r"(?<![\w.])/[\w./-]*/", "", text)
    text = re.sub(r"\.py:(\d+)", lambda m: ".py:" + "".join(chr(ord("a") + int(d)) for d in m[1]), text)
    text = re.sub(r"\bnode \d+", "node", text)
    text = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?( (ns|µs|ms|s|KB|B)\b)?", "N", text)
    return [" ".join(line.split()) for line in text.rstrip().splitlines()]


def matches(expected, actual):
    """Whether the lines are the expected ones, where "..." is any number of lines."""
    if not expected:
        return not actual
    if expected[0] == "...":
        return any(matches(expected[1:], actual[i:]) for i in range(len(actual) + 1))
    return bool(actual) and expected[0] == actual[0] and matches(expected[1:], actual[1:])


@pytest.fixture
def environment(tmp_path):
    package = Path(torch_remote.__file__).parent
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dump", "opt", "viz"):
        (programs / f"remote-{name}").symlink_to((package / "bin" / f"remote-{name}").resolve())
    for name in ("replay", "reduce"):
        (programs / f"remote-{name}").symlink_to(Path(f"tools/testing/remote-{name}-miscompiling").resolve())
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry),
        "TORCH_REMOTE_PACKAGE": str(package.resolve()),
        "TORCH_REMOTE_TORCH_LIB": str(Path(torch.__file__).parent / "lib"),
    }


def test_the_page_is_found():
    assert len(SECTIONS) == 4


@pytest.mark.parametrize("title", SECTIONS)
def test_example(title, tmp_path, environment):
    for language, name, text in SECTIONS[title]:
        if language == "python":
            (tmp_path / name).write_text(text)
            continue
        assert language == "console"
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
            run = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, timeout=120, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert matches(comparable(expected), comparable(run.stdout)), f"$ {command}\n{run.stdout}"
