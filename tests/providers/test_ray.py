"""Ray machines, on a cluster on this machine: actors, resources, a placement group."""

import os
import signal
import time

import provider_fixtures
import pytest
import torch

from torch_remote import MachineError, RemoteMachine, WorkerLost, machines

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray", numbered=False)
    ray.init(
        num_cpus=4, num_gpus=0, resources={"bench": 2}, include_dashboard=False, _node_ip_address="127.0.0.1",
        _temp_dir=f"/tmp/ray_{os.getpid()}" if len(str(folder)) > 50 else str(folder),
        object_store_memory=100 << 20, logging_level="warning", log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )  # fmt: skip
    yield
    ray.shutdown()


def test_two_workers_are_a_placement_group(cluster):
    with RemoteMachine("ray", gpu_count=2, num_cpus=1, resources={"bench": 1}, threads=1, strategy="PACK") as machine:
        first, second = machine.devices()
        x = torch.arange(4.0, device=first)
        assert torch.equal((x * 2).to(second).cpu(), torch.arange(4.0) * 2)
        assert machine.status().state == "running" and machine.status().detail == "2 actors"
        left = ray.available_resources()
        assert left["CPU"] == 2 and left.get("bench", 0) == 0
        (group,) = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
        assert len(group["bundles"]) == 2
    deadline = time.monotonic() + 30
    while ray.available_resources().get("bench", 0) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert machines() == [] and isinstance(machine.logs(), str)


def test_what_the_cluster_has_not_is_said(cluster):
    with pytest.raises(
        MachineError, match=r"has GPU: 0, accelerator_type:A100: 0, but the machine needs .*wait=SECONDS"
    ):
        RemoteMachine("ray", gpu="A100").start()
    with pytest.raises(MachineError, match=r"has bench: 2, but the machine needs bench: 3"):
        RemoteMachine("ray", resources={"bench": 3}).start()
    for option, value in (("wait", "long"), ("max_restarts", "long"), ("max_restarts", 2.5)):
        with pytest.raises(MachineError, match="wait is a number of seconds, and max_restarts an integer"):
            RemoteMachine("ray", **{option: value}).start()
    with (
        RemoteMachine("ray", num_cpus=3),
        pytest.raises(MachineError, match=r"waited \d+ s for free capacity in the Ray cluster"),
    ):
        RemoteMachine("ray", num_cpus=3, wait=0.5).start()


def test_a_worker_that_dies_is_started_again_by_ray(cluster):
    with RemoteMachine("ray", threads=1) as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        for pid in provider_fixtures.workers_of(os.getpid()):  # Ray is a child of this process
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            (x + 1).cpu()
        machine.stop()
        machine.start()
        assert torch.ones(3, device=machine.device()).sum().item() == 3
