"""The version, in its only place: the build reads this file, and pyproject.toml refers to it."""

__version__ = "0.1.0"
