"""The data of `torch-remote machines`: one file per running machine, of any process of this user."""

from __future__ import annotations

import contextlib
import json
import os
import time

from torch_remote.providers.handle import Machine
from torch_remote_cli import state


def write(machine: Machine) -> None:
    """Records that the machine runs. If the folder cannot be written, the list only lacks an entry."""
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
    """Removes the record of a machine that has ended."""
    with contextlib.suppress(OSError, json.JSONDecodeError):
        state.remove("machines", machine_id)
