# The build generates built_for.py.
PYTHON: str
