"""Threads that use a device while its worker starts or ends: torch.remote.restart(), and slow starts."""

import pytest

# A provider whose connections fail after a while. Meanwhile other threads have the GIL, which it needs at the end.
SLOW_START = """
import threading, time, torch, torch_remote
from torch_remote.providers import registry

connecting = threading.Event()

def connect(device, name):
    connecting.set()
    time.sleep(0.5)
    raise RuntimeError("no worker")

registry.connect = connect

def fails(function):
    try:
        function()
    except RuntimeError:
        return
    raise AssertionError("there is no worker")

def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread
"""

EVENT = """
thread = in_thread(fails, lambda: torch.ones(1, device="remote").item())
connecting.wait()
fails(lambda: torch.Event("remote", enable_timing=True).record())  # torch holds the GIL
thread.join()
"""

RESTART = """
x = torch.ones(4, device="remote")
thread = in_thread(fails, lambda: torch.ones(1, device="remote").item())
connecting.wait()
restarting = in_thread(torch.remote.restart)
time.sleep(0.1)
del x  # takes the lock of the recorded ops while it holds the GIL
thread.join()
restarting.join()
"""


@pytest.mark.parametrize("use", [EVENT, RESTART], ids=["event", "restart"])
def test_a_thread_that_holds_the_gil_while_another_one_starts_the_worker(script, remote, use):
    script(SLOW_START + use, TORCH_REMOTE_WORKER="slow")


def test_restart_ends_the_waits_of_other_threads(script, remote):
    script(
        """
    import os, signal, threading, time, torch, torch_remote
    x = torch.arange(6.0, device="remote")
    x.tolist()
    os.kill(torch_remote._C.worker_info(0)["process"], signal.SIGSTOP)  # it answers no more
    errors = []

    def read(number):
        try:
            (x * number).sum().item()
        except Exception as error:
            errors.append(error)

    before = torch.remote.stats()["round_trips"]
    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while torch.remote.stats()["round_trips"] < before + 3:
        time.sleep(0.01)
    torch.remote.restart()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [torch.remote.WorkerLost] * 3, errors
    assert torch.ones(3, device="remote").sum().item() == 3
    """
    )


def test_a_result_of_an_ended_session_is_not_the_next_sessions_buffer(script, remote):
    script(
        """
    import torch, torch_remote
    torch.zeros(3, device="remote").tolist()
    session = torch_remote._C.worker_info(0)["session"]
    torch.remote.restart()
    x = torch.full((3,), 7.0, device="remote")
    x.tolist()
    lost = torch_remote._C.result_tensor(0, session, 1, 12, [3], torch.float32)
    try:
        lost.tolist()
    except RuntimeError as error:
        assert "lost with the worker" in str(error), error
    else:
        raise AssertionError(lost)
    del lost
    assert x.tolist() == [7, 7, 7]
    """
    )
