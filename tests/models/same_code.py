"""Compares the programs and the machine code that two builds of this tree produce for the same models.

    ./bazelw build //tests/models:same_code                     in the other checkout
    ./bazelw run //tests/models:same_code -- OTHER [MODEL ...]

OTHER is the folder of the other checkout. Without MODEL, all models of zoo.py train three steps and predict once. A
program is compared as the text of its graph after all passes. A kernel is compared as LoopIR and machine code, byte for
byte. The exit status is 1 if anything differs. Use it for changes that must change nothing.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "bazel-bin/tests/models/same_code.runfiles/torch_remote_src/python"
STEPS = 3


def train(name: str) -> None:
    import torch
    import zoo

    import torch_remote  # noqa: F401

    torch.manual_seed(0)
    model = zoo.FIXED_MODELS[name]
    net = model.make().to("remote")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        return model.loss(net, {n: x.to("remote") for n, x in model.batch(2, 16).items()})

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        loss().item()


def kernels(folder: Path) -> dict[bytes, bytes]:
    """Kernels by LoopIR, target and variant; values are machine code. worker/runner/kernel_files.cpp defines the file
    format."""
    found = {}
    for path in folder.glob("*.kernel"):
        data = path.read_bytes()
        magic, _, text, size = struct.unpack_from("<8sQII", data)
        assert magic == b"TRKERN02" and len(data) == 24 + text + size, path
        found[data[24 : 24 + text]] = data[24 + text :]
    return found


def made(package: Path, name: str, folder: Path) -> tuple[str, dict[bytes, bytes]]:
    """The texts of all programs, and the kernels."""
    capture, cache = folder / "capture", folder / "kernels"
    environment = os.environ | {
        "PYTHONPATH": f"{package}:{Path(__file__).parent}",
        "TORCH_REMOTE_CAPTURE": str(capture),
        "TORCH_REMOTE_KERNEL_CACHE": str(cache),
        "TORCH_REMOTE_WAIT_COMPILE": "1",
    }
    subprocess.run([sys.executable, __file__, "--train", name], env=environment, check=True)
    dump = [package / "torch_remote/bin/remote-dump", capture, "--all"]
    text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    return text[text.index("\n") + 1 :], kernels(cache)  # the first line has the time


def main() -> int:
    import zoo

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"one of {', '.join(zoo.FIXED_MODELS)}")
    options = parser.parse_args()
    if unknown := set(options.models) - set(zoo.FIXED_MODELS):
        parser.error(f"no model is named {', '.join(sorted(unknown))}; there are {', '.join(zoo.FIXED_MODELS)}")
    import torch_remote

    own, other = Path(torch_remote.__file__).parent.parent, options.other / PACKAGE
    if not (other / "torch_remote").exists():
        parser.error(f"{other} does not exist; run ./bazelw build //tests/models:same_code in {options.other}")
    different = programs = machine_code = size = 0
    for name in options.models or zoo.FIXED_MODELS:
        with tempfile.TemporaryDirectory() as own_folder, tempfile.TemporaryDirectory() as other_folder:
            ours, theirs = made(own, name, Path(own_folder)), made(other, name, Path(other_folder))
        programs += len(ours[0].splitlines())
        machine_code += len(ours[1])
        size += sum(map(len, ours[1].values()))
        assert ours[0] and ours[1], f"{name}: no programs or no kernels"
        differences = [
            f"{what} of {name} differ"
            for what, same in (
                ("programs", ours[0] == theirs[0]),
                ("sets of kernels", ours[1].keys() == theirs[1].keys()),
                ("machine code", all(theirs[1].get(text, code) == code for text, code in ours[1].items())),
            )
            if not same
        ]
        different += bool(differences)
        print(f"{name}: {', '.join(differences) or 'the same'}", flush=True)
    print(f"{programs:,} lines of programs, {machine_code:,} kernels of {size:,} bytes: {different} models differ")
    return min(different, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2])
    else:
        sys.exit(main())
