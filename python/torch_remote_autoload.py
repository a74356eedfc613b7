"""Entry point of torch's backend autoload: `import torch` calls it.

It has an effect only if TORCH_REMOTE_AUTOLOAD=1, because a registered device becomes torch.accelerator, which libraries
use to choose a device. This module is not in the package, because importing the package registers the device.
"""

import os


def autoload() -> None:
    """Imports torch_remote if TORCH_REMOTE_AUTOLOAD=1. Other values than 0 and 1 raise when a device is used."""
    if os.environ.get("TORCH_REMOTE_AUTOLOAD") == "1":
        import torch_remote  # noqa: F401
