"""Device tensors through `multiprocessing`: queues, pipes, a process's arguments, what DataLoader's workers return.

Each process has a session of its own with the worker. So a storage travels as its bytes and becomes one on the
receiver's device of the same index: a copy, where CPU and CUDA tensors would share their memory. Tensors of one message
that share a storage do so at the other end too; `requires_grad`, Parameters, strides and offsets are torch's business
(torch.multiprocessing.reductions.reduce_tensor, which asks only for the storage to be sent).

The bytes are part of the message. In shared memory, as CPU tensors go, they would need a descriptor that lives until
the receiver has it, for one copy less of five.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

# A queue's thread that pickles: an error there is printed, and whoever waits for the message waits for ever.
_FEEDER_THREAD = "QueueFeederThread"


def register() -> None:
    """Makes multiprocessing's pickler send storages of the device. It knows CPU's and CUDA's from torch."""
    reduction.ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


def _reduce_storage(storage: torch.UntypedStorage) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if storage.device.type != "remote":
        return reductions.reduce_storage(storage)
    try:
        here = storage.cpu()
    except Exception as error:
        if threading.current_thread().name != _FEEDER_THREAD:
            raise
        return _raise, (type(error), f"{error}\n  in process {os.getpid()}, which sent a tensor of the device")
    data = bytes((ctypes.c_char * here.nbytes()).from_address(here.data_ptr())) if here.nbytes() else b""
    return _rebuild_storage, (data, storage.device.index)


def _rebuild_storage(data: bytes, index: int) -> torch.UntypedStorage:
    here = torch.empty(len(data), dtype=torch.uint8)
    ctypes.memmove(here.data_ptr(), data, len(data))
    return here.to(torch.device("remote", index)).untyped_storage()


def _raise(kind: type[Exception], message: str) -> NoReturn:
    raise kind(message)
