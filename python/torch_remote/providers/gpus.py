"""Names of GPUs: what users write, and what drivers and clusters call the same GPUs."""

import difflib
import json
import re

from torch_remote.providers.provider import MachineError

# Name -> pattern of the name in NVIDIA's driver (without "NVIDIA "), and other names that users write.
_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "T4": (r"(Tesla )?T4", ()),
    "V100": (r"(Tesla )?V100\b.*", ()),
    "A10": (r"A10", ("A10G",)),
    "A100": (r"A100\b.*", ()),
    "A100-40GB": (r"A100\b.*40GB", ("A100-40G",)),
    "A100-80GB": (r"A100\b.*80GB", ("A100-80G",)),
    "L4": (r"L4", ()),
    "L40S": (r"L40S", ()),
    "H100": (r"H100\b.*", ()),
    "H200": (r"H200\b.*", ()),
    "B200": (r"B200\b.*", ()),
    "B300": (r"B300\b.*", ()),
    "GB200": (r"GB200\b.*", ()),
    "RTX-3090": (r"GeForce RTX 3090", ("3090",)),
    "RTX-4090": (r"GeForce RTX 4090", ("4090",)),
    "RTX-5090": (r"GeForce RTX 5090", ("5090",)),
    "RTX-A6000": (r"RTX A6000", ("A6000",)),
    "RTX-6000-Ada": (r"RTX 6000 Ada.*", ()),
    "RTX-PRO-6000": (r"RTX PRO 6000\b.*", ()),
}
ANY = "any"  # any GPU


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_NAMES = {_plain(name): name for known, (_, others) in _KNOWN.items() for name in (known,)} | {
    _plain(other): known for known, (_, others) in _KNOWN.items() for other in others
}


def names() -> list[str]:
    """Returns all names that a user may ask for."""
    return [ANY, *_KNOWN]


def canonical(gpu: str, count: int) -> tuple[str, int]:
    """Returns the name as in `names()`, and the count, for text such as "a100" or "A100:2". Without a number, the count
    is `count`."""
    name, colon, number = gpu.partition(":")
    if colon:
        if not re.fullmatch(r"[1-9]\d{0,2}", number):
            raise MachineError(
                f"remote: gpu={gpu!r} has no count after the colon; write {name + ':2'!r}, or gpu_count=2"
            )
        if count not in (1, int(number)):
            raise MachineError(f"remote: gpu={gpu!r} and gpu_count={count} differ; give one of them")
        count = int(number)
    if _plain(name) == ANY:
        return ANY, count
    known = _NAMES.get(_plain(name).removeprefix("nvidia"))
    if known is None:
        near = difflib.get_close_matches(_plain(name), _NAMES, n=1, cutoff=0.5)
        guess = f"did you mean {_NAMES[near[0]]!r}? " if near else ""
        raise MachineError(f"remote: there is no GPU called {name!r}; {guess}Known are {', '.join(names())}")
    return known, count


def matches(gpu: str, driver_name: str) -> bool:
    """Whether the driver's name `driver_name` ("NVIDIA A100-SXM4-80GB") is a `gpu`."""
    if gpu == ANY:
        return True
    return re.fullmatch(_KNOWN[gpu][0], driver_name.removeprefix("NVIDIA ").strip()) is not None


def read_list(text: str) -> tuple[list[str], str]:
    """Reads the output of `torch-remote-worker --list-devices`: the driver's names of the GPUs, where GPU i is cuda:i;
    and why there are none, if the worker knows."""
    try:
        listed = json.loads(text)
        numbered = {int(gpu["device"].removeprefix("cuda:")): gpu["name"] for gpu in listed["devices"]}
        return [numbered[i] for i in range(len(numbered))], listed["missing"]
    except (KeyError, TypeError, ValueError) as error:
        raise MachineError(f"remote: torch-remote-worker --list-devices printed {text[:200]!r}") from error


def choose(gpu: str, count: int, there: list[str], where: str, why: str = "") -> list[int]:
    """Indices of `count` matching GPUs among `there`, the driver's names in its order. `why`: the reason if there are
    none."""
    found = [i for i, name in enumerate(there) if matches(gpu, name)]
    if len(found) >= count:
        return found[:count]
    has = ", ".join(there) if there else "no NVIDIA GPU"
    wanted = f"{count} GPU{'s' if count > 1 else ''}" + ("" if gpu == ANY else f" of kind {gpu}")
    raise MachineError(
        f"remote: {where} has {has}, but the machine needs {wanted}; request what is available"
        + (f" ({why})" if why and not there else "")
    )
