"""Random numbers. Each device has a generator (Philox); ops draw from it in program order."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_remote import _C
from torch_remote.device._device import _Device, _index, device_count

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def __dir__() -> list[str]:
    return __all__


def _generator(device: _Device) -> torch.Generator:
    return _C.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds all devices' generators."""
    for i in range(device_count()):
        _generator(i).manual_seed(seed)


def seed() -> int:
    """Seeds the current device's generator with a random number, and returns that number."""
    return _generator(None).seed()


def seed_all() -> None:
    """Seeds all devices' generators with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """Returns the current device's seed."""
    return _generator(None).initial_seed()


def get_rng_state(device: _Device = "remote") -> torch.Tensor:
    """Returns the generator's state (seed and position) as a uint8 tensor."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: _Device = "remote") -> None:
    """Sets the generator's state."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)
