"""Runs clients and workers on x86-64 and on aarch64, each with each: cross_sessions.py SYSROOT [--only PART]

bazel/cross.sh builds both and calls this. Programs for aarch64 run under qemu-user. The parts are
  smoke      a script that compares with CPU (smoke.py)
  exact      a script whose results must have the same bits on all four pairs (exact.py)
  digits     examples/train_digits.py, client and worker on aarch64
  ops        300 ops of torch's op_db, compared with CPU (op_samples.py), client and worker on aarch64
The exit status is 1 if a part fails.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from pairs import End, end_of, last_line, run

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
PARTS = ("smoke", "exact", "digits", "ops")


def gather(built: Path, site: Path) -> Path:
    """Copies the package as bazel built it, with the CPU's worker, into `site`."""
    for source in (ROOT / "python", built):
        shutil.copytree(
            source, site, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.o", "*.a", "*.params", "_objs")
        )
    package = site / "torch_remote"
    for folder in ("bin", "lib"):
        shutil.copytree(package / "cpu" / folder, package / folder, dirs_exist_ok=True)
    return site


def main() -> int:
    sysroot, *options = sys.argv[1:]
    parts = options[1:] if options[:1] == ["--only"] else PARTS
    root = Path(sysroot)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        x86 = end_of(sys.executable, gather(ROOT / "bazel-out/k8-opt/bin/python", Path(folder) / "x86-64"))
        x86 = replace(x86, name="x86-64")
        site = gather(ROOT / "bazel-out/aarch64-opt/bin/python", Path(folder) / "aarch64")
        arm = End("aarch64", str(root / "usr/bin/python3.11"), site, root / "python/torch", (root / "python",))
        pairs = [(worker, client) for worker in (x86, arm) for client in (x86, arm)]

        def part(what: str, worker: End, client: End, arguments: list[str], seconds: float = 3600) -> str:
            nonlocal wrong
            done = run(worker, client, arguments, seconds)
            wrong += done.returncode != 0
            if done.returncode != 0:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
            print(f"{what}, worker on {worker.name}, client on {client.name}: {last_line(done)}", flush=True)
            return last_line(done)

        if "smoke" in parts:
            for worker, client in pairs:
                part("smoke", worker, client, [str(FOLDER / "smoke.py")])
        if "exact" in parts:
            found = {part("exact", worker, client, [str(FOLDER / "exact.py")]) for worker, client in pairs}
            wrong += len(found) != 1
        if "digits" in parts:
            part("digits", arm, arm, [str(ROOT / "examples/train_digits.py"), "--device", "remote", "--epochs", "8"])
        if "ops" in parts:
            with_harness = replace(arm, paths=(*arm.paths, ROOT / "tests/ops"))
            part("ops", arm, with_harness, [str(FOLDER / "op_samples.py"), "300"])
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
