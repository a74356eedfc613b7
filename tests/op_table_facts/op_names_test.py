"""Only the op table (ir/ops/*.toml) names ops. op_names_allowed.toml lists the remaining names in code, with a count
per file; a count may only shrink."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import op_table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ALLOWED = HERE / "op_names_allowed.toml"
FOLDERS = ("frontend", "ir", "passes", "python", "remote", "tools", "worker")
# The table itself, and tests.
APART = re.compile(r"^ir/ops/(generator/|[^/]*\.toml$)|(^|/)testing[./]|_test\.\w+$|(^|/)test_\w+\.py$")
QUALIFIED = re.compile(r'"(?:aten|prims)::[^"\s]*"')
BARE_FOLDERS = ("frontend/", "passes/", "worker/")
COMMENT = re.compile(r"(^|\s)(//|#).*", re.MULTILINE)
# A bare name counts if it is compared, begins a row of a list, or registers a kernel, in components whose code is about
# ops. Elsewhere, words like "max" have other meanings.
BARE = re.compile(r'(?:[=!]= *|starts_with\(|impl\(|\{)"([a-z_0-9]+(?:\.[A-Za-z_0-9]+)?)"')


def count_names(text: str, names: set[str]) -> tuple[int, int]:
    """The number of string literals with a namespace, and of bare names of ops."""
    code = COMMENT.sub("", text)
    return len(QUALIFIED.findall(code)), sum(name in names for name in BARE.findall(code))


def counts() -> dict[str, tuple[int, int]]:
    listing = subprocess.run(
        ["git", "ls-files", "--", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    names = {name.removeprefix("aten::") for name in op_table.ops()}
    names |= {name.partition(".")[0] for name in names}
    found = {}
    for path in listing:
        if not path.endswith((".cpp", ".h", ".inc", ".py")) or APART.search(path) or not (ROOT / path).exists():
            continue
        bare = names if path.startswith(BARE_FOLDERS) else set()
        seen = count_names((ROOT / path).read_text(encoding="utf-8"), bare)
        if any(seen):
            found[path] = seen
    return found


def complaints(found: dict[str, tuple[int, int]], allowed: dict[str, tuple[int, int]]) -> list[str]:
    lines = []
    for path in sorted(found.keys() | allowed.keys()):
        for what, have, may in zip(
            ("with their namespace", "bare"), found.get(path, (0, 0)), allowed.get(path, (0, 0)), strict=True
        ):
            if have > may:
                lines.append(f"{path} names {have} ops ({what}), allowed are {may}: make it a column of ir/ops/*.toml")
            elif have < may:
                lines.append(f"{path} names {have} ops ({what}), allowed are {may}: lower its count in {ALLOWED.name}")
    return lines


def test_ops_are_named_in_the_table_only():
    table = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    allowed = {path: tuple(row["counts"]) for path, row in table.items()}
    assert [path for path, row in table.items() if not row["why"]] == []
    found = counts()
    assert len(op_table.ops()) > 1000
    assert complaints(found, allowed) == []


def test_a_new_name_and_a_count_that_is_too_high_are_told():
    names = {"add.Tensor", "add", "relu"}
    code = 'if (name == "aten::relu") x();\nif (base == "add") y();\n{"relu", 1}\nlog("add");  // "aten::add"\n'
    assert count_names(code, names) == (1, 2)
    assert "make it a column" in complaints({"a.cpp": (1, 2)}, {"a.cpp": (1, 1)})[0]
    assert "make it a column" in complaints({"b.cpp": (1, 0)}, {})[0]
    assert "lower its count" in complaints({"a.cpp": (1, 0)}, {"a.cpp": (1, 1)})[0]
    assert "lower its count" in complaints({}, {"gone.cpp": (3, 0)})[0]
    assert complaints({"a.cpp": (1, 1)}, {"a.cpp": (1, 1)}) == []
