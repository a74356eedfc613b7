# Written by the build.
PYTHON: str
