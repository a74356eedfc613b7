"""Kubernetes machines: the manifests, errors in a cluster, and leftovers."""

import base64
import copy
import json
import os
import threading
import time
from urllib.parse import quote

import kubernetes_validate
import provider_fixtures
import pytest
import torch
import typer

import torch_remote_cli.left_over
from torch_remote import MachineError, RemoteMachine, WorkerLost, machines
from torch_remote.providers import kubernetes_job, records
from torch_remote.providers.kubernetes import Kubernetes
from torch_remote.providers.provider import Leftover, MachineSpec
from torch_remote_cli import state


def spec(gpu=None, gpu_count=1, threads=None, memory_limit=None, **options):
    return MachineSpec(
        "m-1", "kubernetes", gpu=gpu, gpu_count=gpu_count, threads=threads, memory_limit=memory_limit,
        options={"image": "lab/worker:1", **options},
    )  # fmt: skip


def manifest(*args, nodes=None, **kwargs):
    """A manifest that matches the published schemas."""
    made = kubernetes_job.manifest(spec(*args, **kwargs), nodes)
    kubernetes_validate.validate(made, "1.37", strict=True)
    kubernetes_validate.validate(made, "1.30", strict=True)
    return made


def pod_of(job):
    return job["spec"]["template"]["spec"]


def test_the_job_of_workers_on_cpus():
    job = manifest(gpu_count=3, threads=2, memory_limit=1 << 30, cpu=2, memory="4Gi", orphan_after=90, lifetime=3600)
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "torch-remote-m-1")
    about = job["spec"]
    assert about["completions"] == about["parallelism"] == 3 and about["completionMode"] == "Indexed"
    assert about["activeDeadlineSeconds"] == 3600 and about["ttlSecondsAfterFinished"] == 60
    (container,) = pod_of(job)["containers"]
    command = " ".join(container["command"] + container["args"])
    assert command == (
        "torch-remote worker serve --host 127.0.0.1 --port 4500 --token-file /etc/torch-remote/token --idle-timeout 90 "
        "--threads 2 --memory-limit 1073741824"
    )
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "4Gi"}}
    assert pod_of(job)["restartPolicy"] == "Never" and pod_of(job)["automountServiceAccountToken"] is False
    for labels in (job["metadata"]["labels"], about["template"]["metadata"]["labels"]):
        assert labels["torch-remote/machine"] == "m-1" and labels["torch-remote/owner"] == kubernetes_job.owner()


def test_the_job_of_workers_on_gpus():
    job = manifest("A100", nodes={"nvidia.com/gpu.product": ["NVIDIA-A100-SXM4-80GB"]}, node_selector="zone=a,disk=ssd")
    (container,) = pod_of(job)["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1} and container["args"][-2:] == [
        "--device",
        "cuda:0",
    ]
    assert pod_of(job)["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    (term,) = pod_of(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}
    ]
    job = manifest("any", gpu_resource="nvidia.com/mig-3g.20gb")
    assert pod_of(job)["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.20gb": 1}


def test_a_template_is_kept(tmp_path):
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"a": "b"}},
        "spec": {
            "serviceAccountName": "training",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "nodeSelector": {"pool": "big"},
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [
                {"name": "main", "image": "mine:2", "env": [{"name": "A", "value": "1"}],
                 "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                 "resources": {"limits": {"memory": "8Gi"}}},
                {"name": "side", "image": "other:1"},
            ],
        },
    }  # fmt: skip
    before = copy.deepcopy(template)
    job = manifest("any", template=template, image=None, node_selector={"zone": "a"})
    assert template == before
    main, side = pod_of(job)["containers"]
    assert (main["name"], main["image"], side) == ("main", "mine:2", before["spec"]["containers"][1])
    assert main["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 1}
    assert {one["mountPath"] for one in main["volumeMounts"]} == {"/data", "/etc/torch-remote", "/run/torch-remote"}
    assert pod_of(job)["nodeSelector"] == {"pool": "big", "zone": "a"}
    assert pod_of(job)["serviceAccountName"] == "training"
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "vision"
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(template))
    assert manifest("any", template=str(file), image=None, node_selector={"zone": "a"}) == job


