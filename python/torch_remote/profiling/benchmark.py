"""`torch.remote.benchmark`: how long a call takes, with its results computed."""

import time
from collections.abc import Callable
from typing import Any

import torch

from torch_remote.device import _device

_KEPT_BYTES = 256 << 20  # bytes of results that are kept until they are computed


def benchmark(
    function: Callable[..., Any], *args: Any, min_run_time: float = 0.5, label: str | None = None, **kwargs: Any
) -> Any:
    """Times `function(*args, **kwargs)`, and returns a torch.utils.benchmark.Measurement.

    Unused results are never computed on this device, so a loop that discards its results only times the recording of
    ops. This function keeps the results of a block of calls until the device has computed them. It first calls the
    function until its programs are known. It then chooses the number of calls per block, so that the wait for the
    device at the end does not count. It measures blocks for `min_run_time` seconds. It times functions on the CPU the
    same way, so that both can be compared.

    The Measurement has `.median`, `.iqr` (both in seconds per call) and `.raw_times`; printing shows all of them.

    Args:
        function: the function to time. It may return anything; tensors in tuples, lists and dicts count as results.
        min_run_time: seconds of measuring.
        label: the printed name of the Measurement; default: the function's name.
    """
    from torch.utils.benchmark import Measurement, TaskSpec

    def block(calls: int) -> float:
        """The seconds of a block of calls, with results computed."""
        _device.synchronize()
        begin = time.perf_counter()
        results = [function(*args, **kwargs) for _ in range(calls)]
        _device.synchronize()
        seconds = time.perf_counter() - begin
        del results
        return seconds

    result = function(*args, **kwargs)
    size = sum(t.nbytes for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
    del result
    most = max(1, _KEPT_BYTES // max(size, 1))
    calls = 1
    for _ in range(2):
        block(1)
    while calls < most and block(calls) < 0.02:
        calls = min(2 * calls, most)
    block(calls)  # a block of this size has one or several programs of its own
    times: list[float] = []
    while sum(times) < min_run_time or len(times) < 5:
        times.append(block(calls))
    name = label or str(getattr(function, "__qualname__", type(function).__qualname__))
    task = TaskSpec(stmt=name, setup="", label=name, num_threads=torch.get_num_threads())
    return Measurement(number_per_run=calls, raw_times=times, task_spec=task)
