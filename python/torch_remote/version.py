"""The version, defined only here: the build reads this file, and pyproject.toml refers to it.

This module imports nothing of the package and no torch. torch_remote_cli and the build load it alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__version__ = "0.2.0"
_PACKAGE = Path(__file__).parent


def torch_minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def sorted_minors(minors: Iterable[str]) -> list[str]:
    """Oldest first: 2.9, 2.10."""
    return sorted(minors, key=lambda minor: [int(part) for part in minor.split(".")])


def torch_minors() -> list[str]:
    """The versions of torch that this package is built for, oldest first."""
    return sorted_minors(
        file.parent.name.removeprefix("torch") for file in _PACKAGE.glob("torch[0-9]*/libaten_plugin.so")
    )


def plugin(version: str) -> Path:
    """The worker's ATen plugin for a version of torch."""
    return _PACKAGE / f"torch{torch_minor(version)}/libaten_plugin.so"


def check_python() -> None:
    """Raises ImportError if _C was compiled for another Python: _C must not be loaded then."""
    import sys

    from torch_remote.built_for import PYTHON

    major, minor, micro = sys.version_info[:3]
    if f"{major}.{minor}" == PYTHON:
        return
    raise ImportError(
        f"torch_remote {__version__} ({_PACKAGE}) is built for Python {PYTHON}, but this is Python "
        f"{major}.{minor}.{micro} ({sys.executable}); use Python {PYTHON}, or install a torch_remote that is built for "
        f"Python {major}.{minor} (its wheel is called …-cp{major}{minor}-…)",
        name="torch_remote",
    )


def check_torch(version: str, file: str) -> None:
    """Raises ImportError for another torch version, whose libraries would fail with missing symbols."""
    minors = torch_minors()
    if torch_minor(version) in minors:
        return
    pins = " or ".join(f"'torch=={minor}.*'" for minor in reversed(minors))
    raise ImportError(
        f"torch_remote {__version__} ({_PACKAGE}) is built for torch {' and '.join(minors)}, but torch {version} is "
        f"installed ({Path(file).parent}); pip install {pins}, or a torch_remote that is built for torch "
        f"{torch_minor(version)}",
        name="torch_remote",
    )


def load_native(version: str) -> None:
    """Imports torch_remote._C as it is built for this version of torch."""
    import importlib.machinery
    import importlib.util
    import sys

    name = "torch_remote._C"
    file = str(_PACKAGE / f"torch{torch_minor(version)}/_C.so")
    loader = importlib.machinery.ExtensionFileLoader(name, file)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    sys.modules["torch_remote"]._C = module  # type: ignore[attr-defined]
