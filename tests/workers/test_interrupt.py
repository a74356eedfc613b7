"""Ctrl-C while waiting for the worker."""

import re

import pytest
import torch


def test_ctrl_c_returns_within_a_second_and_the_session_works_on(script, remote):
    result = script(
        """
    import os, signal, threading, time, torch, torch_remote
    x = torch.ones(8, device="remote")
    x.sum().item()
    big = torch.randn(1400, 1400, device="remote")
    torch.remote.synchronize()
    for _ in range(60):  # some seconds of work
        big = big @ big
        big = big / big.abs().max()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.perf_counter()
    try:
        big.sum().item()
        print("finished before the interrupt")
    except KeyboardInterrupt:
        print("interrupted after %.2f s" % (time.perf_counter() - begin))
    assert (x + 1).sum().item() == 16
    assert big.isfinite().all().item() in (True, False)
    """,
        timeout=120,
    )
    match = re.search(r"interrupted after ([\d.]+) s", result.stdout)
    assert match, result.stdout
    assert float(match[1]) < 1.5


def test_ctrl_c_while_the_worker_is_far_behind(script, remote):
    """No result is read: the process waits because of back-pressure."""
    result = script(
        """
    import os, signal, threading, time, torch, torch_remote
    x = torch.ones(8, device="remote")
    x.sum().item()
    big = torch.randn(1000, 1000, device="remote")
    torch.remote.synchronize()
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = last = time.perf_counter()
    longest = 0
    try:
        while time.perf_counter() < begin + 30:
            for _ in range(64):
                x = x + 1
            torch.remote._C.flush(0)
            big = big @ big / 1000
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted after %.2f s, longest wait %.2f s" % (time.perf_counter() - begin, longest), flush=True)
    os._exit(0)  # without waiting for what is queued
    """,
        timeout=120,
    )
    match = re.search(r"interrupted after ([\d.]+) s, longest wait ([\d.]+) s", result.stdout)
    assert match, result.stdout
    assert float(match[1]) < 3


def test_ctrl_c_does_not_reach_the_worker(script, remote):
    """A terminal sends SIGINT to the whole process group."""
    script(
        """
    import os, signal, time, torch, torch_remote
    x = torch.ones(8, device="remote")
    assert x.sum().item() == 8
    try:
        os.killpg(os.getpgid(0), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        pass
    assert (x + 1).sum().item() == 16
    """.replace("import os", "import os; os.setpgid(0, 0); import os")
    )


CANCEL = """
    import os, signal, threading, time, torch, torch_remote
    x = torch.ones(8, device="remote")
    weight = torch.ones(1400, 1400, device="remote")
    x.sum().item()
    {begin}
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        weight.sum().item()
        print("finished before the interrupt")
    except KeyboardInterrupt as error:
        print(error)
    begin = time.perf_counter()
    torch.remote.cancel()
    assert (x + 1).sum().item() == 16
    print("read after %.2f s" % (time.perf_counter() - begin))
    try:
        big.sum().item()
        raise SystemExit("the dropped result was there")
    except RuntimeError as error:
        assert "remote: cancelled by torch.remote.cancel()" in str(error), error
    assert weight.isfinite().all().item()
    torch.remote.synchronize()
    big.fill_(1)
    weight.add_(big)
    assert weight.isfinite().all().item()
    for _ in range(3):
        assert (big @ weight).isfinite().all().item()
"""

ONE_TRACE = """
    big = torch.randn(1400, 1400, device="remote")
    for _ in range(200):
        big = big @ big
        big = big / big.abs().max()
        weight.add_(big)
"""

MANY_RUNS = """
    big = torch.randn(1400, 1400, device="remote")
    for _ in range(30):
        for _ in range(7):
            big = big @ big
            big = big / big.abs().max()
            weight.add_(big)
        torch.remote._C.flush(0)
"""


@pytest.mark.parametrize("begin", [ONE_TRACE, MANY_RUNS], ids=["one long run", "many runs"])
@pytest.mark.parametrize("worker", ["local", "inproc"])
def test_cancel_drops_what_is_queued(script, remote, worker, begin):
    result = script(CANCEL.format(begin=begin.strip()), timeout=120, TORCH_REMOTE_WORKER=worker)
    assert "torch.remote.cancel() drops that" in result.stdout
    match = re.search(r"read after ([\d.]+) s", result.stdout)
    assert match, result.stdout
    assert float(match[1]) < 2


def test_cancel_without_work_does_nothing(remote):
    x = torch.ones(4, device=remote)
    assert x.sum().item() == 4
    torch.remote.cancel()
    y = x + 1
    assert y.tolist() == [2] * 4


def test_cancel_before_the_first_worker_drops_what_is_recorded(script, remote):
    script("""
    import torch, torch_remote
    x = torch.ones(4, device="remote")
    y = x + 1
    torch.remote.cancel()
    assert not torch_remote._C.is_connected(0)
    for tensor in (x, y):
        try:
            tensor.sum().item()
            raise SystemExit("the dropped result was there")
        except RuntimeError as error:
            assert "torch.remote.cancel() dropped" in str(error), error
    y.fill_(2)
    assert (y + 1).tolist() == [3] * 4
    """)


def test_cancel_drops_what_is_recorded(remote):
    x, big = torch.ones(4, device=remote), torch.randn(1000, 1000, device=remote)
    assert x.sum().item() == 4
    for _ in range(60):  # takes more than a second
        big = big @ big
        big = big / big.abs().max()
    x.add_(big[0, 0])
    torch.remote.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        big.sum().item()
    assert x.tolist() == [1] * 4
    torch.remote.synchronize()


CONNECTING = """
import os, signal, socket, threading, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.environ["TORCH_REMOTE_WORKER"].removeprefix("unix://"))
listener.listen()  # and never answers
import torch, torch_remote
x = torch.ones(8, device="remote") + 1
"""


def test_ctrl_c_while_a_worker_starts(script, remote, tmp_path):
    result = script(
        CONNECTING
        + """
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    x.sum().item()
    print("answered")
except KeyboardInterrupt:
    print("interrupted after %.2f s" % (time.perf_counter() - begin))
""",
        TORCH_REMOTE_WORKER=f"unix://{tmp_path}/w",
    )
    match = re.search(r"interrupted after ([\d.]+) s", result.stdout)
    assert match and float(match[1]) < 1.5, result.stdout


def test_other_threads_record_and_drop_tensors_while_a_worker_starts(script, remote, tmp_path):
    result = script(
        CONNECTING
        + """
waiting = threading.Thread(target=lambda: x.sum().item(), daemon=True)
waiting.start()
time.sleep(0.5)
begin = time.perf_counter()
for _ in range(20):
    y = torch.ones(8, device="remote") * 2
    del y
print("recorded in %.2f s" % (time.perf_counter() - begin))
begin = time.perf_counter()
torch.remote.restart()
print("gave up in %.2f s" % (time.perf_counter() - begin))
waiting.join(5)
print("still waiting" if waiting.is_alive() else "told")
""",
        TORCH_REMOTE_WORKER=f"unix://{tmp_path}/w",
    )
    recorded, gave_up = (
        float(re.search(rf"{word} in ([\d.]+) s", result.stdout)[1]) for word in ("recorded", "gave up")
    )
    assert recorded < 0.5 and gave_up < 1.5 and "told" in result.stdout, result.stdout
