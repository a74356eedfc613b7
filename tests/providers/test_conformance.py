"""Properties that hold for the machines of every provider."""

import os
import threading
import time

import provider_fixtures
import pytest
import torch

import torch_remote
from torch_remote import MachineError, WorkerLost, machines
from torch_remote_cli import state


@pytest.fixture(scope="module", params=provider_fixtures.FIXTURES)
def place(request, tmp_path_factory, remote_module):
    made = provider_fixtures.FIXTURES[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


@pytest.fixture(scope="module")
def remote_module():
    if os.environ.get("TORCH_REMOTE_TEST_DEVICE", "remote") == "cpu":
        pytest.skip("of the device remote alone")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_is_left(place, runtime_folder):
    """No process, descriptor, thread or entry of a machine may remain."""
    before = (len(os.listdir("/proc/self/fd")), provider_fixtures.descendants(os.getpid()), threading.active_count())
    yield
    assert machines() == []
    wait_until(lambda: not place.sessions())
    wait_until(lambda: threading.active_count() == before[2])
    assert state.entries("machines") == []
    wait_until(lambda: set(provider_fixtures.descendants(os.getpid())) <= set(before[1]))
    assert len(os.listdir("/proc/self/fd")) <= before[0]


def use(device):
    x = torch.arange(6.0).view(2, 3)
    y = x.to(device)
    assert y.device == device
    assert torch.equal((y @ y.T).cpu(), x @ x.T)
    y.requires_grad_()
    (y * y).sum().backward()
    assert torch.equal(y.grad.cpu(), 2 * x)


def test_a_machine_computes_and_goes_and_comes_again(place):
    options = place.options()
    address = options.pop(place.in_url, "")
    with pytest.raises(MachineError, match="has no devices, because it was not started"):
        place.machine().device()
    device = torch.remote.add_machine(f"{place.provider}://{address}", **options)
    (machine,) = machines()
    try:
        assert machine.device() == device and torch.remote.add_machine(machine) == device
        assert machine.name == (f"{place.provider}://{address}" if address else place.provider)
        x = torch.ones(3, device=device)
        use(device)
        status = machine.status()
        assert status.state == "running" and status.devices == (str(device),) and status.id == machine.id
        assert status.provider == place.provider and status.gpu is None and status.seconds >= 0
        (entry,) = state.entries("machines")
        assert (entry["id"], entry["provider"], entry["process"]) == (machine.id, place.provider, os.getpid())
        pause(place, machine)
    finally:
        machine.stop()
    status = machine.status()
    assert status.state == "stopped" and status.devices == () and status.detail == "it was stopped"
    with pytest.raises(MachineError, match=r"no devices, because it was stopped; start\(\) it"):
        machine.device()
    with pytest.raises(RuntimeError, match=r"it was stopped|lost"):
        x.cpu()
    machine.stop()  # a second stop does nothing
    assert isinstance(machine.logs(), str)
    torch.manual_seed(11)
    with machine as entered:  # the same device again, as a new session
        assert entered is machine and machines() == [machine]
        # A seed that was set earlier applies to it.
        theirs = torch.rand(4, device=machine.device()).cpu()
        with pytest.raises(RuntimeError, match=r"lost|restart"):
            x.cpu()
        use(machine.device())
    torch.manual_seed(11)
    assert torch.equal(theirs, torch.rand(4, device="remote").cpu())
    torch_remote.remote.restart()


def pause(place, machine):
    x = torch.arange(3.0, device=machine.device())
    if not place.can_pause:
        with pytest.raises(MachineError, match=r"cannot be paused; stop\(\) ends them"):
            machine.pause()
        return
    machine.pause()
    machine.pause()
    assert machine.status().state == "paused"
    wait_until(lambda: all(proc_state(pid) == "T" for pid in place.sessions()))
    machine.resume()
    assert machine.status().state == "running" and x.tolist() == [0, 1, 2]
    machine.pause()
    assert (x + 1).tolist() == [1, 2, 3]  # using it resumes it
    assert machine.status().state == "running"
    machine.pause()  # a paused machine can be stopped


def proc_state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


def test_devices_are_sessions_of_their_own(place):
    before = torch.remote.device_count()
    with place.machine(gpu_count=2) as machine:
        first, second = machine.devices()
        assert first != second and machine.device(1) == second
        # Device indices of stopped machines are reused.
        assert torch.remote.device_count() == max(before, 3)
        use(first)
        use(second)
        wait_until(lambda: len(place.sessions()) == 2)
        assert torch.equal((torch.ones(3, device=first) * 2).to(second).cpu(), torch.full((3,), 2.0))
        with pytest.raises(MachineError, match=r"has 2 devices, and no device\(2\); request more with gpu_count="):
            machine.device(2)


def test_a_lost_worker_is_said_and_another_one_comes(place):
    machine = place.machine()
    with machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        place.lose()
        with pytest.raises(WorkerLost):
            (x + 1).cpu()
        assert machine.status().state == "lost"
        torch.remote.restart(machine.device())
        use(machine.device())
        assert machine.status().state == "running", machine.status()
        place.lose()
        with pytest.raises(WorkerLost):
            torch.ones(1, device=machine.device()).cpu()
    with machine:  # a machine that was lost before it was stopped can start again
        use(machine.device())


def test_a_machine_that_nobody_uses_is_stopped(place):
    machine = place.machine(idle_timeout=0.6).start()
    x = torch.ones(3, device=machine.device())
    used = time.monotonic()
    end = used + 0.9
    while time.monotonic() < end:
        try:
            assert (x + 1).sum().item() == 6
        except RuntimeError:  # this process got no CPU time for that long
            assert time.monotonic() - used > 0.6
            break
        used = time.monotonic()
        time.sleep(0.05)
    wait_until(lambda: machine.status().state == "stopped")
    assert machine.status().detail == "it was not used for 0.6 s (idle_timeout)"
    with pytest.raises(RuntimeError, match=r"was not used for 0\.6 s \(idle_timeout\); start\(\) it again|lost"):
        x.cpu()


def test_what_cannot_be_had_is_said(place):
    with pytest.raises(MachineError, match="has no option 'colour'; Known are"):
        place.machine(colour="red")
    with pytest.raises(MachineError, match="no GPU called 'A1000'; did you mean 'A100'"):
        place.machine(gpu="A1000")
    with pytest.raises(MachineError, match="gpu_count=0 must be an integer from 1 to 16"):
        place.machine(gpu_count=0)
    with pytest.raises(MachineError, match="not a number of bytes; write 8G"):
        place.machine(memory_limit="much")
    with pytest.raises(MachineError, match="idle_timeout=-1 is not a time"):
        place.machine(idle_timeout=-1)
    with pytest.raises(MachineError, match=r"too few free devices|ha(s|ve) no NVIDIA GPU|runs already"):
        place.machine(gpu="V100", gpu_count=2).start()


def test_the_limits_of_a_worker_can_be_chosen(place):
    if not place.chooses:
        with pytest.raises(MachineError, match=r"runs already, so threads=1 cannot be chosen here; .*--threads"):
            place.machine(threads=1).start()
        return
    with place.machine(threads=1, memory_limit="64M") as machine:
        assert torch.remote.get_device_properties(machine.device()).total_memory == 64 << 20
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(100 << 20, dtype=torch.uint8, device=machine.device()).cpu()
        use(machine.device())


def test_ctrl_c_while_it_starts_leaves_nothing(place):
    machine = place.machine()
    timer = threading.Timer(0.03, lambda: os.kill(os.getpid(), 2))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            machine.start()
            time.sleep(10)  # the start was already complete
    finally:
        timer.join()
        machine.stop()
    assert machine.status().state == "stopped"
