"""Device tensors through `multiprocessing`: queues, pipes, a process's arguments, results of DataLoader's workers.

Each process has its own session with the worker. So a storage is sent as its bytes, and becomes a storage on the
receiver's device with the same index. It is a copy, where CPU and CUDA tensors would share their memory. Tensors of one
message that share a storage also share it at the other end. Torch handles `requires_grad`, Parameters, strides and
offsets (torch.multiprocessing.reductions.reduce_tensor, which asks only for the storage to be sent).

The bytes are part of the message. In shared memory, as CPU tensors use it, they would need a descriptor that lives
until the receiver has it. This would save one copy of five.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

# The pickling thread of a queue: an error there is printed, and the receiver waits forever.
_FEEDER_THREAD = "QueueFeederThread"


def register() -> None:
    """Makes multiprocessing's pickler send storages of the device. Torch registers it for CPU and CUDA storages."""
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
    here = torch.empty(len(data), dtype=torch.uint8, device="cpu")  # whatever the default device is
    ctypes.memmove(here.data_ptr(), data, len(data))
    return here.to(torch.device("remote", index)).untyped_storage()


def _raise(kind: type[Exception], message: str) -> NoReturn:
    raise kind(message)
