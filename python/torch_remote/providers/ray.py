"""Provider `ray`: workers that are actors of a Ray cluster, which places, queues and restarts them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch_remote.providers import gpus
from torch_remote.providers.local import ALLOWANCES, allowances
from torch_remote.providers.provider import Endpoint, MachineError, MachineSpec, Provider, ProviderStatus
from torch_remote_cli.exit_status import describe

_TO_ANSWER = 60.0  # seconds, for a running actor
_STEP = 0.2
_LOG_KEPT = 64 << 10
# Ray's names of GPUs, where they differ.
_RAY_NAMES = {"A10": "A10G", "A100-40GB": "A100-40G", "A100-80GB": "A100-80G"}

_NODES_PYTHON = "ray-python"  # stands for the actor's interpreter

_users = 0  # machines of this process that use a connection made here
_connected_here = False


class _Worker:
    """The actor: a listener on its node, reached with a token. It ends with the actor's process."""

    def __init__(self, arguments: list[str], token: str, gpu: bool) -> None:
        import ray

        found = importlib.util.find_spec("torch_remote")
        if found is None or found.origin is None:
            raise RuntimeError(
                "torch_remote is not installed on this node; install it, or give runtime_env={'pip': [...]}"
            )
        torch = importlib.util.find_spec("torch")
        environment = dict(os.environ)
        if torch is not None and torch.origin is not None:
            environment.setdefault("TORCH_REMOTE_TORCH_LIB", str(Path(torch.origin).parent / "lib"))
        self._host = ray.util.get_node_ip_address()
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it is the actor's)
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:  # only this user can read it
            file.write(token)
            file.flush()
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._process = subprocess.Popen(
                [
                    str(Path(found.origin).parent / "bin/torch-remote-worker"),
                    *("--listen", f"tcp://{host}:0", "--token-file", file.name),
                    *(argument.replace(f"={_NODES_PYTHON}", f"={sys.executable}") for argument in arguments),
                    # Ray shows an actor only its assigned GPU.
                    *(("--device", "cuda:0") if gpu else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # PR_SET_PDEATHSIG
            )
            assert self._process.stdout is not None
            # printed when it listens and has read the token
            self._url = self._process.stdout.readline().decode().strip()
        if not self._url:
            self._process.wait()
            raise RuntimeError(self.logs().strip() or "the worker ended at once")

    def url(self) -> str:
        return self._url

    def ended(self) -> str:
        """How the worker ended, or an empty string."""
        status = self._process.poll()
        return "" if status is None else f"the listener on {self._host} {describe(status)}"

    def logs(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_KEPT, max(0, size - _LOG_KEPT)).decode(errors="replace")

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


class Ray(Provider):
    """One actor per device. Several form a placement group, so that either all of them start or none does."""

    address = "address"
    options = {
        "address": "HOST:PORT of a head (Ray's client), or 'auto'; default: RAY_ADDRESS, else Ray on this machine",
        "num_cpus": "CPUs that each worker takes; default: threads, else 1",
        "resources": "custom resources of each worker, as Ray's: {'fast_disk': 1}",
        "strategy": "how several are placed: PACK (default), SPREAD, STRICT_PACK, STRICT_SPREAD",
        "max_restarts": "how often Ray restarts a worker whose node died; default 3",
        "runtime_env": "Ray's, for nodes without torch_remote: {'pip': ['torch_remote']}",
        "wait": "seconds to wait for free capacity and the workers; default: as long as it takes, but no wait for "
        "resources that the cluster lacks",
        **ALLOWANCES,
    }

    def __init__(self) -> None:
        self._actors: list[Any] = []
        self._group: Any = None
        self._uses_connection = False
        self._kept = ""

    def start(self, spec: MachineSpec) -> Endpoint:
        try:
            import ray
        except ImportError as error:
            raise MachineError("remote: provider 'ray' needs Ray: pip install 'ray[default]'") from error
        self._ray = ray
        self._spec = spec
        try:
            self._connect_cluster(spec.options)
            self._place()
            return self.connect(0)
        except BaseException:
            self.stop()
            raise

    def _connect_cluster(self, options: Any) -> None:
        global _users, _connected_here
        if not self._ray.is_initialized():
            address = options.get("address")
            if address not in (None, "auto", "local"):
                address = f"ray://{address}"
            try:
                self._ray.init(
                    address=address,
                    logging_level="warning",
                    log_to_driver=False,
                    runtime_env=options.get("runtime_env"),
                )
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise MachineError(f"remote: cannot connect to Ray at {address or 'this machine'}: {error}") from error
            _connected_here = True
        self._uses_connection = True
        _users += 1

    def _resources(self) -> dict[str, float]:
        """The resources of each worker, as a placement group's bundle."""
        spec, options = self._spec, self._spec.options
        try:
            wanted = {"CPU": float(options.get("num_cpus") or spec.threads or 1)}
            wanted |= {name: float(count) for name, count in (options.get("resources") or {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise MachineError("remote: num_cpus is a number, and resources are {'name': number}") from error
        if spec.gpu:
            wanted["GPU"] = 1.0
            if spec.gpu != gpus.ANY:
                # Ray gives nodes with such a GPU a little of this resource.
                wanted[f"accelerator_type:{_RAY_NAMES.get(spec.gpu, spec.gpu)}"] = 0.001
        return wanted

    def _place(self) -> None:
        """Makes Ray start the actors, and waits until they run."""
        ray, spec, options = self._ray, self._spec, self._spec.options
        wanted = self._resources()
        there = ray.cluster_resources()
        # Only with `wait` may the cluster grow until it has them.
        missing = [name for name, count in wanted.items() if count * spec.gpu_count > there.get(name, 0.0) + 1e-6]
        if missing and options.get("wait") is None:
            has = ", ".join(f"{name}: {there.get(name, 0):g}" for name in missing)
            asked = ", ".join(f"{name}: {wanted[name] * spec.gpu_count:g}" for name in missing)
            kinds = sorted(n.partition(":")[2] for n in there if n.startswith("accelerator_type:"))
            raise MachineError(
                f"remote: the Ray cluster has {has}, but the machine needs {asked}"
                + (f" (its GPUs: {', '.join(kinds)})" if kinds else "")
                + "; request less, or give wait=SECONDS if the cluster grows automatically"
            )
        try:
            limit = None if options.get("wait") is None else time.monotonic() + float(options["wait"])
            max_restarts = int(str(options.get("max_restarts", 3)))  # int(2.5) would truncate
        except (TypeError, ValueError) as error:
            raise MachineError("remote: wait is a number of seconds, and max_restarts an integer") from error
        self._group = ray.util.placement_group(
            [wanted] * spec.gpu_count, strategy=str(options.get("strategy") or "PACK")
        )
        self._wait_for(self._group.ready(), limit, "free capacity in the Ray cluster")
        arguments = []
        for flag, value in (("--threads", spec.threads), ("--memory-limit", spec.memory_limit)):
            if value is not None:
                arguments += [flag, str(value)]
        arguments += allowances(options, _NODES_PYTHON)
        self._token = secrets.token_hex(32)
        kind = ray.remote(_Worker)
        others = {name: count for name, count in wanted.items() if name not in ("CPU", "GPU")}
        for index in range(spec.gpu_count):
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
            self._actors.append(
                kind.options(
                    num_cpus=wanted["CPU"],
                    num_gpus=wanted.get("GPU", 0),
                    resources=others,
                    scheduling_strategy=strategy,
                    max_restarts=max_restarts,
                    name=f"torch-remote {spec.id} {index}",
                ).remote(arguments, self._token, bool(spec.gpu))
            )
        for actor in self._actors:
            self._wait_for(actor.url.remote(), limit, "a worker to start")

    def _wait_for(self, promise: Any, limit: float | None, what: str) -> Any:
        """Waits in steps, so that Ctrl-C interrupts it."""
        ray = self._ray
        began = time.monotonic()
        while True:
            try:
                return ray.get(promise, timeout=_STEP)
            except ray.exceptions.GetTimeoutError:
                if limit is not None and time.monotonic() > limit:
                    waited = f"remote: waited {time.monotonic() - began:.0f} s for {what}"
                    raise MachineError(f"{waited}; look at the cluster (ray status), or give a longer wait=") from None
            except ray.exceptions.RayError as error:
                said = str(error).strip().splitlines()
                raise MachineError(f"remote: Ray cannot start a worker: {said[-1] if said else error}") from error

    def connect(self, index: int) -> Endpoint:
        # An actor that Ray restarted has another address.
        url = self._wait_for(self._actors[index].url.remote(), time.monotonic() + _TO_ANSWER, "a worker's address")
        return Endpoint(url, token=self._token)

    def stop(self) -> None:
        global _users, _connected_here
        ray = getattr(self, "_ray", None)
        if ray is None:
            return
        if self._actors and ray.is_initialized():
            self._kept = self.logs()
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get([actor.stop.remote() for actor in self._actors], timeout=15)
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
        self._actors, self._group = [], None
        if self._uses_connection:
            self._uses_connection = False
            _users -= 1
            if _users == 0 and _connected_here:
                _connected_here = False
                ray.shutdown()

    def status(self) -> ProviderStatus:
        actors = list(self._actors)
        if not actors:
            return ProviderStatus("stopped")
        ray = self._ray
        try:
            ends = [end for end in ray.get([actor.ended.remote() for actor in actors], timeout=5) if end]
        except ray.exceptions.RayError as error:
            return ProviderStatus("lost", f"Ray: {str(error).strip().splitlines()[0]}")
        return ProviderStatus("lost" if ends else "running", "; ".join(ends) or f"{len(actors)} actors")

    def logs(self) -> str:
        ray = getattr(self, "_ray", None)
        if not self._actors or ray is None or not ray.is_initialized():
            return self._kept
        try:
            return "".join(ray.get([actor.logs.remote() for actor in self._actors], timeout=10))
        except ray.exceptions.RayError as error:
            return f"{self._kept}Ray: {error}\n"
