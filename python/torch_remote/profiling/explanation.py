"""`torch.remote.explain`: what a function does on the device, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch_remote import _C
from torch_remote.profiling.profiler import profile
from torch_remote.profiling.recording import Recording


@dataclass(frozen=True)
class Flush:
    """A run of a program was sent."""

    call: int  # index of the function's call, from 0
    reason: str  # "item", "copy to cpu", "cut", "boundary", "compiled graph", ...
    line: str  # of the user's code
    program: int
    ops: int
    bytes: int  # of the message
    miss: str | None  # why the program had to be built; None: it was known


@dataclass(frozen=True)
class Sync:
    """The user's code waited for the worker. Consecutive waits of one line are one Sync: an op such as `print(x)` reads
    several values. A loop within one line is one Sync, too."""

    call: int
    reason: str  # of the waits, such as "item"; several different ones are separated by ", "
    line: str
    microseconds: float  # of all waits together
    waits: int = 1


@dataclass(frozen=True)
class GraphNode:
    """Where a node of a torch.compile graph is computed."""

    name: str
    op: str
    where: str  # "program 0" (of remote:0), "host", "number", "outside", "input", "constant"
    why: str  # why it is outside of programs

    def __str__(self) -> str:
        return f"{self.name:24} {self.op:40} {self.where:10} {self.why}".rstrip()


@dataclass(frozen=True)
class Explanation:
    """The result of `torch.remote.explain`. `str()` of it is a report."""

    result: Any  # of the last call
    calls: int
    ops: dict[str, int]  # ops that ran on the worker, including those in kernels, by name, over all calls
    flushes: list[Flush]
    syncs: list[Sync]
    stats: list[dict[str, int]]  # per call: how much each counter of torch.remote.stats() increased
    # ops whose shapes were inferred with the dispatcher's Meta key
    slow_shapes: dict[str, int] = field(default_factory=dict)
    graphs: list[list[GraphNode]] = field(default_factory=list)  # the graphs that torch.compile made in these calls
    # compiled kernels that executed several ops, by name, over all calls
    kernels: dict[str, int] = field(default_factory=dict)

    @property
    def programs(self) -> list[int]:
        """The programs that ran."""
        return sorted({flush.program for flush in self.flushes})

    def __str__(self) -> str:
        lines = []
        for call, stats in enumerate(self.stats):
            lines.append(
                f"call {call + 1}: {stats['ops_recorded']} ops recorded, {stats['flushes']} runs, "
                f"{stats['programs_built']} programs built, {stats['program_hits']} hits, "
                f"{stats['round_trips']} round trips, {stats['bytes_sent']} bytes sent, "
                f"{stats['bytes_uploaded']} up, {stats['bytes_downloaded']} down"
            )
            for flush in self.flushes:
                if flush.call == call:
                    result = f"built: {flush.miss}" if flush.miss else "hit"
                    where = f" at {flush.line}" if flush.line else ""
                    lines.append(
                        f"  program {flush.program}: {flush.ops} ops, {flush.bytes} bytes, {result}; "
                        f"sent because of {flush.reason!r}{where}"
                    )
            for sync in self.syncs:
                if sync.call == call:
                    times = f" ({sync.waits} times)" if sync.waits > 1 else ""
                    lines.append(f"  waits {sync.microseconds:.0f} µs{times} for {sync.reason!r} at {sync.line or '?'}")
        for graph in self.graphs:
            outside = [node for node in graph if node.where == "outside"]
            inside = sum(node.where.startswith("program") for node in graph)
            lines.append(f"graph of torch.compile: {inside} nodes in programs, {len(outside)} outside")
            lines += [f"  {node.name} ({node.op}) runs outside: {node.why}" for node in outside]
        lines.append("ops on the worker: " + (", ".join(f"{n} {name}" for name, n in self.ops.items()) or "none"))
        for name, count in self.kernels.items():
            lines.append(f"fused: {count} {name}")
        if not self.kernels:
            lines.append("fused: nothing (each op is a kernel of its own)")
        direct, relayed = (sum(stats[f"{way}_copies"] for stats in self.stats) for way in ("direct", "relayed"))
        if direct or relayed:
            lines.append(
                f"copies between devices: {direct} from worker to worker, {relayed} through this process"
                + (" (torch.remote.copy_paths() says why)" if relayed else "")
            )
        fallbacks = sum(stats["client_fallbacks"] for stats in self.stats)
        lines.append(f"fell back to this process's CPU: {fallbacks or 'nothing'}")
        if self.slow_shapes:
            slow = ", ".join(f"{name} ({count})" for name, count in self.slow_shapes.items())
            lines.append(f"shapes computed by the dispatcher's Meta key (slow for each new size): {slow}")
        return "\n".join(lines)


def _syncs(call: int, recording: Recording) -> list[Sync]:
    """The waits of a call, in order of time. A wait continues a Sync if its thread waited at the same line before, and
    recorded no op at another line since then."""
    syncs: list[Sync] = []
    latest: dict[int, int] = {}  # by thread: the index of its Sync that the next wait may continue
    for event in sorted(recording.client, key=lambda event: event.begin):
        current = latest.get(event.thread)
        if event.kind == "flush" and event.worker >= 0 and current is not None:
            run = recording.workers[event.worker].runs.get(event.sequence)
            if run is not None and any(line != syncs[current].line for line in run.lines):
                del latest[event.thread]
        elif event.kind == "wait" and event.name != "profile ends":
            duration = (event.end - event.begin) / 1000
            if current is None or syncs[current].line != event.line:
                latest[event.thread] = len(syncs)
                syncs.append(Sync(call, event.name, event.line, duration))
                continue
            sync = syncs[current]
            reasons = sync.reason.split(", ")
            syncs[current] = replace(
                sync,
                reason=sync.reason if event.name in reasons else ", ".join([*reasons, event.name]),
                microseconds=sync.microseconds + duration,
                waits=sync.waits + 1,
            )
    return syncs


_noting: list[list[GraphNode]] | None = None  # the compiled graphs, while a function is explained


def note_graph(nodes: Callable[[], list[GraphNode]]) -> None:
    """Adds a compiled graph to the explanation."""
    if _noting is not None:
        _noting.append(nodes())


def explain(function: Callable[..., Any], *args: Any, calls: int = 2, **kwargs: Any) -> Explanation:
    """Calls a function and reports what the device did.

    Args:
        function: code that uses the device. It really runs, `calls` times: the second call should find what the first
            one has built.
        args, kwargs: the function's arguments.
        calls: the number of calls.

    Returns:
        Programs, cuts, misses and waits with the user's lines, ops, bytes, and where the nodes of compiled graphs are
        computed. Printing it shows a report.
    """
    global _noting
    if calls < 1:
        raise ValueError(f"torch.remote.explain: calls must be at least 1, got {calls}")
    slow = Counter(dict(_C.meta_key_calls()))
    recordings, stats = [], []
    result = None
    graphs: list[list[GraphNode]] = []
    outer, _noting = _noting, graphs
    try:
        for _ in range(calls):
            before = _C.stats()
            with profile() as recorded:
                round_trips = _C.stats()["round_trips"]
                result = function(*args, **kwargs)
                round_trips = _C.stats()["round_trips"] - round_trips  # without those of the profile
            recordings.append(recorded.recording)
            stats.append({name: value - before[name] for name, value in _C.stats().items()})
            stats[-1]["round_trips"] = round_trips
    finally:
        _noting = outer
    slow = Counter(dict(_C.meta_key_calls())) - slow

    flushes: list[Flush] = []
    syncs: list[Sync] = []
    ops: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for call, recording in enumerate(recordings):
        for event in recording.client:
            if event.kind == "flush" and event.worker >= 0:
                run = recording.workers[event.worker].runs.get(event.sequence)
                if run is not None:
                    flushes.append(Flush(call, event.name, event.line, event.program, event.ops, run.bytes, run.miss))
        syncs += _syncs(call, recording)
        for worker in recording.workers:
            for op in worker.ops:
                ops.update(op.ops)
                kernels.update([op.name] if len(op.ops) > 1 else [])
    return Explanation(
        result, calls, dict(ops.most_common()), flushes, syncs, stats, dict(slow), graphs, dict(kernels.most_common())
    )
