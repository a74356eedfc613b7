"""The resources of `kubernetes`: a Job with a pod per device, and the Secret with their token.

torch-remote adds labels by which both are found again, the command of the worker's container, its files, and its probe.
The rest is the user's template.
"""

from __future__ import annotations

import base64
import copy
import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_remote.providers.local import allowances
from torch_remote.providers.provider import MachineError, MachineSpec

PORT = 4500  # on the pod's own loopback
MANAGED = "app.kubernetes.io/managed-by"
MACHINE = "torch-remote/machine"
OWNER = "torch-remote/owner"
_HOME = "/run/torch-remote"  # the worker's home: its files, its caches
_TOKEN = "/etc/torch-remote"


def _label(text: str) -> str:
    """Converts text to a valid label value."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.") or "unknown"


def owner() -> str:
    """The owner's name in labels: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return _label(f"{user}.{socket.gethostname()}")


def pairs(name: str, value: Any) -> dict[str, str]:
    """Parses labels: a mapping, or text such as "disk=fast,zone=a"."""
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part]
        if all(equals for _, equals, _ in parts):
            return {key.strip(): text.strip() for key, _, text in parts}
    elif isinstance(value, Mapping):
        return {str(key): str(text) for key, text in value.items()}
    raise MachineError(f"remote: {name}={value!r} is not understood; write {{'label': 'value'}} or 'label=value,...'")


def template_of(value: Any) -> dict[str, Any]:
    """A pod's template: metadata, spec."""
    if value is None:
        return {"metadata": {}, "spec": {}}
    if not isinstance(value, Mapping):
        import yaml  # a dependency of Kubernetes' client

        try:
            value = yaml.safe_load(Path(value).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise MachineError(f"remote: cannot read the pod template {value}: {error}") from error
    if not isinstance(value, Mapping) or not isinstance(value.get("spec"), Mapping):
        raise MachineError("remote: template= is a pod's template, with 'spec' (and 'metadata'), or a YAML file of one")
    made = copy.deepcopy(dict(value))
    return {"metadata": made.get("metadata") or {}, "spec": made["spec"]}


def manifest(spec: MachineSpec, nodes: Mapping[str, list[str]] | None = None) -> dict[str, Any]:
    """The Job: one pod per device. `nodes`: a label, and its values, of nodes with the wanted GPU."""
    options = spec.options
    labels = {MANAGED: "torch-remote", MACHINE: spec.id, OWNER: owner()}
    template = template_of(options.get("template"))
    pod = template["spec"]
    template["metadata"]["labels"] = {**template["metadata"].get("labels", {}), **labels}
    containers = pod.setdefault("containers", [{}])
    container = containers[0]  # the template's other containers are not changed
    container.setdefault("name", "worker")
    if options.get("image"):
        container["image"] = str(options["image"])
    if not container.get("image"):
        raise MachineError(
            "remote: provider 'kubernetes' needs an image with torch_remote: RemoteMachine('kubernetes', image=...)"
        )
    command = ["torch-remote", "worker", "serve", "--host", "127.0.0.1", "--port", str(PORT)]
    command += ["--token-file", f"{_TOKEN}/token", "--idle-timeout", f"{number(options, 'orphan_after', 300):g}"]
    for flag, value in (("--threads", spec.threads), ("--memory-limit", spec.memory_limit)):
        command += [flag, str(value)] if value is not None else []
    command += ["--device", "cuda:0"] if spec.gpu else []
    for argument in allowances(options, ""):
        flag, _, named = argument.partition("=")
        if flag == "--allow-files":
            command += [flag, named]
        else:
            command += [flag, *(["--python", named] if named else [])]
    container["command"], container["args"] = command[:1], command[1:]
    container.setdefault("env", []).extend(
        {"name": name, "value": value} for name, value in (("XDG_RUNTIME_DIR", _HOME), ("XDG_CACHE_HOME", _HOME))
    )
    container.setdefault("volumeMounts", []).extend(
        [
            {"name": "torch-remote-token", "mountPath": _TOKEN, "readOnly": True},
            {"name": "torch-remote-home", "mountPath": _HOME},
        ]
    )
    # The worker writes its entry among the running workers when it listens.
    container["readinessProbe"] = {
        "exec": {"command": ["test", "-e", f"{_HOME}/torch-remote/workers/worker.json"]},
        "periodSeconds": 1,
    }
    resources = container.setdefault("resources", {})
    for name in ("cpu", "memory"):
        if options.get(name) is not None:
            resources.setdefault("requests", {})[name] = str(options[name])
    if spec.gpu:
        resources.setdefault("limits", {})[str(options.get("gpu_resource") or "nvidia.com/gpu")] = 1
    pod.setdefault("volumes", []).extend(
        [
            # Readable by whichever user the image runs as; nobody else is in the pod.
            {"name": "torch-remote-token", "secret": {"secretName": f"torch-remote-{spec.id}", "defaultMode": 0o444}},
            {"name": "torch-remote-home", "emptyDir": {}},
        ]
    )
    pod["restartPolicy"] = "Never"  # the Job creates another pod
    pod.setdefault("automountServiceAccountToken", False)
    pod.setdefault("enableServiceLinks", False)
    pod.setdefault("terminationGracePeriodSeconds", 15)
    if options.get("node_selector"):
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **pairs("node_selector", options["node_selector"])}
    for label, values in (nodes or {}).items():
        terms = [{"matchExpressions": [{"key": label, "operator": "In", "values": values}]}]
        affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    job: dict[str, Any] = {
        "completions": spec.gpu_count,
        "parallelism": spec.gpu_count,
        "completionMode": "Indexed",
        "backoffLimit": integer(options, "max_restarts", 3),
        "ttlSecondsAfterFinished": 60,
        "template": template,
    }
    if options.get("lifetime") is not None:
        job["activeDeadlineSeconds"] = int(number(options, "lifetime", 0))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"torch-remote-{spec.id}",
            "labels": labels,
            "annotations": {"torch-remote/process": str(os.getpid()), "torch-remote/host": socket.gethostname()},
        },
        "spec": job,
    }


def secret(spec: MachineSpec, token: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's token, which is deleted with the Job."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata["name"],
            "labels": metadata["labels"],
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]},
            ],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {"token": base64.b64encode(token.encode()).decode()},
    }


def number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name)
    try:
        number = default if value is None else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):  # false for NaN, too
        raise MachineError(f"remote: {name}={value!r} is not a number; write {name}={default:g}")
    return number


def integer(options: Mapping[str, Any], name: str, default: int) -> int:
    value = number(options, name, default)
    if value != int(value):
        raise MachineError(f"remote: {name}={options[name]!r} is not an integer; write {name}={default}")
    return int(value)
