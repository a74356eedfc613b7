"""What `torch-remote machines` shows: a file for each machine that runs, of whichever process of this user."""

from __future__ import annotations

import contextlib
import json
import os
import time

from torch_remote.providers.handle import Machine
from torch_remote_cli import state


def write(machine: Machine) -> None:
    """The machine runs. A folder that cannot be written to costs the list an entry, and nothing else."""
    with contextlib.suppress(OSError):
        state.write(
            "machines",
            machine.id,
            {
                "id": machine.id,
                "name": machine.name,
                "provider": machine.spec.provider,
                "gpu": machine.spec.gpu,
                "gpu_count": machine.spec.gpu_count,
                "devices": [f"remote:{index}" for index in machine.device_indices()],
                "started": time.time(),
                "process": os.getpid(),
                "process_began": state.process_began(os.getpid()),
            },
        )


def remove(machine_id: str) -> None:
    """It has ended."""
    with contextlib.suppress(OSError, json.JSONDecodeError):
        state.remove("machines", machine_id)
