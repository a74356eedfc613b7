"""The IPython shell of this process, if there is one. Imports no IPython."""

from __future__ import annotations

import sys
from typing import Any


def shell() -> Any:
    """The InteractiveShell, or None."""
    module = sys.modules.get("IPython.core.interactiveshell")
    kind = getattr(module, "InteractiveShell", None)  # None also while the module is being imported
    return kind.instance() if kind is not None and kind.initialized() else None


def is_autoreload_on() -> bool:
    """Whether IPython reloads edited modules before each cell (%autoreload)."""
    if "IPython.extensions.autoreload" not in sys.modules:
        return False
    current = shell()
    magics = current.magics_manager.registry.get("AutoreloadMagics") if current is not None else None
    return bool(getattr(getattr(magics, "_reloader", None), "enabled", False))
