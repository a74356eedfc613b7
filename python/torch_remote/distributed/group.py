"""A process group on the device `remote`.

Each rank is a process with its own worker. Collectives are recorded as ops of the device, which the workers execute
together. The processes only exchange, through the group's store, the addresses of their workers. They do so when an op
needs a rank for the first time.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_remote import _C
from torch_remote.distributed.ops import ops

_HOST = 256  # bytes for an address
_BITS = ("band", "bor", "bxor")
_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

_numbers = itertools.count(1)  # of groups in this process
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def make_backend(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return _C.make_backend(Group(store, rank, size, timeout), rank, size)


@dataclass(eq=False)
class PendingReceive:
    """A receive that was requested but not waited for."""

    source: int  # -1: any rank
    tag: int
    record: Callable[[], int]  # returns the sender's rank

    def may_match(self, other: PendingReceive) -> bool:
        """Whether a message exists that both could get."""
        return self.tag == other.tag and (self.source == other.source or self.source < 0 or other.source < 0)


class Group:
    """Implements the methods that frontend/distributed calls: each records ops and returns a `Work`."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        # A group that was destroyed and created anew may get the same store, with the old secret and addresses. All
        # ranks create a group equally often.
        times = store.add(f"created/{size}/{rank}", 1)
        self.store = torch.distributed.PrefixStore(f"{size}/{times}", store)  # type: ignore[attr-defined]
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.sequence = 0  # of the last collective op
        self.number = next(_numbers)  # identifies the group at the worker
        self.device: torch.device | None = None  # the device of its tensors, once there is one
        self.listens = False  # the worker listens, and the other ranks can look up its address
        self.secret = ""
        self.connected: set[int] = set()
        self.left = False
        self.pending_receives: list[PendingReceive] = []  # in the order of the requests
        self.coalesced: list[Any] | None = None  # works since start_coalescing
        _groups.add(self)

    # --- where the workers are

    def _use(self, device: torch.device, ranks: Iterable[int]) -> None:
        """Connects this device's worker with the workers of these ranks."""
        if self.left:
            raise RuntimeError("remote: this process group was destroyed; call init_process_group again")
        if self.device is None:
            if not self.listens:
                self._listen(device)
            self.device = device
        elif device != self.device:
            raise ValueError(
                f"remote: the tensors of this process group are on {self.device}, and this one is on {device}; a rank "
                "has one device, which torch.remote.set_device(index) chooses for tensors of device 'remote'"
            )
        missing = {*ranks, self.rank} - self.connected
        if missing:
            self._join(missing)

    def _listen(self, device: torch.device) -> None:
        if _C.restores(device.index):
            raise RuntimeError(
                f"remote: {device} has restore='replay', but a single rank cannot replay collective ops; use process "
                "groups without restore='replay', and checkpoints for what must survive"
            )
        port = torch.zeros(1, dtype=torch.int64, device=device)
        host = torch.zeros(_HOST, dtype=torch.uint8, device=device)
        ops.listen(port, host, self.number)
        name = bytes(host.tolist()).rstrip(b"\0").decode()
        address = f"[{name}]:{port.item()}" if ":" in name else f"{name}:{port.item()}"
        self.listens = True
        if self.rank == 0:
            self.store.set("secret", secrets.token_hex(32))
        self.store.set(f"address/{self.rank}", address)

    def _join(self, ranks: set[int]) -> None:
        addresses = ["" for _ in range(self.size)]
        self.secret = self.secret or self._get("secret", 0)
        for rank in sorted(ranks - {self.rank}):
            addresses[rank] = self._get(f"address/{rank}", rank)
        plan = "\n".join([self.secret, *addresses]).encode()
        milliseconds = max(1, int(self.timeout.total_seconds() * 1000))
        on_device = torch.frombuffer(bytearray(plan), dtype=torch.uint8).to(self.device)
        ops.join(on_device, self.number, self.rank, self.size, milliseconds)
        self.connected |= ranks

    def _get(self, key: str, rank: int) -> str:
        # The other rank may wait for this one because it uses another group first.
        if torch.remote.device_count() == 1 and not self.store.check([key]):  # type: ignore[attr-defined]
            for group in list(_groups):
                if not group.listens and not group.left:
                    group._listen(torch.device("remote", 0))
        try:
            self.store.wait([key], self.timeout)
            return self.store.get(key).decode()
        except RuntimeError as error:
            raise RuntimeError(
                f"remote: rank {rank} did not send the address of its worker within {self.timeout.total_seconds():g} "
                "s; check that its process runs and uses the process group, too, or give init_process_group a longer "
                "timeout="
            ) from error

    # --- what all ops have in common

    def _begin(self, *tensors: Tensor) -> torch.device:
        """Prepares a collective op on these tensors."""
        for tensor in tensors:
            self._check(tensor)
        device = tensors[0].device
        self._use(device, range(self.size))
        return device

    @staticmethod
    def _check(tensor: Tensor) -> None:
        if tensor.device.type != "remote":
            raise ValueError(
                f"remote: the backend 'remote' is for tensors on the device 'remote', and this one is on "
                f'{tensor.device}; move it there, or call init_process_group("cpu:gloo,remote:remote")'
            )
        if tensor.layout != torch.strided:
            raise ValueError("remote: sparse tensors are not sent between workers; call to_dense()")

    @staticmethod
    def _check_reduction(tensor: Tensor, reduction: str) -> None:
        if tensor.is_complex():
            raise ValueError("remote: ranks cannot combine complex tensors; use torch.view_as_real")
        if tensor.dtype in _NARROW:
            raise ValueError(f"remote: ranks cannot combine tensors of {tensor.dtype}; convert them to bfloat16")
        if reduction in _BITS and tensor.is_floating_point():
            raise ValueError(
                f"remote: {reduction.upper()} combines bits of integers, not of {tensor.dtype}; use SUM, AVG, PRODUCT, "
                "MIN or MAX"
            )

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence

    def _done(self, results: Sequence[Tensor], on_wait: Callable[[], int] | None = None) -> Any:
        # The other ranks wait for the op that this rank has recorded.
        if self.device is not None:
            _C.flush(self.device.index)
        return self._work(results, on_wait)

    def _work(self, results: Sequence[Tensor], on_wait: Callable[[], int] | None) -> Any:
        work = _C.make_work(list(results), on_wait)
        if self.coalesced is not None:
            self.coalesced.append(work)
        return work

    def start_coalescing(self) -> None:
        self.coalesced = []

    def end_coalescing(self) -> Any:
        works, self.coalesced = self.coalesced or [], None

        def wait() -> int:
            for work in works:
                work.wait()
            return -1

        return _C.make_work([], wait)

    @staticmethod
    def _in_place(tensor: Tensor, record: Callable[[Tensor], None]) -> None:
        """Runs `record` on a contiguous tensor and copies the result back; for ops that need contiguous tensors."""
        dense = tensor.detach()
        if dense.is_contiguous():
            record(dense)
            return
        copy = dense.contiguous()
        record(copy)
        dense.copy_(copy)

    def _output(self, tensor: Tensor, record: Callable[[Tensor], None]) -> None:
        """Runs `record` on contiguous memory and copies the result; the tensor's old contents do not matter."""
        dense = tensor.detach()
        if dense.is_contiguous():
            record(dense)
            return
        made = torch.empty(dense.shape, dtype=dense.dtype, device=dense.device)
        record(made)
        dense.copy_(made)

    # --- ops of all ranks

    def all_reduce(self, tensors: list[Tensor], reduction: str) -> Any:
        self._begin(*tensors)
        for tensor in tensors:
            self._check_reduction(tensor, reduction)
        for tensor in tensors:
            self._in_place(tensor, lambda t: ops.all_reduce_(t, self.number, self._next(), reduction))
        return self._done(tensors)

    def reduce(self, tensors: list[Tensor], reduction: str, root: int) -> Any:
        self._begin(*tensors)
        for tensor in tensors:
            self._check_reduction(tensor, reduction)
            self._in_place(tensor, lambda t: ops.reduce_(t, self.number, self._next(), reduction, root))
        return self._done(tensors)

    def broadcast(self, tensors: list[Tensor], root: int) -> Any:
        self._begin(*tensors)
        for tensor in tensors:
            self._in_place(tensor, lambda t: ops.broadcast_(t, self.number, self._next(), root))
        return self._done(tensors)

    def all_gather_tensors(self, outputs: list[Tensor], inputs: list[Tensor]) -> Any:
        self._begin(*outputs, *inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._same_dtype(output, tensor)
            if output.numel() != tensor.numel() * self.size:
                raise ValueError(
                    f"remote: the output of all_gather has {output.numel()} elements; the {self.size} ranks' tensors "
                    f"of {tensor.numel()} elements need {tensor.numel() * self.size}"
                )
            self._output(output, lambda o, t=tensor: self._all_gather(o, t))  # type: ignore[misc]
        return self._done(outputs)

    def _all_gather(self, output: Tensor, tensor: Tensor) -> None:
        ops.all_gather(output, tensor.detach().contiguous(), self.number, self._next())

    def all_gather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Any:
        for row, tensor in zip(outputs, inputs, strict=True):
            self._begin(tensor, *row)
            parts = self._gathered(row, tensor)
            self._all_gather(parts, tensor)
            self._spread(parts, row)
        return self._done([tensor for row in outputs for tensor in row])

    def all_gather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Any:
        # outputs[rank][i] is inputs[i] of that rank. torch's other form has this layout, too.
        if len(outputs) == self.size and all(len(row) == len(inputs) for row in outputs):
            outputs = [list(column) for column in zip(*outputs, strict=True)]
        return self.all_gather(outputs, inputs)

    def _gathered(self, row: list[Tensor], tensor: Tensor) -> Tensor:
        """Allocates memory for one tensor per rank, which is then copied to `row`."""
        if len(row) != self.size:
            raise ValueError(f"remote: got {len(row)} tensors for {self.size} ranks; give one for each rank")
        for output in row:
            self._same_dtype(output, tensor)
            if output.numel() != tensor.numel():
                raise ValueError(
                    f"remote: a tensor of {output.numel()} elements cannot hold a tensor of {tensor.numel()}; all "
                    "ranks' "
                    "tensors must have the same size"
                )
        return torch.empty((self.size, tensor.numel()), dtype=tensor.dtype, device=tensor.device)

    @staticmethod
    def _spread(parts: Tensor, row: list[Tensor]) -> None:
        for part, output in zip(parts, row, strict=True):
            output.detach().copy_(part.view(output.shape))

    @staticmethod
    def _same_dtype(a: Tensor, b: Tensor) -> None:
        if a.dtype != b.dtype:
            raise ValueError(f"remote: the tensors of one op must have one dtype, got {a.dtype} and {b.dtype}")

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], root: int) -> Any:
        (tensor,) = inputs
        row = outputs[0] if self.rank == root else []
        device = self._begin(tensor, *row)
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        parts = self._gathered(row, tensor) if self.rank == root else empty
        ops.gather(parts, tensor.detach().contiguous(), self.number, self._next(), root)
        self._spread(parts, row)
        return self._done(row)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], root: int) -> Any:
        (output,) = outputs
        row = inputs[0] if self.rank == root else []
        device = self._begin(output, *row)
        if self.rank == root:
            self._gathered(row, output)
            parts = torch.cat([tensor.detach().reshape(-1) for tensor in row])
        else:
            parts = torch.empty(0, dtype=output.dtype, device=device)
        self._output(output, lambda o: ops.scatter(o, parts, self.number, self._next(), root))
        return self._done(outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], reduction: str) -> Any:
        for output, row in zip(outputs, inputs, strict=True):
            self._begin(output, *row)
            self._gathered(row, output)
            self._reduce_scatter(output, torch.cat([tensor.detach().reshape(-1) for tensor in row]), reduction)
        return self._done(outputs)

    def reduce_scatter_tensors(self, outputs: list[Tensor], inputs: list[Tensor], reduction: str) -> Any:
        self._begin(*outputs, *inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._same_dtype(output, tensor)
            if tensor.numel() != output.numel() * self.size:
                raise ValueError(
                    f"remote: the input of reduce_scatter has {tensor.numel()} elements; the {self.size} ranks' "
                    f"outputs of {output.numel()} elements need {output.numel() * self.size}"
                )
            self._reduce_scatter(output, tensor.detach().contiguous(), reduction)
        return self._done(outputs)

    def _reduce_scatter(self, output: Tensor, tensor: Tensor, reduction: str) -> None:
        self._check_reduction(tensor, reduction)
        self._output(output, lambda o: ops.reduce_scatter(o, tensor, self.number, self._next(), reduction))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int]
    ) -> Any:
        self._begin(output, tensor)
        self._same_dtype(output, tensor)
        from_counts, to_counts = self._counts(output, output_splits), self._counts(tensor, input_splits)
        dense = tensor.detach().contiguous()
        self._output(output, lambda o: self._all_to_all(o, dense, from_counts, to_counts))
        return self._done([output])

    def _all_to_all(self, output: Tensor, tensor: Tensor, from_counts: list[int], to_counts: list[int]) -> None:
        ops.all_to_all(output, tensor, self.number, self._next(), from_counts, to_counts)

    def _counts(self, tensor: Tensor, splits: list[int]) -> list[int]:
        """Returns the number of elements for each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size:
                raise ValueError(
                    f"remote: all_to_all of a tensor with {rows} rows, which is not divisible by {self.size} ranks; "
                    "give splits"
                )
            splits = [rows // self.size] * self.size
        if len(splits) != self.size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"remote: the splits {splits} of all_to_all are not {self.size} numbers that add up to the tensor's "
                f"{rows} rows"
            )
        each = prod(tensor.shape[1:])
        return [count * each for count in splits]

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> Any:
        if len(outputs) != self.size or len(inputs) != self.size:
            raise ValueError(f"remote: all_to_all needs {self.size} tensors to send and to receive, one for each rank")
        self._begin(*outputs, *inputs)
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        counts = [tensor.numel() for tensor in outputs]
        received = torch.empty(sum(counts), dtype=joined.dtype, device=joined.device)
        self._all_to_all(received, joined, counts, [tensor.numel() for tensor in inputs])
        for part, output in zip(received.split(counts), outputs, strict=True):
            output.detach().copy_(part.view(output.shape))
        return self._done(outputs)

    def barrier(self, device: int) -> Any:
        """Returns a work whose wait() blocks this process until all ranks have done the work that they recorded
        before."""
        index = device if device >= 0 else torch.remote.current_device()  # type: ignore[attr-defined]
        token = torch.ones(1, dtype=torch.uint8, device=self.device or torch.device("remote", index))
        self._begin(token)
        ops.barrier(token, self.number, self._next())

        def arrive() -> int:
            token.item()
            return -1

        return self._done([], arrive)

    # --- messages between two ranks

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Any:
        (tensor,) = tensors
        self._check_peer(to)
        self._check(tensor)
        self._use(tensor.device, [to])
        ops.send(tensor.detach().contiguous(), self.number, to, tag)
        return self._done(tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Any:
        """Records the receive only in wait(): sends of this rank must not wait for incoming messages."""
        (tensor,) = tensors
        self._check(tensor)
        if source >= 0:
            self._check_peer(source)

        received: list[int] = []

        def receive() -> int:
            if received:
                return received[0]
            self._use(tensor.device, range(self.size) if source < 0 else [source])
            if source >= 0:
                self._output(tensor, lambda t: ops.recv(t, self.number, source, tag))
                received.append(source)
            else:
                place = torch.zeros(1, dtype=torch.int64, device=tensor.device)
                self._output(tensor, lambda t: ops.recv_any(t, place, self.number, tag))
                received.append(int(place.item()))
            return received[0]

        pending = PendingReceive(source, tag, receive)

        def wait() -> int:
            self._record_receive(pending)
            _C.flush(tensor.device.index)
            return receive()

        self.pending_receives.append(pending)
        return self._work(tensors, wait)

    def _record_receive(self, pending: PendingReceive) -> None:
        """Records a receive, after earlier ones that could get its message. Others must not come first: their message
        may be sent only after what this rank does next."""
        if pending not in self.pending_receives:
            return
        before = self.pending_receives[: self.pending_receives.index(pending)]
        for earlier in before:
            if earlier.may_match(pending):
                self._record_receive(earlier)
        self.pending_receives.remove(pending)
        pending.record()

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(
                f"remote: rank {self.rank} of {self.size} can exchange messages with the other ranks, not with rank "
                f"{peer}"
            )

    # --- the end

    def leave(self) -> None:
        if self.left:
            return
        self.left = True
        device = self.device or torch.device("remote", 0)
        if self.listens and _C.is_connected(device.index):
            ops.leave(torch.empty(0, dtype=torch.uint8, device=device), self.number)
            _C.flush(device.index)
