"""Lightning (2.6; as `lightning` or as `pytorch_lightning` and `lightning_fabric`): Trainer, Fabric and their CLI.

accelerator="remote" is registered as Lightning documents it for third-party devices. In addition, Lightning
hard-codes in pytorch/trainer/connectors/accelerator_connector.py and fabric/connector.py:
- _choose_auto_accelerator (the Trainer's by fabric/utilities/device_parser.py, _select_auto_accelerator): "auto" is
  XLA, MPS, CUDA or the CPU.
- _choose_strategy: one device is a CUDA or MPS device, or else "cpu".
- _check_and_init_precision: mixed precision is for "cpu", "mps" or else "cuda".
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_remote import remote
from torch_remote.integrations.upstream import UnknownUpstream, existing, replace

__all__ = ["bridge"]


def bridge(module: ModuleType) -> None:
    """Changes one of Lightning's modules."""
    if module.__name__.endswith("device_parser"):
        existing(module, "_select_auto_accelerator")
        replace(module, "_select_auto_accelerator", lambda: "remote")
    elif module.__name__.endswith("accelerator_connector"):
        existing(module, "AcceleratorRegistry", "_AcceleratorConnector")
        _change_connector(module, module.AcceleratorRegistry, module._AcceleratorConnector, "_precision_flag")
    else:
        existing(module, "ACCELERATOR_REGISTRY", "_Connector")
        _change_connector(module, module.ACCELERATOR_REGISTRY, module._Connector, "_precision_input")


def _accelerator(base: Any) -> type:
    """The Accelerator class of this device, derived from Trainer's or Fabric's base class."""

    class RemoteAccelerator(base):
        """One device `remote`."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "remote":
                raise ValueError(
                    f"remote: accelerator='remote' got a strategy for {device}; leave strategy='auto', or give it "
                    "device='remote'"
                )
            remote.set_device(device)

        def teardown(self) -> None:
            pass

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return remote.memory_stats(device)

        @staticmethod
        def parse_devices(devices: int | str | list[int]) -> list[int]:
            if isinstance(devices, str):
                indices = [int(index) for index in devices.split(",") if index.strip()]
                devices = indices if "," in devices else indices[0]
            count = remote.device_count()
            chosen = list(range(count if devices == -1 else devices)) if isinstance(devices, int) else list(devices)
            if not chosen or not all(0 <= index < count for index in chosen):
                raise ValueError(f"remote: devices={devices!r}, but the indices of this device are 0 to {count - 1}")
            return chosen

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("remote", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1  # several would need torch.distributed

        @staticmethod
        def is_available() -> bool:
            return remote.is_available()

        @staticmethod
        def name() -> str:
            return "remote"

    return RemoteAccelerator


def _change_connector(module: ModuleType, registry: Any, connector: Any, precision: str) -> None:
    existing(module, "Accelerator", "SingleDeviceStrategy", "MixedPrecision", "rank_zero_info")
    choose_accelerator, choose_strategy, init_precision = existing(
        connector, "_choose_auto_accelerator", "_choose_strategy", "_check_and_init_precision"
    )
    if not isinstance(choose_accelerator, staticmethod):
        raise UnknownUpstream(f"{connector.__name__}._choose_auto_accelerator is not a static method")
    accelerator = _accelerator(module.Accelerator)

    @functools.wraps(choose_strategy)
    def _choose_strategy(self: Any) -> Any:
        if not isinstance(self.accelerator, accelerator):
            return choose_strategy(self)
        if self._num_nodes_flag > 1 or len(self._parallel_devices) > 1:
            raise ValueError(
                f"remote: accelerator='remote' with num_nodes={self._num_nodes_flag} and "
                f"{len(self._parallel_devices)} devices needs torch.distributed, which this accelerator does not "
                "support; use num_nodes=1, devices=1"
            )
        module.rank_zero_info(f"remote: accelerator='remote' used, on {self._parallel_devices[0]}")
        return module.SingleDeviceStrategy(device=self._parallel_devices[0])

    @functools.wraps(init_precision)
    def _check_and_init_precision(self: Any) -> Any:
        chosen = getattr(self, precision)
        mixed = chosen in ("16-mixed", "bf16-mixed") and type(self.strategy) is module.SingleDeviceStrategy
        if mixed and isinstance(self.accelerator, accelerator):
            return module.MixedPrecision(chosen, "remote")
        return init_precision(self)

    registry.register("remote", accelerator, description="A device whose tensors live in a worker")
    connector._choose_auto_accelerator = staticmethod(lambda: "remote")
    connector._choose_strategy = _choose_strategy
    connector._check_and_init_precision = _check_and_init_precision
