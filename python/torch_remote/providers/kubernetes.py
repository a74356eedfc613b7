"""Provider `kubernetes`: workers that are the pods of a Job, reached through the API server.

The worker listens on its pod's own loopback, so nothing else in the cluster can reach it. A port of this machine
forwards to it (forward.py), and a broken connection is established again. If a client dies, its resources end by
themselves: the worker when it was unused for `orphan_after` seconds, the finished Job a minute later, and its Secret
with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http.client import responses
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from torch_remote.providers import gpus
from torch_remote.providers.forward import Forwarder, PodPort
from torch_remote.providers.kubernetes_job import (
    MACHINE,
    MANAGED,
    OWNER,
    PORT,
    manifest,
    number,
    owner,
    secret,
    template_of,
)
from torch_remote.providers.local import ALLOWANCES
from torch_remote.providers.provider import (
    Endpoint,
    Leftover,
    MachineError,
    MachineSpec,
    Provider,
    ProviderStatus,
)
from torch_remote_cli.exit_status import describe

_INDEX = "batch.kubernetes.io/job-completion-index"
_PRODUCT = "nvidia.com/gpu.product"  # label that NVIDIA's GPU feature discovery gives a node: "NVIDIA-A100-SXM4-80GB"
_GKE = "cloud.google.com/gke-accelerator"  # the corresponding label in Google's clusters, with names of its own:
_GKE_NAMES = {
    "nvidia-tesla-t4": "Tesla T4",
    "nvidia-tesla-v100": "Tesla V100",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-l4": "L4",
    "nvidia-h100-80gb": "H100 80GB",
    "nvidia-h100-mega-80gb": "H100 80GB",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-gb200": "GB200",
}
_TO_ANSWER = 30.0  # seconds per request
_TO_PULL = 1800.0  # seconds to pull an image and start a container
_TO_LOOK = 0.2  # seconds between `status` requests to the server, at least
_LOG_KEPT = 64 << 10
# Reasons of waiting containers that waiting will not resolve.
_HOPELESS = {
    "ErrImagePull": "check image= and the cluster's right to pull it",
    "ImagePullBackOff": "check image= and the cluster's right to pull it",
    "ErrImageNeverPull": "the image must be on the node",
    "InvalidImageName": "check image=",
    "CreateContainerConfigError": "check the template",
    "CreateContainerError": "check the template, and that the image has torch_remote",
    "RunContainerError": "check that the image has torch_remote (pip install torch-remote)",
    "CrashLoopBackOff": "look at the logs",
}


class _ApiError(MachineError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Api:
    """Calls of one API server, with the SDK's configuration: addresses, certificates, credentials."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise MachineError(
                "remote: provider 'kubernetes' needs Kubernetes' client: pip install 'torch-remote[kubernetes]'"
            ) from error
        self.configuration = client.Configuration()
        context, file = options.get("context"), options.get("kubeconfig")
        self.namespace = options.get("namespace") or ""
        try:
            if context is None and file is None and "KUBECONFIG" not in os.environ and _is_in_cluster():
                config.load_incluster_config(client_configuration=self.configuration)
                self.name = "this cluster"
                self.namespace = self.namespace or Path(_SERVICE_ACCOUNT, "namespace").read_text().strip()
            else:
                config.load_kube_config(
                    config_file=file, context=context, client_configuration=self.configuration, persist_config=False
                )
                contexts, current = config.list_kube_config_contexts(config_file=file)
                used = next((c for c in contexts if c["name"] == context), current)
                self.name = used["name"]
                self.namespace = self.namespace or used["context"].get("namespace", "")
        except (config.ConfigException, OSError) as error:
            raise MachineError(
                f"remote: cannot use the configured Kubernetes cluster: {error}; see 'kubectl config get-contexts', "
                "or give context= or kubeconfig="
            ) from error
        self.namespace = self.namespace or "default"
        self.configuration.retries = False
        self._api = client.ApiClient(self.configuration)
        self._turn = threading.Lock()  # guards the configuration, because credentials may be renewed

    def headers(self) -> dict[str, str]:
        with self._turn:
            settings: list[Any] = list(self.configuration.auth_settings().values())
        return {str(one["key"]): one["value"] for one in settings if one["in"] == "header" and one["value"]}

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> bytes:
        """Returns the answer of /PATH; raises _ApiError if the status is not a success."""
        url = f"{self.configuration.host.rstrip('/')}/{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json, */*", **self.headers()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._api.rest_client.pool_manager.request(
                verb, url, headers=headers, timeout=_TO_ANSWER, retries=False,
                body=None if body is None else json.dumps(body).encode(),
            )  # fmt: skip
        except Exception as error:  # urllib3's, ssl's
            raise _ApiError(
                f"remote: the Kubernetes API at {self.configuration.host} ({self.name}) cannot be reached: {error}", 0
            ) from error
        if 200 <= answer.status < 300:
            return bytes(answer.data)
        said = answer.data.decode(errors="replace")
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(said)["message"]
        hint = {401: "; log in again", 403: "; request that permission, or use another namespace="}.get(
            answer.status, ""
        )
        raise _ApiError(f"remote: Kubernetes ({self.name}): {said or _status_text(answer.status)}{hint}", answer.status)

    def get(self, path: str, **query: Any) -> Any:
        return json.loads(self.call("GET", path, **query))

    def in_namespace(self, group: str, kind: str, *rest: str) -> str:
        return "/".join([group, "namespaces", quote(self.namespace), kind, *map(quote, rest)])

    def dial(self, pod: str) -> PodPort:
        """Opens a connection to the worker's port in a pod."""
        from kubernetes.stream import ws_client

        path = self.in_namespace("api/v1", "pods", pod, "portforward")
        url = ws_client.get_websocket_url(f"{self.configuration.host.rstrip('/')}/{path}", [("ports", str(PORT))])
        headers = {**self.headers(), "sec-websocket-protocol": "v4.channel.k8s.io"}
        return PodPort(ws_client.create_websocket(self.configuration, url, headers).sock)

    def close(self) -> None:
        self._api.rest_client.pool_manager.clear()


