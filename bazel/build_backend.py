"""The build backend for `pip install .` and `pip wheel .` in a checkout: ./bazelw builds the wheel (docs/build.md)."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    subprocess.run([ROOT / "bazelw", "build", "//:wheel"], cwd=ROOT, check=True)
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "python/torch_remote/version.py").read_text(), re.M)[1]
    # The folder may have older wheels, too.
    (wheel,) = (ROOT / "bazel-bin/python/torch_remote").glob(f"torch_remote-{version}-*.whl")
    return Path(shutil.copy(wheel, wheel_directory)).name


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("torch_remote is built in a checkout: there are no source distributions; use `pip wheel .`")
