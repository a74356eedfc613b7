"""IPython: Jupyter's notebooks, VS Code's, and IPython in a terminal.

core/compilerop.py compiles a cell under the name of a file that does not exist (/tmp/ipykernel_7/123.py). Only
IPython's own tracebacks replace it with the cell's number; the bridge makes our messages do the same.

core/interactiveshell.py, InteractiveShell.run_code, shows a KeyboardInterrupt. It assumes that the work of the cell has
ended with it. The bridge drops what the cell has queued on a worker, and the exception says so.

extensions/autoreload.py, UPDATE_RULES, updates the objects of an edited module in place if they are functions, classes
or properties. The bridge adds `torch_remote.function`'s.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from torch_remote import _C, distributed, ipython_shell, remote
from torch_remote.device.idle import becomes_idle
from torch_remote.integrations.upstream import existing

__all__ = ["bridge"]

_PATIENCE = 1.0  # seconds in which the worker may finish an interrupted cell's work
_FAR_BEHIND = 32  # messages in flight; recording an event may wait for the worker if there are more than 48

_WAITING = "while waiting for the remote worker"  # as in frontend/device/device_state.cpp
_FINISHED = f"{_WAITING}, which has finished the queued work now"
_DROPPED = (
    "the work that this cell had queued was dropped. Tensors that it would have changed in place keep their "
    'contents; reading another result of it raises "remote: cancelled by torch.remote.cancel() or by the interrupt of '
    'a notebook cell". All work of earlier cells is done'
)
_CONTINUES = (
    "the worker continues with the queued work, because some of it is from earlier cells; reads wait for it. "
    "torch.remote.cancel() drops all of it"
)

# By device that had a worker when the current cell began: an event after the work of earlier cells; None: there was
# too much of it.
_earlier_work: dict[int, torch.Event | None] = {}


def bridge(module: ModuleType) -> None:
    """Changes CachingCompiler, InteractiveShell, or the rules of the extension autoreload."""
    match module.__name__:
        case "IPython.core.compilerop":
            _bridge_compiler(module)
        case "IPython.core.interactiveshell":
            _bridge_shell(module)
        case _:
            _bridge_autoreload(module)


def _bridge_compiler(module: ModuleType) -> None:
    cache, _ = existing(module.CachingCompiler, "cache", "format_code_name")

    def label_cell(self: Any, file: str) -> None:
        if parts := self.format_code_name(file):
            _C.label_file(file, " ".join(parts))  # "Cell In[4]"

    @functools.wraps(cache)
    def label_and_cache(self: Any, *args: Any, **kwargs: Any) -> str:
        file = cache(self, *args, **kwargs)
        label_cell(self, file)
        return file

    module.CachingCompiler.cache = label_and_cache
    if (shell := ipython_shell.shell()) is not None:
        for file in list(getattr(shell.compile, "_filename_map", ())):
            label_cell(shell.compile, file)


def _bridge_autoreload(module: ModuleType) -> None:
    (rules,) = existing(module, "UPDATE_RULES")

    def are_remote_functions(old: Any, new: Any) -> bool:
        ours = sys.modules.get("torch_remote.function")
        return ours is not None and isinstance(old, ours.RemoteFunction) and isinstance(new, ours.RemoteFunction)

    def update(old: Any, new: Any) -> None:
        vars(old).clear()
        vars(old).update(vars(new))

    rules.append((are_remote_functions, update))


def _bridge_shell(module: ModuleType) -> None:
    (shell,) = existing(module, "InteractiveShell")
    show, init_events = existing(shell, "showtraceback", "init_events")

    @functools.wraps(show)
    def showtraceback(self: Any, *args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            _end_cell(error)
        show(self, *args, **kwargs)

    @functools.wraps(init_events)
    def register(self: Any) -> None:
        init_events(self)
        self.events.register("pre_run_cell", _begin_cell)

    shell.showtraceback, shell.init_events = showtraceback, register
    if shell.initialized():
        shell.instance().events.register("pre_run_cell", _begin_cell)


def _workers() -> Iterator[tuple[int, Any]]:
    """The devices that have a worker, with what is known of it."""
    for device in range(_C.device_count()):
        worker = _C.worker_info(device)
        if worker is not None and not worker["lost"]:
            yield device, worker


def _begin_cell(info: object) -> None:
    for device, event in list(_earlier_work.items()):
        if event is not None:
            event.query()  # takes the acknowledgements that have arrived
        del _earlier_work[device]
    for device, worker in _workers():
        event = None
        if worker["last_sent"] - worker["last_acknowledged"] <= _FAR_BEHIND:
            event = torch.Event(torch.device("remote", device), enable_timing=True)
            with contextlib.suppress(RuntimeError), remote.device(device):
                event.record()
        _earlier_work[device] = event


def _end_cell(interrupt: KeyboardInterrupt) -> None:
    """Drops the work that the interrupted cell has queued, unless the worker finishes it soon. Adds a message."""
    if distributed.in_use():  # the other ranks go on
        return
    messages: dict[str, list[str]] = {}
    for device, _ in _workers():
        with contextlib.suppress(RuntimeError):
            if _becomes_idle(device):
                continue
            is_own = _has_done_earlier_work(device)
            if is_own:
                _C.cancel(device)
            messages.setdefault(_DROPPED if is_own else _CONTINUES, []).append(f"remote:{device}")
    several = _C.device_count() > 1
    text = ". ".join(f"{', '.join(names) if several else 'remote'}: {text}" for text, names in messages.items())
    if not text and _is_ours(interrupt):
        text = _FINISHED
    if text and (not interrupt.args or _is_ours(interrupt)):
        interrupt.args = (text,)
    elif text:
        print(text, file=sys.stderr)


def _is_ours(interrupt: KeyboardInterrupt) -> bool:
    return bool(interrupt.args) and str(interrupt.args[0]).startswith(_WAITING)


def _becomes_idle(device: int) -> bool:
    try:
        return becomes_idle(device, _PATIENCE)
    except KeyboardInterrupt:  # the user interrupts again
        return False


def _has_done_earlier_work(device: int) -> bool:
    event = _earlier_work.get(device)
    return event.query() if event is not None else device not in _earlier_work