_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def _is_in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and Path(_SERVICE_ACCOUNT, "token").exists()


class Kubernetes(Provider):
    """One pod per device, all of one Job."""

    address = "context"
    options = {
        "context": "context of the kubeconfig; default: its current one, or in a pod that pod's cluster",
        "namespace": "default: the context's",
        "image": "image that contains torch_remote",
        "node_selector": "labels of nodes: {'zone': 'a'} or 'zone=a,disk=fast'",
        "gpu_resource": "what the cluster calls a GPU; default: nvidia.com/gpu",
        "cpu": "CPUs that each pod requests: '500m', 4",
        "memory": "memory that each pod requests: '8Gi'",
        "template": "a pod's template, whose first container becomes the worker: dict, or YAML file",
        "wait": "seconds to wait for free capacity in the cluster; default: 60",
        "orphan_after": "seconds without a client after which a worker ends; default: 300",
        "lifetime": "seconds after which the cluster ends it in any case; default: none",
        "max_restarts": "how often a pod that failed is replaced; default: 3",
        "kubeconfig": "file; default: KUBECONFIG, ~/.kube/config",
        **ALLOWANCES,
    }

    def __init__(self) -> None:
        self._api: _Api | None = None
        self._job = ""
        self._created: threading.Event | None = None
        self._forwarders: dict[int, Forwarder] = {}
        self._pods: dict[int, str] = {}  # by device: the pod that its connections lead to
        self._looked = (-1.0, ProviderStatus("stopped"))
        self._kept = ""

    def start(self, spec: MachineSpec) -> Endpoint:
        self._spec = spec
        self._token = secrets.token_hex(32)
        manifest(spec)  # reports mistakes in the spec before any request
        self._api = _Api(spec.options)
        try:
            self._create()
            self._wait(range(spec.gpu_count))
            return self.connect(0)
        except BaseException:
            self.stop()
            raise

    def _create(self) -> None:
        api, spec = self._api, self._spec
        assert api is not None
        job = manifest(spec, self._nodes() if spec.gpu and spec.gpu != gpus.ANY else None)
        jobs, those = api.in_namespace("apis/batch/v1", "jobs"), api.in_namespace("api/v1", "secrets")
        failed: list[Exception] = []

        def create() -> None:
            try:
                try:
                    answer = api.call("POST", jobs, job, fieldValidation="Strict")
                except _ApiError as error:
                    if _created_nothing(error):
                        self._job = ""
                    raise
                api.call("POST", those, secret(spec, self._token, json.loads(answer)))
            except Exception as error:
                failed.append(error)
            finally:
                created.set()

        # Runs in a thread of its own: an interrupted caller waits for it before the created resources are deleted. (An
        # interrupted join() would treat the thread as ended.)
        self._job = job["metadata"]["name"]
        self._created = created = threading.Event()
        threading.Thread(target=create, name="torch-remote kubernetes", daemon=True).start()
        created.wait()
        if failed:
            raise failed[0]

    def _nodes(self) -> dict[str, list[str]] | None:
        """Returns a label, and its values, of nodes with the wanted GPU. None: the user chooses the nodes
        (node_selector)."""
        api, spec = self._api, self._spec
        assert api is not None and spec.gpu is not None
        if spec.options.get("node_selector") or "nodeSelector" in template_of(spec.options.get("template"))["spec"]:
            return None
        try:
            nodes = api.get("api/v1/nodes")["items"]
        except _ApiError as error:
            if error.status != 403:
                raise
            raise MachineError(
                f"remote: cannot list the nodes of {api.name} that have {spec.gpu} ({error}); give node_selector="
            ) from error
        there: dict[tuple[str, str], str] = {}  # (label, value): the driver's name
        for node in nodes:
            labels = node["metadata"].get("labels", {})
            if _PRODUCT in labels:
                there[_PRODUCT, labels[_PRODUCT]] = labels[_PRODUCT].replace("-", " ")
            elif _GKE in labels:
                there[_GKE, labels[_GKE]] = _GKE_NAMES.get(labels[_GKE], labels[_GKE])
        found: dict[str, list[str]] = {}
        for (label, value), name in sorted(there.items()):
            # Drivers write some names with dashes ("A100-SXM4-80GB") and some without ("GeForce RTX 4090").
            if gpus.matches(spec.gpu, name) or gpus.matches(spec.gpu, value.replace("NVIDIA-", "")):
                found.setdefault(label, []).append(value)
        if not found:
            has = ", ".join(sorted(set(there.values()))) or "no NVIDIA GPU in their labels"
            raise MachineError(
                f"remote: the nodes of {api.name} have {has}, but the machine needs {spec.gpu}; request what is "
                "available, or give node_selector= if the cluster adds nodes on demand"
            )
        return dict([max(found.items(), key=lambda item: len(item[1]))])

    def _pods_there(self) -> list[dict[str, Any]]:
        """All pods of the machine, the oldest first."""
        assert self._api is not None
        path = self._api.in_namespace("api/v1", "pods")
        pods = self._api.get(path, labelSelector=f"{MACHINE}={self._spec.id}")["items"]
        return sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def _list(self) -> dict[int, dict[str, Any]]:
        """The newest pod of each device."""
        return {_index_of(pod): pod for pod in self._pods_there()}

    def _wait(self, wanted: Sequence[int], again: bool = False) -> None:
        """Waits until the pods of some devices are ready, in steps, so that Ctrl-C interrupts it.

        `again`: a pod has ended, and the Job creates another one.
        """
        assert self._api is not None
        began = time.monotonic()
        room, step = number(self._spec.options, "wait", 60), 0.05
        while True:
            pods = self._list()
            missing = [index for index in wanted if not _is_ready(pods.get(index))]
            if not missing:
                return
            waited = time.monotonic() - began
            for pod in pods.values():
                if (wrong := self._wrong(pod)) and (not again or waited > room):
                    raise MachineError(f"remote: Kubernetes ({self._api.name}) cannot start a worker: {wrong}")
                if (why := _unschedulable(pod)) and waited > room:
                    raise MachineError(
                        f"remote: Kubernetes ({self._api.name}) had no free capacity for {waited:.0f} s: {why}; "
                        "request less, or give a longer wait="
                    )
            if not pods and waited > room:
                raise MachineError(
                    f"remote: Kubernetes ({self._api.name}) created no pod in {waited:.0f} s: "
                    f"{self._job_says() or 'kubectl describe job ' + self._job}"
                )
            if waited > _TO_PULL:
                raise MachineError(
                    f"remote: a worker did not listen after {waited:.0f} s; kubectl describe pod -l {MACHINE}="
                    f"{self._spec.id} says why"
                )
            time.sleep(step)
            step = min(1.0, step * 1.3)

    def _wrong(self, pod: dict[str, Any]) -> str:
        """Why a pod will never be ready; empty if it may become ready."""
        name, status = pod["metadata"]["name"], pod.get("status", {})
        if status.get("phase") in ("Failed", "Succeeded"):
            last = self._log_of(name).strip().splitlines()[-3:]
            return f"pod {name} ended: {_end_of(pod)}" + (f": {'; '.join(last)}" if last else "")
        for container in status.get("containerStatuses", []):
            waiting = container.get("state", {}).get("waiting") or {}
            hint = _HOPELESS.get(waiting.get("reason", ""))
            if hint is not None:
                return f"pod {name}: {waiting['reason']}: {waiting.get('message', '')}; {hint}"
        return ""

    def _job_says(self) -> str:
        """The events of a Job that could not create pods, for example because of a quota."""
        assert self._api is not None
        with contextlib.suppress(_ApiError, KeyError):
            selector = f"involvedObject.name={self._job},type=Warning"
            events = self._api.get(self._api.in_namespace("api/v1", "events"), fieldSelector=selector)["items"]
            return events[-1]["message"] if events else ""
        return ""

    def connect(self, index: int) -> Endpoint:
        assert self._api is not None
        pod = self._list().get(index)
        if not _is_ready(pod):  # the Job creates another one, up to max_restarts
            self._wait([index], again=True)
            pod = self._list().get(index)
        assert pod is not None
        self._pods[index] = pod["metadata"]["name"]
        self._looked = (-1.0, ProviderStatus("running"))  # the known status is the old pod's
        if index not in self._forwarders:
            api = self._api
            self._forwarders[index] = Forwarder(lambda: api.dial(self._pods[index]), self._job)
        return Endpoint(f"tcp://{self._forwarders[index].address}", token=self._token)

    def stop(self) -> None:
        api = self._api
        if api is None:
            return
        for forwarder in self._forwarders.values():
            forwarder.close()
        if self._created is not None:
            self._created.wait(3 * _TO_ANSWER)
        if self._job:
            with contextlib.suppress(MachineError):
                self._kept = self.logs()
            _delete(api, self._job)
        self._api, self._job = None, ""
        api.close()

    def status(self) -> ProviderStatus:
        api = self._api
        if api is None or not self._job:
            return ProviderStatus("stopped")
        when, known = self._looked
        if time.monotonic() - when > _TO_LOOK:
            known = self._look()
            self._looked = (time.monotonic(), known)
        return known

    def _look(self) -> ProviderStatus:
        try:
            pods = {pod["metadata"]["name"]: pod for pod in self._pods_there()}
        except _ApiError as error:
            return ProviderStatus("running", f"unknown: {error}")
        ends = []
        ours = list(self._pods.values())  # another thread may connect a device
        for name in ours:
            if name not in pods:
                ends.append(f"pod {name} is gone")
            elif pods[name].get("status", {}).get("phase") in ("Failed", "Succeeded"):
                ends.append(f"pod {name} ended: {_end_of(pods[name])}")
        if ends:
            return ProviderStatus("lost", "; ".join(ends))
        return ProviderStatus("running", ", ".join(sorted(ours)))

    def _log_of(self, pod: str) -> str:
        assert self._api is not None
        try:
            path = self._api.in_namespace("api/v1", "pods", pod, "log")
            return self._api.call("GET", path, limitBytes=10 << 20, tailLines=1000).decode(errors="replace")
        except _ApiError as error:
            return f"{error}\n"

    def logs(self) -> str:
        if self._api is None or not self._job:
            return self._kept
        try:
            pods = self._list()
        except _ApiError as error:
            return f"{error}\n"
        text = "".join(self._log_of(pod["metadata"]["name"]) for _, pod in sorted(pods.items()))
        text += "".join(f"connection: {one.error}\n" for one in list(self._forwarders.values()) if one.error)
        return text[-_LOG_KEPT:]

    @classmethod
    def leftovers(cls, options: Mapping[str, Any]) -> Iterator[Leftover]:
        api = _Api(options)
        try:
            path = api.in_namespace("apis/batch/v1", "jobs")
            for job in api.get(path, labelSelector=f"{MANAGED}=torch-remote,{OWNER}={owner()}")["items"]:
                metadata = job["metadata"]
                notes = metadata.get("annotations", {})
                yield Leftover(
                    id=metadata["labels"][MACHINE],
                    what=f"job {metadata['namespace']}/{metadata['name']}",
                    made=metadata["creationTimestamp"],
                    process=int(notes.get("torch-remote/process", 0)),
                    remove=partial(_delete, api, metadata["name"]),
                )
        finally:
            api.close()


