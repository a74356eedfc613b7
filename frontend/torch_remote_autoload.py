"""Entry point of torch's backend autoload: `import torch` calls it.

It does something only if TORCH_REMOTE_AUTOLOAD=1, since a registered device takes over torch.accelerator and with it
what libraries choose. Not in the package, which registers the device when it is imported.
"""

import os


def autoload() -> None:
    """Imports torch_remote if TORCH_REMOTE_AUTOLOAD=1.

    Raises:
        ValueError: the variable has another value than 0 or 1.
    """
    value = os.environ.get("TORCH_REMOTE_AUTOLOAD", "0")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"remote: TORCH_REMOTE_AUTOLOAD={value!r} is not understood; set it to 1 (`import torch` imports "
            "torch_remote) or 0"
        )
    if value == "1":
        import torch_remote  # noqa: F401
