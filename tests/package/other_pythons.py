"""Checks the project with other Pythons than that of .venv:

bazel run //tests/package:other_pythons -- python3.12 python3.13 python3.14
bazel run //tests/package:other_pythons -- --quick python3.14
bazel run //tests/package:other_pythons -- --only module.cpp python3.12

For each Python, which needs its headers:
1. It parses every file of python/, without a warning.
2. The reader of frames (frontend/source), which reads CPython's internal structures, is compiled for it, and its test
   runs. This needs no torch.
3. Every source of frontend/ that includes Python's headers is compiled with its headers (-fsyntax-only; torch's headers
   are those of .venv). This takes long; --quick leaves it out.
4. If torch is installed for it, torch_remote must be, too: a script imports it and compares results with the CPU's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path(__file__).resolve().parents[2])
SCRIPT = (ROOT / "tests/package/smoke.py").read_text()
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
PYTHON = re.compile(
    r"^(Python\.h|internal/pycore_\w+\.h|pybind11/.*|torch/csrc/python_headers\.h|torch/csrc/utils/pybind\.h)$"
)
PARSE = """
import pathlib, sys, warnings
warnings.simplefilter("error")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
"""

TORCH = "import importlib.util as u; print(*(name for name in ('torch', 'torch_remote') if u.find_spec(name)))"


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


def commands_of(only: str) -> list[dict]:
    """The commands that compile the sources of frontend/ which include Python's headers."""
    subprocess.run([ROOT / "bazel/compile_commands.py", "//frontend/..."], check=True)
    return [
        command
        for command in json.loads((ROOT / "compile_commands.json").read_text())
        if "/frontend/" in command["file"]
        and only in command["file"]
        and not command["file"].endswith(("_test.cpp", "_benchmark.cpp"))
        and touches_python(Path(command["file"]), set())
    ]


def said_by(*command: object, **variables: str) -> str:
    """What a command that fails printed; empty if it succeeds."""
    run = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return run.stdout.strip() or f"exit status {run.returncode}" if run.returncode != 0 else ""


def frames(python: str, include: str) -> str:
    """Runs the test of the reader of frames. Returns what failed."""
    source = ROOT / "frontend/source"
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.so"
        failed = said_by(
            *(os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-Wall", "-Werror", "-fPIC", "-shared"),
            *("-fvisibility=hidden", f"-I{ROOT}", "-isystem", include),
            *(source / name for name in ("source.cpp", "user_frame.cpp", "probe.cpp")),
            *("-o", probe),
        )
        return failed or said_by(python, source / "source_test.py", TORCH_REMOTE_PROBE=str(probe))


def check(python: str, commands: list[dict], jobs: int) -> int:
    """Returns the number of failures."""
    version = ask(python, "import sys; print(sys.version.split()[0])")
    include = ask(python, "import sysconfig; print(sysconfig.get_path('include'))")
    failures = 0

    def tell(what: str, right: str, failed: str) -> None:
        nonlocal failures
        failures += failed != ""
        print(f"{version}: {what}: {failed or right}", flush=True)

    tell("python/", "parsed", said_by(python, "-c", PARSE, ROOT / "python"))
    tell("frontend/source", "its test passes", frames(python, include))
    with ThreadPoolExecutor(jobs) as pool:
        for command, said in zip(commands, pool.map(lambda c: complaint(c, include), commands), strict=True):
            tell(str(Path(command["file"]).relative_to(ROOT)), "compiled", said)
    installed = ask(python, TORCH).split()
    if "torch" not in installed:
        print(f"{version}: torch is not installed: the package was not imported", flush=True)
    elif "torch_remote" not in installed:
        tell(
            "torch_remote",
            "",
            f"not installed: install the wheel of TORCH_REMOTE_PYTHON={python} ./bazelw build //:wheel",
        )
    else:
        tell("torch_remote", "a script on the device has the CPU's results", said_by(python, "-c", SCRIPT))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--only", default="", help="part of the name of the sources to compile")
    parser.add_argument("--quick", action="store_true", help="compile no other sources than the reader of frames")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    commands = [] if args.quick else commands_of(args.only)
    if not commands and not args.quick:
        print("other_pythons: no such source", file=sys.stderr)
        return 2
    return 1 if sum(check(python, commands, args.jobs) for python in args.python) else 0


if __name__ == "__main__":
    sys.exit(main())
