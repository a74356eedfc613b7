"""The version, defined only here: the build reads this file, and pyproject.toml refers to it."""

__version__ = "0.1.0"
TORCH = "2.13"  # the supported torch; docs/torch-internals.md lists what another version needs


def check_python() -> None:
    """Raises ImportError if _C was compiled for another Python: _C must not be loaded then."""
    import sys
    from pathlib import Path

    from torch_remote.built_for import PYTHON

    major, minor, micro = sys.version_info[:3]
    if f"{major}.{minor}" == PYTHON:
        return
    raise ImportError(
        f"torch_remote {__version__} ({Path(__file__).parent}) is built for Python {PYTHON}, but this is Python "
        f"{major}.{minor}.{micro} ({sys.executable}); use Python {PYTHON}, or install a torch_remote that is built for "
        f"Python {major}.{minor} (its wheel is called …-cp{major}{minor}-…)",
        name="torch_remote",
    )


def check_torch(version: str, file: str) -> None:
    """Raises ImportError for another torch version, whose libraries would fail with missing symbols."""
    if version.split("+")[0].split(".")[:2] == TORCH.split("."):
        return
    from pathlib import Path

    raise ImportError(
        f"torch_remote {__version__} ({Path(__file__).parent}) is built for torch {TORCH}, but torch {version} is "
        f"installed ({Path(file).parent}); pip install 'torch=={TORCH}.*', or a torch_remote that is built for torch "
        f"{'.'.join(version.split('.')[:2])}",
        name="torch_remote",
    )
