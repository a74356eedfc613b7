"""Device tensors between processes: they arrive on the receiver's device, or the receiver gets an error; it never waits
forever."""

import pytest

# A module that a spawned process can import. `script` runs a file, whose functions it knows as __mp_main__.
HEAD = """
import os
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
import torch_remote

def device_of(t):
    return str(t.device)

"""


def test_a_queue_both_ways(script, remote):
    script(
        HEAD
        + """
def work(questions, answers):
    for x in iter(questions.get, None):
        assert device_of(x) == "remote:0", x.device
        answers.put((x * 2, os.getpid()))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(questions, answers))
    process.start()
    for shape in [(3,), (2, 5), (), (0, 4), (300, 300)]:
        x = torch.rand(shape, device="remote")
        questions.put(x)
        y, pid = answers.get(timeout=50)
        assert pid == process.pid and device_of(y) == "remote:0"
        assert torch.equal(y, x * 2) and y.shape == x.shape
    questions.put(None)
    process.join()
    assert process.exitcode == 0
""",
        timeout=120,
    )


def test_arguments_of_a_process_keep_what_torch_keeps(script, remote):
    """Torch keeps requires_grad, Parameters, strides, offsets, dtypes, and which tensors of a message share a
    storage."""
    script(
        HEAD
        + """
def work(tensors, parameter, connection):
    x, view, transposed, leaf, half = tensors
    assert all(t.device == torch.device("remote:0") for t in [*tensors, parameter])
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and view.tolist() == [4, 5] and view.storage_offset() == 4
    assert transposed.stride() == (1, 3) and transposed.shape == (3, 2)
    view.fill_(9)
    assert x.tolist() == [[0, 1, 2], [3, 9, 9]] and transposed.tolist() == [[0, 3], [1, 9], [2, 9]]
    assert leaf.requires_grad and leaf.is_leaf and not x.requires_grad
    assert half.dtype == torch.bfloat16 and half.tolist() == [1.5]
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad
    (parameter.sum() + leaf.sum()).backward()
    connection.send([parameter.grad, leaf.grad])

if __name__ == "__main__":
    x = torch.arange(6.0, device="remote").view(2, 3)
    leaf = torch.ones(2, device="remote", requires_grad=True)
    tensors = (x, x.view(6)[4:], x.t(), leaf, torch.tensor([1.5], device="remote", dtype=torch.bfloat16))
    parameter = torch.nn.Parameter(torch.ones(3, device="remote"))
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(tensors, parameter, theirs))
    process.start()
    process.join()  # what it sent is here already
    gradients = ours.recv()
    assert [g.tolist() for g in gradients] == [[1, 1, 1], [1, 1]] and device_of(gradients[0]) == "remote:0"
    assert process.exitcode == 0
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]  # the other process has a copy
""",
        timeout=120,
    )


SAMPLES = """
class Samples(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((2,), float(i), device="remote") * 2, i

"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_data_loader_workers_that_return_device_tensors(script, remote, method):
    """With fork, the device is not used before, as on CUDA."""
    script(
        HEAD
        + SAMPLES
        + f"""
if __name__ == "__main__":
    loader = DataLoader(Samples(), 2, num_workers=1, multiprocessing_context={method!r}, timeout=50)
    batches = list(loader)
    assert [device_of(x) for x, _ in batches] == ["remote:0"] * 3
    assert [x.tolist() for x, _ in batches] == [[[0, 0], [2, 2]], [[4, 4], [6, 6]], [[8, 8], [10, 10]]]
    assert [y.tolist() for _, y in batches] == [[0, 1], [2, 3], [4, 5]]
""",
        timeout=120,
    )


def test_a_forked_worker_after_the_first_use_fails_at_once(script, remote):
    result = script(
        HEAD
        + SAMPLES
        + """
if __name__ == "__main__":
    torch.ones(1, device="remote").item()
    try:
        next(iter(DataLoader(Samples(), 2, num_workers=1)))
    except RuntimeError as error:
        print(error)
    here = torch.ones(2, device="remote")
    class Constant(Samples):  # makes no tensor: what it returns is the parent's
        def __getitem__(self, i):
            return here
    try:
        next(iter(DataLoader(Constant(), 2, num_workers=1, collate_fn=list)))
    except RuntimeError as error:
        print(error)
    assert here.tolist() == [1, 1]
""",
        timeout=120,
    )
    assert result.stdout.count("Cannot re-initialize remote in forked subprocess") == 2, result.stdout
    assert result.stdout.count("'spawn'") == 2


def test_what_cannot_be_sent_is_told_to_whoever_waits_for_it(script, remote):
    """Otherwise the queue's own thread would print the error, and the other end would wait."""
    script(
        HEAD
        + """
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    broken = torch.arange(3.0, device="remote")[torch.tensor([7], device="remote")]
    queue.put(broken)
    try:
        queue.get(timeout=50)
        raise SystemExit("no error")
    except IndexError as error:
        assert "out of bounds" in str(error) and f"in process {os.getpid()}" in str(error), error
    queue.put(torch.ones(2, device="remote"))  # the queue lives on
    assert queue.get(timeout=50).tolist() == [1, 1]

    ours, theirs = context.Pipe()
    broken = torch.arange(3.0, device="remote")[torch.tensor([7], device="remote")]
    try:
        ours.send(broken)  # in this thread: here
        raise SystemExit("no error")
    except IndexError:
        pass
""",
        timeout=120,
    )


def test_each_device_goes_to_its_own(script, remote):
    script(
        HEAD
        + """
def work(connection):
    connection.send([(device_of(x), x.tolist()) for x in connection.recv()])

if __name__ == "__main__":
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    ours.send([torch.full((2,), float(i), device=f"remote:{i}") for i in range(2)])
    assert ours.recv() == [("remote:0", [0, 0]), ("remote:1", [1, 1])]
    process.join()
""",
        timeout=120,
        TORCH_REMOTE_WORKER="local,local",
    )


def test_the_receiver_has_another_default_device(script, remote):
    script(
        HEAD
        + """
def work(questions, answers):
    torch.set_default_device("remote")
    answers.put(device_of(torch.ones(1)))
    x = questions.get()
    answers.put((device_of(x), x.tolist()))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(questions, answers))
    process.start()
    assert answers.get(timeout=50) == "remote:0"
    questions.put(torch.arange(3.0, device="remote"))
    assert answers.get(timeout=50) == ("remote:0", [0, 1, 2])
    process.join()
    assert process.exitcode == 0
""",
        timeout=120,
    )


def test_tensors_of_the_cpu_go_as_ever(script, remote):
    """They are shared, not copied."""
    script(
        HEAD
        + """
def work(x):
    x += 1

if __name__ == "__main__":
    x = torch.zeros(3)
    process = mp.get_context("spawn").Process(target=work, args=(x,))
    process.start()
    process.join()
    assert x.tolist() == [1, 1, 1]
""",
        timeout=120,
    )
