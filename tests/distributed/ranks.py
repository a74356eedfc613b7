"""Runs a function of a test in several processes, the ranks of a group."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from python_processes import Python

SECONDS = 60


def python_path() -> str:
    paths = [str(Path(__file__).parent), *(str(Path(entry).resolve()) for entry in sys.path if entry)]
    return os.pathsep.join(paths)


def run(
    test: str,
    function: str,
    size: int,
    folder: Path,
    *arguments: str,
    backend: str = "cpu:gloo,remote:remote",
    timeout: float = SECONDS,
    check: bool = True,
) -> list[str]:
    """Returns the output of each rank. `test` is the file with `function(rank, size, *arguments)`."""
    processes = [
        Python(
            [sys.executable, __file__, test, function, backend, str(timeout), str(folder / "store"), *arguments],
            env=os.environ
            | {
                "PYTHONPATH": python_path(),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "OMP_NUM_THREADS": "1",  # for the rank's worker; main() sets the rank's own
            },
            ignores=("OMP_NUM_THREADS",),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if check:
        # of all ranks, because one rank's failure makes others fail
        codes = [process.returncode for process in processes]
        said = "\n".join(f"rank {rank}, status {codes[rank]}:\n{output}" for rank, output in enumerate(outputs))
        assert not any(codes), f"{function}:\n{said}"
    return outputs


def main() -> None:
    path, function, backend, timeout, store, *arguments = sys.argv[1:]
    import torch_remote  # noqa: F401

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        backend or None,
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=float(timeout)),
    )
    space: dict[str, object] = {"__name__": "ranks", "__file__": path}
    sys.modules["ranks"] = sys.modules["__main__"]
    exec(compile(Path(path).read_text(), path, "exec"), space)
    space[function](rank, size, *arguments)  # type: ignore[operator]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
