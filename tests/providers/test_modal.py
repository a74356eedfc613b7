"""Modal machines, tested with a replacement of its SDK."""

import sys
import time

import fake_modal
import provider_fixtures
import pytest
import torch

import torch_remote
from torch_remote import MachineError, WorkerLost
from torch_remote.providers.modal import Modal


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = provider_fixtures.Modal(tmp_path_factory.mktemp("modal"))
    yield made
    made.close()


def test_what_a_sandbox_is_asked_for(place):
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = torch.__version__.partition("+")[0]
    with place.machine(cpu=2, memory=4096, region="eu", orphan_after=60, lifetime=3600, gpu_count=2) as machine:
        for i, sandbox in enumerate(place.cloud.sandboxes[-2:]):
            asked = sandbox.arguments
            assert (asked["timeout"], asked["idle_timeout"], asked["gpu"]) == (3600, 60, None)
            assert (asked["cpu"], asked["memory"], asked["region"]) == (2, 4096, "eu")
            assert asked["image"].steps == (("debian_slim", python), ("pip_install", f"torch=={version}"))
            assert "/opt/torch-remote/bin/torch-remote-worker" in asked["image"].files
            assert asked["tags"]["machine"] == machine.id and asked["tags"]["index"] == str(i)
            (token,) = [secret.values for secret in asked["secrets"]]
            assert len(token["TORCH_REMOTE_TOKEN"]) == 64
            assert token["TORCH_REMOTE_TOKEN"] not in "".join(sandbox.process.args)
        assert machine.status().detail == ", ".join(one.object_id for one in place.cloud.sandboxes[-2:])


def test_functions_want_torch_and_cloudpickle(place):
    with place.machine(allow_python=True) as machine:
        assert place.cloud.sandboxes[-1].arguments["image"].steps[1][-1] == "cloudpickle"
        assert torch_remote.function(lambda x: x + 1)(torch.ones(2, device=machine.device())).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("gpu", "count", "asked"), [("A100-80GB", 1, "A100-80GB"), ("H100:2", 2, "H100"), ("any", 1, "L4")]
)
def test_gpus(place, monkeypatch, gpu, count, asked):
    seen = []

    def create(*command, **arguments):
        seen.append((command, arguments))
        raise fake_modal.Error("out of GPUs")

    monkeypatch.setattr(sys.modules["modal"].Sandbox, "create", create)
    with pytest.raises(MachineError, match="Modal cannot start a worker: out of GPUs"):
        place.machine(gpu=gpu, image="nvidia/cuda:13.0").start()
    ((command, arguments),) = seen
    assert arguments["gpu"] == asked and command[-2:] == ("--device", "cuda:0")
    assert arguments["image"].steps == (("from_registry", "nvidia/cuda:13.0"),)
    assert torch_remote.RemoteMachine("modal", gpu=gpu).spec.gpu_count == count


def test_what_modal_has_not(place):
    with pytest.raises(MachineError, match="Modal has no NVIDIA GPU of kind RTX-3090; it has any, T4, "):
        place.machine(gpu="RTX-3090").start()
    for name in ("lifetime", "orphan_after"):
        with pytest.raises(MachineError, match=f"{name}=100000 is not a number of seconds from 1 to 86400"):
            place.machine(**{name: 100_000}).start()
    place.cloud.refuse = fake_modal.AuthError("Token missing")
    try:
        with pytest.raises(MachineError, match="Modal rejected your credentials: Token missing; log in: modal setup"):
            place.machine().start()
    finally:
        place.cloud.refuse = None


def test_a_sandbox_that_ends(place):
    with place.machine(memory_limit="1G") as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        place.cloud.sandboxes[-1].process.kill()
        with pytest.raises(WorkerLost):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                (x + 1).cpu()
        assert machine.status().detail.endswith("was killed by signal 9 (Killed)")


def test_a_worker_that_cannot_start_says_why(place, monkeypatch):
    monkeypatch.setattr("torch_remote.providers.modal._SCRIPT", "echo tcp://0.0.0.0:4500; echo no such thing; exit 3")
    with pytest.raises(MachineError, match=r"cannot|ended"):
        place.machine().start()
    monkeypatch.setattr("torch_remote.providers.modal._SCRIPT", "echo no such thing; exit 3 # tcp://0.0.0.0:4500")
    with pytest.raises(MachineError, match="sandbox exited with status 3: no such thing"):
        place.machine().start()


def test_one_that_cannot_be_stopped_does_not_keep_the_others(place):
    machine = place.machine(gpu_count=2).start()
    first, second = place.cloud.sandboxes[-2:]

    def fail():
        raise fake_modal.Error("no connection")

    first.terminate = fail
    with pytest.raises(MachineError, match=r"did not stop all sandboxes .*: no connection; .* --left-over modal://"):
        machine.stop()
    assert second.poll() is not None and machine.status().state == "running"
    del first.terminate
    machine.stop()
    assert first.poll() is not None and machine.status().state == "stopped"


def test_what_is_left_over_is_found(place):
    with place.machine() as machine:
        (left,) = Modal.leftovers({})
        assert left.id == machine.id
        left.remove()
        assert list(Modal.leftovers({})) == []
        left.remove()  # it has ended already
        assert list(Modal.leftovers({"app": "never-used"})) == [] and "never-used" not in place.cloud.apps


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (fake_modal.AuthError("Token missing"), "rejected your credentials: Token missing; log in: modal setup"),
        (fake_modal.Error("no connection"), "Modal cannot list sandboxes: no connection"),
    ],
)
def test_errors_of_a_list_of_leftovers_are_reported(place, error, message):
    place.cloud.refuse = error
    try:
        with pytest.raises(MachineError, match=message):
            list(Modal.leftovers({}))
    finally:
        place.cloud.refuse = None


def test_a_leftover_that_cannot_be_stopped_is_reported(place, monkeypatch):
    with place.machine():
        (left,) = Modal.leftovers({})

        def fail(self):
            raise fake_modal.Error("no connection")

        with monkeypatch.context() as patch:
            patch.setattr(fake_modal.Sandbox, "terminate", fail)
            with pytest.raises(MachineError, match=r"Modal cannot stop sandbox sb-.*: no connection"):
                left.remove()