def test_what_a_worker_may_is_asked_for():
    assert not {"--allow-files", "--allow-python"} & set(pod_of(manifest(allow_python="no"))["containers"][0]["args"])
    args = pod_of(manifest(allow_files="/data", allow_python=True))["containers"][0]["args"]
    assert args[args.index("--allow-files") + 1] == "/data" and "--allow-python" in args and "--python" not in args
    args = pod_of(manifest(allow_files="1", allow_python="python3.12"))["containers"][0]["args"]
    assert args[args.index("--allow-files") + 1] == "/" and args[args.index("--python") + 1] == "python3.12"
    for options in ({"allow_python": "a b"}, {"allow_files": "$HOME"}, {"allow_python": 3}, {"allow_files": "-x"}):
        with pytest.raises(MachineError, match=next(iter(options))):
            manifest(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": None}, r"needs an image with torch_remote: RemoteMachine\('kubernetes', image="),
        ({"template": {"kind": "Pod"}}, "template= is a pod's template, with 'spec'"),
        ({"template": "/no/such/file.yaml"}, "cannot read the pod template /no/such/file.yaml"),
        ({"node_selector": "fast"}, "node_selector='fast' is not understood"),
        ({"lifetime": "long"}, "lifetime='long' is not a number"),
        ({"orphan_after": -1}, "orphan_after=-1 is not a number"),
        ({"orphan_after": "nan"}, "orphan_after='nan' is not a number"),
        ({"max_restarts": float("inf")}, "max_restarts=inf is not a number"),
        ({"max_restarts": 2.5}, "max_restarts=2.5 is not an integer; write max_restarts=3"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_said(options, message):
    with pytest.raises(MachineError, match=message):
        kubernetes_job.manifest(spec(**options))


def test_the_token_is_in_a_secret_that_goes_with_the_job():
    job = {"metadata": {**manifest()["metadata"], "uid": "u-1"}}
    made = kubernetes_job.secret(spec(), "very secret", job)
    kubernetes_validate.validate(made, "1.37", strict=True)
    assert base64.b64decode(made["data"]["token"]) == b"very secret"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert "very secret" not in json.dumps(manifest())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    if os.environ.get("TORCH_REMOTE_TEST_DEVICE", "remote") == "cpu":
        pytest.skip("of the device remote alone")
    made = provider_fixtures.Kubernetes(tmp_path_factory.mktemp("kubernetes"))
    yield made
    made.close()


@pytest.fixture
def cluster(place):
    yield place.cluster
    place.cluster.nodes, place.cluster.forbidden, place.cluster.unschedulable = [], set(), ""
    place.cluster.image_error = None


def test_connections_break_and_sessions_go_on(place, cluster):
    with place.machine() as machine:
        device = machine.device()
        host = torch.randn(3 << 20)
        x = host.to(device)
        for _ in range(3):
            assert cluster.cut() == 1
            x = x + 1
            host = host + 1
            assert torch.equal(x.cpu(), host)


def test_large_tensors_pass_both_ways_at_once(place, cluster):
    with place.machine() as machine:
        device = machine.device()
        host = torch.randint(0, 255, (24 << 20,), dtype=torch.uint8)
        first = host.to(device)
        results = []
        reader = threading.Thread(target=lambda: results.append(first.cpu()))
        reader.start()
        second = host.flip(0).to(device)
        reader.join()
        assert torch.equal(results[0], host) and torch.equal(second.cpu(), host.flip(0))


def test_a_pod_that_was_evicted_is_replaced(place, cluster):
    with place.machine() as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        (pod,) = cluster.pods.values()
        with cluster.lock:
            pod.evict()
        with pytest.raises(WorkerLost, match="Evicted"):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                (x + 1).cpu()
        assert "Evicted: The node was low on resource" in machine.status().detail
        torch.remote.restart(machine.device())
        assert torch.ones(3, device=machine.device()).sum().item() == 3
        assert machine.status().state == "running" and pod.name not in machine.status().detail


def test_clusters_without_room_or_image(place, cluster):
    cluster.unschedulable = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    with pytest.raises(MachineError, match=r"had no free capacity for \d s: 0/3 nodes are available.*; request less"):
        place.machine(gpu="any", wait=0.3).start()
    cluster.unschedulable = ""
    cluster.image_error = ("ImagePullBackOff", "Back-off pulling image")
    with pytest.raises(MachineError, match="ImagePullBackOff: Back-off pulling image; check image="):
        place.machine().start()
    assert cluster.jobs == {} and cluster.secrets == {}


def test_a_worker_that_cannot_start_says_why(place, cluster):
    template = {"spec": {"containers": [{"image": "x", "env": [{"name": "TORCH_REMOTE_SYNC", "value": "perhaps"}]}]}}
    with pytest.raises(MachineError, match=r"ended: Error, exited with status 1: .*TORCH_REMOTE_SYNC"):
        place.machine(template=template).start()
    assert cluster.jobs == {}


def test_gpus_by_the_labels_of_nodes(place, cluster):
    cluster.nodes = [
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        {"nvidia.com/gpu.product": "NVIDIA-A10"},
        {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"},
        {"kubernetes.io/os": "linux"},
    ]
    cluster.unschedulable = "taken"
    for gpu, values in (("A100", ["NVIDIA-A100-SXM4-80GB"]), ("RTX-4090", ["NVIDIA-GeForce-RTX-4090"])):
        seen = []
        watch = threading.Thread(target=lambda seen=seen: seen.append(wait_for_job(cluster)))
        watch.start()
        with pytest.raises(MachineError, match="taken"):
            place.machine(gpu=gpu, wait=0.2).start()
        watch.join()
        affinity = seen[0]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == values
    with pytest.raises(
        MachineError, match=r"the nodes of tests have NVIDIA A10, NVIDIA A100 SXM4 80GB, .*but the machine needs H100"
    ):
        place.machine(gpu="H100").start()
    cluster.nodes = [{"cloud.google.com/gke-accelerator": "nvidia-l4"}]
    with pytest.raises(MachineError, match="have L4, but the machine needs T4"):
        place.machine(gpu="T4").start()
    cluster.forbidden = {"GET nodes"}
    with pytest.raises(MachineError, match=r"cannot list the nodes of tests that have H100 .*; give node_selector="):
        place.machine(gpu="H100").start()
    with pytest.raises(MachineError, match="taken"):
        place.machine(gpu="H100", node_selector="gpu=h100", wait=0.2).start()


def wait_for_job(cluster):
    deadline = time.monotonic() + 20
    while not cluster.jobs:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return next(iter(cluster.jobs.values()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "nowhere"}, "cannot use the configured Kubernetes cluster: .*kubectl config get-contexts"),
        ({"kubeconfig": "/no/such/config"}, "cannot use the configured Kubernetes cluster"),
        ({"context": "stranger"}, r"Kubernetes \(stranger\): Unauthorized; log in again"),
        ({"context": "elsewhere"}, r"https://127.0.0.1:9 \(elsewhere\) cannot be reached"),
        ({"namespace": "other"}, "no such namespace"),
    ],
)
def test_clusters_that_let_nobody_in(place, cluster, options, message):
    with pytest.raises(MachineError, match=message) as raised:
        RemoteMachine("kubernetes", **{**place.options(), **options}).start()
    assert "may still run" not in str(raised.value) and machines() == []


def test_rights_that_are_missing_are_named_and_nothing_is_left(place, cluster):
    cluster.forbidden = {"POST create_secret"}
    with pytest.raises(MachineError, match=r"is forbidden: .*; request that permission"):
        place.machine().start()
    assert cluster.jobs == {}


def test_what_is_left_over_is_found(place, cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    machine = place.machine().start()
    (left,) = Kubernetes.leftovers(place.options())
    assert left.id == machine.id and left.process == os.getpid() and f"lab/torch-remote-{machine.id}" in left.what
    (entry,) = state.entries("machines")
    assert entry["id"] == left.id
    url = "kubernetes://tests?kubeconfig=" + quote(str(cluster.kubeconfig))
    torch_remote_cli.left_over.list_or_remove(url, remove=True, as_json=False)
    assert (
        "there are no leftover machines" in capsys.readouterr().out
    )  # this process knows the machine, so it is not a leftover
    records.remove(machine.id)
    torch_remote_cli.left_over.list_or_remove(url, remove=False, as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["id"] == machine.id and shown["removed"] is False and len(cluster.jobs) == 1
    torch_remote_cli.left_over.list_or_remove(url, remove=True, as_json=False)
    assert "removed" in capsys.readouterr().out
    assert cluster.jobs == {} and list(Kubernetes.leftovers(place.options())) == []
    machine.stop()  # stopping a deleted machine is no error


def test_removal_of_leftovers_continues_after_an_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    removed = []

    def refuse():
        raise MachineError("remote: forbidden")

    leftovers = [
        Leftover("m-1", "job a", "today", 1, refuse),
        Leftover("m-2", "job b", "today", 2, lambda: removed.append("m-2")),
        Leftover("m-3", "job c", "today", 3, refuse),
    ]
    monkeypatch.setattr(Kubernetes, "leftovers", classmethod(lambda cls, options: iter(leftovers)))
    with pytest.raises(typer.Exit) as ended:
        torch_remote_cli.left_over.list_or_remove("kubernetes://tests", remove=True, as_json=True)
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1 and removed == ["m-2"]
    assert [row["removed"] for row in json.loads(printed.out)] == [False, True, False]
    assert printed.err == "m-1: remote: forbidden\nm-3: remote: forbidden\n"


def test_the_sdk_is_named_where_it_is_missing(script, remote):
    script(
        """
        import sys
        sys.modules["kubernetes"] = sys.modules["modal"] = None
        import pytest, torch, torch_remote
        for provider, arguments in (("kubernetes", {"image": "x"}), ("modal", {})):
            machine = torch_remote.RemoteMachine(provider, **arguments)
            with pytest.raises(torch_remote.MachineError, match=rf"pip install 'torch-remote\\[{provider}\\]'"):
                machine.start()
        """
    )
