"""Checks the parts of this project that depend on the Python version against the headers of other versions. These are
versions without a torch wheel at hand, so nothing can run with them.

bazel run //tests/package:other_pythons -- python3.12 python3.13
bazel run //tests/package:other_pythons -- --only source.cpp python3.12

For each version, every file of python/ is parsed. Every source of frontend/ that includes Python's headers is compiled
(-fsyntax-only; torch's headers are those of .venv).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path(__file__).resolve().parents[2])
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
PYTHON = re.compile(
    r"^(Python\.h|internal/pycore_\w+\.h|pybind11/.*|torch/csrc/python_headers\.h|torch/csrc/utils/pybind\.h)$"
)
PARSE = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
"""


def touches_python(source: Path, seen: set[Path]) -> bool:
    """Whether Python's headers are included, directly or by the project's own headers."""
    if source in seen or not source.exists():
        return False
    seen.add(source)
    names = INCLUDE.findall(source.read_text(encoding="utf-8"))
    return any(PYTHON.fullmatch(name) or touches_python(ROOT / name, seen) for name in names)


def ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def complaint(command: dict, include: str) -> str:
    """The compiler's errors for a source with these Python headers; empty if there are none."""
    arguments = []
    for argument in command["arguments"]:
        # The build's own Python headers must not be used.
        arguments.append(include if argument.endswith("external/python/include") else argument)
    output = arguments.index("-o")
    del arguments[output : output + 2]
    arguments = [a for a in arguments if not a.startswith("-M") and not a.endswith((".d", ".o"))]
    run = subprocess.run(
        [*arguments, "-fsyntax-only"], cwd=command["directory"], stderr=subprocess.PIPE, text=True, errors="replace"
    )
    return run.stderr if run.returncode != 0 or "warning:" in run.stderr else ""


def check(python: str, commands: list[dict], jobs: int) -> int:
    version = ask(python, "import sys; print(sys.version.split()[0])")
    failed = 0
    parsed = subprocess.run([python, "-c", PARSE, str(ROOT / "python")], stderr=subprocess.PIPE, text=True)
    failed += parsed.returncode != 0
    print(f"{version}: python/: {'parsed' if parsed.returncode == 0 else parsed.stderr}", flush=True)
    include = ask(python, "import sysconfig; print(sysconfig.get_path('include'))")
    with ThreadPoolExecutor(jobs) as pool:
        for command, said in zip(commands, pool.map(lambda c: complaint(c, include), commands), strict=True):
            name = Path(command["file"]).relative_to(ROOT)
            failed += said != ""
            print(f"{version}: {name}: {'compiled' if said == '' else said}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--only", default="", help="part of a source's name")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    subprocess.run([ROOT / "bazel/compile_commands.py", "//frontend/..."], check=True)
    commands = [
        command
        for command in json.loads((ROOT / "compile_commands.json").read_text())
        if "/frontend/" in command["file"]
        and args.only in command["file"]
        and not command["file"].endswith(("_test.cpp", "_benchmark.cpp"))
        and touches_python(Path(command["file"]), set())
    ]
    if not commands:
        print("other_pythons: no such source", file=sys.stderr)
        return 2
    return 1 if sum(check(python, commands, args.jobs) for python in args.python) else 0


if __name__ == "__main__":
    sys.exit(main())
