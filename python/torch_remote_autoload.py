"""Entry point of torch's backend autoload: `import torch` calls it.

It does something only if TORCH_REMOTE_AUTOLOAD=1, since a registered device takes over torch.accelerator and with it
what libraries choose. Not in the package, which registers the device when it is imported.
"""

import os


def autoload() -> None:
    """Imports torch_remote if TORCH_REMOTE_AUTOLOAD=1. Values but 0 and 1 are refused where a device is used."""
    if os.environ.get("TORCH_REMOTE_AUTOLOAD") == "1":
        import torch_remote  # noqa: F401
