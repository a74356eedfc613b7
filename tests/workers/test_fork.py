"""A forked child may not use the device, and must not harm its parent."""

HEAD = """
    import os, sys, signal, torch, torch_remote
    x = torch.ones(3, device="remote")
    assert x.sum().item() == 3
    pending = x + 1
    def child(work):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException as error:
                print(type(error).__name__, error, flush=True)
            os._exit(status)
        return os.waitpid(pid, 0)[1]
"""


def test_use_in_a_child_is_refused_like_cudas(script, remote):
    result = script(
        HEAD
        + """
    status = child(lambda: torch.ones(1, device="remote"))
    assert os.waitstatus_to_exitcode(status) == 1
    status = child(lambda: x.cpu())
    assert os.waitstatus_to_exitcode(status) == 1
    status = child(lambda: (x + 1).sum().item())
    assert os.waitstatus_to_exitcode(status) == 1
    assert pending.tolist() == [2, 2, 2]
    """
    )
    assert result.stdout.count("RuntimeError") == 3
    assert "spawn" in result.stdout and "forked subprocess" in result.stdout


def test_a_child_that_leaves_the_device_alone_is_fine(script, remote):
    script(
        HEAD
        + """
    def work():
        global x, pending
        assert torch.ones(3).sum().item() == 3
        assert torch.remote._is_in_bad_fork()
        del x, pending  # destructors of device tensors
        torch.manual_seed(1)
    for _ in range(5):
        assert child(work) == 0
    assert not torch.remote._is_in_bad_fork()
    assert pending.tolist() == [2, 2, 2]
    """
    )


def test_a_child_that_exits_normally_leaves_the_worker_alone(script, remote):
    script(
        HEAD
        + """
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # runs atexit handlers and destructors
    assert os.waitpid(pid, 0)[1] == 0
    assert pending.tolist() == [2, 2, 2]
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (pending + 1).tolist() == [3, 3, 3]
    """
    )


def test_a_fork_before_first_use_is_no_bad_fork(script, remote):
    script(
        """
    import os, torch, torch_remote
    pid = os.fork()
    value = (torch.ones(3, device="remote") + 1).sum().item()
    assert value == 6
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
    """
    )


def test_multiprocessing_spawn(script, remote):
    script(
        """
    import torch, torch_remote
    import torch.multiprocessing as mp

    def work(queue):
        queue.put((torch.ones(2, device="remote") * 2).sum().item())

    if __name__ == "__main__":
        torch.ones(1, device="remote").item()
        context = mp.get_context("spawn")
        queue = context.SimpleQueue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        assert queue.get() == 4
        process.join()
        assert process.exitcode == 0
    """
    )


def test_subprocesses_inherit_no_descriptor(script, remote):
    """The worker must see end of file when the parent dies, even while a child of the parent is alive."""
    script(
        HEAD
        + """
    import subprocess
    out = subprocess.run([sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
                         stdout=subprocess.PIPE, text=True, close_fds=False).stdout
    assert int(out) <= 6, out
    """
    )
