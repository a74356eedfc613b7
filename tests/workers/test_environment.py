"""TORCH_REMOTE_* variables: the list agrees with the documentation page, and invalid values are errors."""

import re
from pathlib import Path

import pytest

from torch_remote import _C

PAGE = Path("docs/workers.md")

FIRST_USE = """
    import torch, torch_remote  # a wrong variable keeps nobody from importing
    torch.ones(2).sum()
    torch.device("remote")
    print("imported")
    try:
        print(torch.ones(2, device="remote").sum().item())
    except RuntimeError as error:
        print(error)
        raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TORCH_REMOTE_LOG", "nonsense", "TORCH_REMOTE_LOG='nonsense' is not a setting; use 'flush', or unset it"),
        ("TORCH_REMOTE_SYNC", "maybe", "TORCH_REMOTE_SYNC='maybe' is not a setting; use '0' (the default) or '1'"),
        ("TORCH_REMOTE_VERIFY", "on", "TORCH_REMOTE_VERIFY='on' is not a setting; use '0' (the default) or '1'"),
        (
            "TORCH_REMOTE_FALLBACK",
            "bla",
            "TORCH_REMOTE_FALLBACK='bla' is not a setting; use 'error' (the default), 'warn' or 'allow'",
        ),
        (
            "TORCH_REMOTE_WORKER_THREADS",
            "all",
            "TORCH_REMOTE_WORKER_THREADS='all' is not a setting; use an integer",
        ),
        (
            "TORCH_REMOTE_WORKR",
            "local",
            "TORCH_REMOTE_WORKR is set, but is not a variable of torch_remote; did you mean",
        ),
        ("TORCH_REMOTE_ANYTHING_ELSE", "1", "TORCH_REMOTE_ANYTHING_ELSE is set, but is not a variable of torch_remote"),
    ],
)
def test_what_is_set_wrongly_is_an_error_at_first_use(script, remote, name, value, message):
    output = script(FIRST_USE, status=3, **{name: value}).stdout
    assert output.startswith("imported\n") and f"remote: {message}" in output, output


def test_right_settings_and_empty_ones_are_taken(script, remote):
    output = script(
        FIRST_USE,
        TORCH_REMOTE_SYNC="",
        TORCH_REMOTE_VERIFY="1",
        TORCH_REMOTE_WORKER_THREADS="1",
        TORCH_REMOTE_WORKER_LOG="error",
    ).stdout
    assert output == "imported\n2.0\n"


def _row(name: str, allowed: str, meaning: str) -> str:
    """The variable's line in the table of the page."""
    words = [f"`{word}`" for word in allowed.split("|") if word]
    if allowed == "number":
        values = "a number, from 1"
    elif not words:
        values = "text"
    else:
        values = ", ".join(words) if allowed.startswith("|") else ", ".join([f"{words[0]} (default)", *words[1:]])
    return f"| `{name}` | {values} | {meaning} |"


def test_the_page_has_every_variable_and_no_other():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `TORCH_REMOTE_")]
    assert rows == [_row(*variable) for variable in _C.environment_variables()]


@pytest.mark.parametrize("page", ["README.md", *map(str, sorted(Path("docs").rglob("*.md")))])
def test_pages_name_no_variable_that_does_not_exist(page):
    known = {name for name, _, _ in _C.environment_variables()}
    named = set(re.findall(r"\bTORCH_REMOTE_(?!TEST_)[A-Z_]*[A-Z]\b", Path(page).read_text()))
    assert named <= known, named - known
