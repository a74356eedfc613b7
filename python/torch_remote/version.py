"""The version, in its only place: the build reads this file, and pyproject.toml refers to it."""

__version__ = "0.1.0"
TORCH = "2.13"  # that it is built for; docs/torch-internals.md is the list of what another one needs


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
