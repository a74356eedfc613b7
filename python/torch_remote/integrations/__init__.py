"""Bridges to libraries: they make hard-coded assumptions about devices work for this one.

Many libraries ask for CUDA, MPS, ... one after the other, and use the CPU if none exists; or they compare a device's
type with a list. Each file here is for one library. Its docstring says what upstream hard-codes and where, and the
bridge changes only that. A bridge runs when the library's module has been imported, or at once if it already is. It
imports no library itself, so `import torch_remote` costs nothing more. If upstream is not what the bridge expects, the
bridge changes nothing and logs a warning. Code that asks a library for the CPU or CUDA by name still gets that.

TORCH_REMOTE_INTEGRATIONS=0 switches all bridges off, TORCH_REMOTE_INTEGRATIONS=-lightning,-dlpack those two.
docs/integrations.md lists what works with which library, and the line to write.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["BRIDGES", "install"]

log = logging.getLogger(__name__)

# Each bridge, a file here, with the modules that it changes: its `bridge(module)` is called once with each of them.
BRIDGES: dict[str, tuple[str, ...]] = {
    "accelerate": (
        "accelerate.state",
        "accelerate.accelerator",
        "accelerate.utils.dataclasses",
        "accelerate.utils.modeling",
    ),
    "debuggers": ("torch._tensor_str",),
    "dlpack": ("torch._tensor",),
    "flex_attention": ("torch.nn.attention.flex_attention",),
    "inductor": ("torch._inductor.compile_fx",),
    "ipython": ("IPython.core.compilerop", "IPython.core.interactiveshell", "IPython.extensions.autoreload"),
    "lightning": (
        "lightning.fabric.connector",
        "lightning.fabric.utilities.device_parser",
        "lightning.pytorch.trainer.connectors.accelerator_connector",
        "lightning_fabric.connector",
        "lightning_fabric.utilities.device_parser",
        "pytorch_lightning.trainer.connectors.accelerator_connector",
    ),
    "safetensors": ("safetensors",),
    "stable_baselines3": ("stable_baselines3.common.utils",),
    "transformers": (
        "transformers.core_model_loading",
        "transformers.modeling_utils",
        "transformers.pipelines.base",
        "transformers.training_args",
        "transformers.utils.import_utils",
    ),
}


def _chosen() -> list[str]:
    """The bridges that TORCH_REMOTE_INTEGRATIONS leaves on."""
    value = os.environ.get("TORCH_REMOTE_INTEGRATIONS", "1").strip()
    if value in ("", "1"):
        return list(BRIDGES)
    if value == "0":
        return []
    without = [name.strip() for name in value.split(",")]
    if not all(name[:1] == "-" and name[1:] in BRIDGES for name in without):
        raise ValueError(
            f"remote: TORCH_REMOTE_INTEGRATIONS={value!r} is not understood; set it to 1 (all integrations), 0 (none), "
            f"or to a list of those to leave out, like -lightning,-dlpack; there are: {', '.join(BRIDGES)}"
        )
    return [name for name in BRIDGES if f"-{name}" not in without]


_waiting: dict[str, str] = {}  # modules that are not imported yet, each with its bridge


def _bridge(name: str) -> None:
    library = _waiting.pop(name, None)
    if library is None:
        return
    try:
        importlib.import_module(f"{__name__}.{library}").bridge(sys.modules[name])
    except Exception as error:
        log.warning(
            "remote: %s differs from the versions that the integration %r supports, and was not changed: %s: %s. "
            "TORCH_REMOTE_INTEGRATIONS=-%s leaves that integration out",
            name,
            library,
            type(error).__name__,
            error,
            library,
        )


class _WatchedSpec(ModuleSpec):
    """The spec of a module with a bridge: importlib sets _initializing to False when the import has ended."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # otherwise the import failed
                _bridge(self.name)


class _Finder:
    """In sys.meta_path: finds what the other finders find, and watches the module if it has a bridge."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if type(spec) is ModuleSpec:
                        spec.__class__ = _WatchedSpec
                    return spec
        return None


def install() -> None:
    """Makes each bridge run when its library has been imported.

    Raises:
        ValueError: TORCH_REMOTE_INTEGRATIONS is malformed.
    """
    for library in _chosen():
        for name in BRIDGES[library]:
            _waiting[name] = library
            module = sys.modules.get(name)
            if module is None:
                continue
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False):  # the module is importing torch, which loads this package
                spec.__class__ = _WatchedSpec
            else:
                _bridge(name)
    if _waiting and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
