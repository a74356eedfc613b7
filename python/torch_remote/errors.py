"""Exceptions of the device."""

import sys


class WorkerLost(RuntimeError):
    """The worker is gone: it died, was killed, or the connection to it broke.

    The tensors on it are lost. `torch.remote.restart()` starts another worker.

    Attributes:
        session: the number of the session that ended.
        last_acknowledged: the sequence number of the last message that the worker had finished.
    """

    def __init__(self, message: str, session: int | None = None, last_acknowledged: int | None = None) -> None:
        super().__init__(message)
        self.session = session
        self.last_acknowledged = last_acknowledged


def worker_lost(message: str, session: int | None, last_acknowledged: int | None, device: int | None) -> WorkerLost:
    """The error for a lost worker of a device. Adds what a machine's provider knows about its end."""
    registry = sys.modules.get("torch_remote.providers.registry")
    if registry is not None and device is not None:
        message += registry.end_of(device)
    return WorkerLost(message, session, last_acknowledged)


class FunctionError(RuntimeError):
    """Raised for an exception of a `torch_remote.function` that is not one of Python's built-in exceptions. It is also
    the cause of one that is; it then has the traceback from the function's process."""


class UnexpectedCompile(RuntimeError):
    """A program was built inside of `torch.remote.expect_no_compile()`."""
