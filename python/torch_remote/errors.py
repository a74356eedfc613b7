"""Exceptions of the device."""


class WorkerLost(RuntimeError):
    """The worker is gone: it died, was killed, or the connection to it broke.

    The tensors that lived there are lost. `torch.remote.restart()` starts another worker.

    Attributes:
        session: number of the session that ended.
        last_acknowledged: sequence number of the last message that the worker had finished.
    """

    def __init__(self, message: str, session: int | None = None, last_acknowledged: int | None = None) -> None:
        super().__init__(message)
        self.session = session
        self.last_acknowledged = last_acknowledged


class UnexpectedCompile(RuntimeError):
    """A program was built inside `torch.remote.expect_no_compile()`."""
