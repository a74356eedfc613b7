"""The version, in its only place: the build reads this file, and pyproject.toml refers to it."""

__version__ = "0.1.0"
TORCH = "2.13"  # that it is built for; docs/torch-internals.md is the list of what another one needs


def check_python() -> None:
    """Raises ImportError in another Python than the one whose headers _C was compiled with: it must not be loaded."""
    import sys
    from pathlib import Path

    from torch_remote.built_for import PYTHON

    major, minor, micro = sys.version_info[:3]
    if f"{major}.{minor}" == PYTHON:
        return
    raise ImportError(
        f"torch_remote {__version__} ({Path(__file__).parent}) is built for Python {PYTHON}, and this is Python "
        f"{major}.{minor}.{micro} ({sys.executable}); use Python {PYTHON}, or install a torch_remote that is built for "
        f"Python {major}.{minor} (its wheel is called …-cp{major}{minor}-…)",
        name="torch_remote",
    )


def check_torch(version: str, file: str) -> None:
    """Raises ImportError if this torch is another one: its libraries would not fit, and say so by symbols."""
    if version.split("+")[0].split(".")[:2] == TORCH.split("."):
        return
    from pathlib import Path

    raise ImportError(
        f"torch_remote {__version__} ({Path(__file__).parent}) is built for torch {TORCH}, and torch {version} is "
        f"installed ({Path(file).parent}); pip install 'torch=={TORCH}.*', or a torch_remote that is built for torch "
        f"{'.'.join(version.split('.')[:2])}",
        name="torch_remote",
    )