def _created_nothing(error: _ApiError) -> bool:
    """Whether a request to create something had certainly no effect: it was refused, or there was no connection."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError  # a dependency of Kubernetes' client

    return 400 <= error.status < 500 or isinstance(error.__cause__, (ConnectTimeoutError, NewConnectionError))


def _delete(api: _Api, job: str) -> None:
    """Deletes the Job with its pods and its Secret, which disappear a moment later."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    try:
        api.call("DELETE", api.in_namespace("apis/batch/v1", "jobs", job), body)
    except _ApiError as error:
        if error.status != 404:
            raise MachineError(f"{error}; the machine may still run: kubectl delete job {job}") from error


def _index_of(pod: Mapping[str, Any]) -> int:
    metadata = pod["metadata"]
    return int(metadata.get("annotations", {}).get(_INDEX) or metadata.get("labels", {}).get(_INDEX) or 0)


def _is_ready(pod: Mapping[str, Any] | None) -> bool:
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _unschedulable(pod: Mapping[str, Any]) -> str:
    for one in pod.get("status", {}).get("conditions", []):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return one.get("message", one.get("reason", "it cannot be scheduled"))
    return ""


def _status_text(status: int) -> str:
    """For example "503 Service Unavailable"."""
    return f"{status} {responses.get(status, '')}".strip()


def _end_of(pod: Mapping[str, Any]) -> str:
    """For example "Evicted: the node was low on memory", "OOMKilled, exited with status 137 (signal 9, Killed)"."""
    status = pod["status"]
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}"
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended is not None:
            return f"{ended.get('reason', 'Error')}, {describe(ended['exitCode'])}"
    return str(status.get("phase"))
