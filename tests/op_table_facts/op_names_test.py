"""Only the op table (ir/ops/*.toml) names ops. op_names_allowed.toml lists the remaining names in code, with a count
per file; a count may only shrink. ir/ops/README.md states the sum."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import op_table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ALLOWED = HERE / "op_names_allowed.toml"
README = ROOT / "ir" / "ops" / "README.md"
FOLDERS = ("codegen", "frontend", "ir", "passes", "python", "remote", "tools", "worker")
# The table itself, and tests.
APART = re.compile(r"^ir/ops/(generator/|[^/]*\.toml$)|(^|/)testing[./]|_test\.\w+$|(^|/)test_\w+\.py$")
# A literal that begins with a name, and may go on with arguments.
QUALIFIED = re.compile(r'"(?:aten|prims|remote)::[^"\n]*"')
# Bare names count in components whose code is about ops. Elsewhere, words like "max" have other meanings.
BARE_FOLDERS = ("frontend/", "passes/", "python/torch_remote/compile/", "worker/")
COMMENT = re.compile(r"(^|\s)(//|#).*", re.MULTILINE)
NAME = r'"([a-z_0-9]+(?:\.[A-Za-z_0-9]+)?)"'
# A bare name counts if it is compared, begins a row of a list, registers a kernel, or is a constant.
BARE = re.compile(rf"(?:[=!]= *|(?:starts|ends)_with\(|impl\(|\{{|\b(?:k[A-Z]\w*|_?[A-Z][A-Z_]+) = ){NAME}")
# So does each name in a list of strings.
LIST = re.compile(r'[\[{(]\s*"[^"\n]*"(?:\s*,\s*"[^"\n]*")+\s*,?\s*[\]})]')


def count_names(text: str, names: set[str]) -> tuple[int, int]:
    """The number of string literals with a namespace, and of bare names of ops."""
    code = COMMENT.sub("", text)
    found = [(match.start(1), match[1]) for match in BARE.finditer(code)]
    for listed in LIST.finditer(code):
        found += [(listed.start() + match.start(1), match[1]) for match in re.finditer(NAME, listed[0])]
    return len(QUALIFIED.findall(code)), len({place for place, name in found if name in names})


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


def test_the_readme_states_how_many_names_are_left():
    found = counts()
    literals = sum(sum(seen) for seen in found.values())
    sentence = f"{literals} string literals in {len(found)} files still name ops"
    assert sentence in " ".join(README.read_text(encoding="utf-8").split()), f"write in {README.name}: {sentence}"


def test_names_in_constants_and_lists_are_counted():
    names = {"add", "sub", "mul.out", "relu"}
    assert count_names('constexpr std::string_view kName = "relu";', names) == (0, 1)
    assert count_names('constexpr const char* kNames[] = {"add", "sum of all", "sub",\n  "mul.out"};', names) == (0, 3)
    assert count_names('_NAMES = ["add", "sub"]\n_NAME = "relu"', names) == (0, 3)
    assert count_names('f(library, {"add"}); if (name.ends_with("relu")) g("sub", 1);', names) == (0, 2)
    assert count_names('constexpr auto kOp = "remote::rnn"; h("aten::add.Tensor($0, $1)");', names) == (2, 0)


def test_a_new_name_and_a_count_that_is_too_high_are_told():
    names = {"add.Tensor", "add", "relu"}
    code = 'if (name == "aten::relu") x();\nif (base == "add") y();\n{"relu", 1}\nlog("add");  // "aten::add"\n'
    assert count_names(code, names) == (1, 2)
    assert "make it a column" in complaints({"a.cpp": (1, 2)}, {"a.cpp": (1, 1)})[0]
    assert "make it a column" in complaints({"b.cpp": (1, 0)}, {})[0]
    assert "lower its count" in complaints({"a.cpp": (1, 0)}, {"a.cpp": (1, 1)})[0]
    assert "lower its count" in complaints({}, {"gone.cpp": (3, 0)})[0]
    assert complaints({"a.cpp": (1, 1)}, {"a.cpp": (1, 1)}) == []
