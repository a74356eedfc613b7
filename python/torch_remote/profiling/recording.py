"""The data that `torch.remote.profile` recorded, in one clock: CLOCK_MONOTONIC of this process, in ns."""

from __future__ import annotations

import bisect
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_remote.profiling.ranges import Range

_EVENT = struct.Struct("<QQQII")  # wire::ProfileEvent
_MESSAGE = 0xFFFFFFFF
_KERNEL = "kernel: "
_SHOWN = 3  # ops in a kernel's name


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event of this process; `kind` is remote::Event's."""

    kind: str
    name: str
    thread: int
    begin: int
    end: int
    worker: int  # index of the worker, or -1
    sequence: int
    program: int
    ops: int
    bytes: int
    attachment: int
    line: str


@dataclass(frozen=True, slots=True)
class Run:
    """A program that was sent for execution."""

    program: int
    ops: int
    bytes: int
    miss: str | None  # why the program had to be built; None: it was known
    lines: list[str]  # of the records


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    type: str
    sequence: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WorkerOp:
    label: str  # "aten::relu(f32[4])", or for a kernel of several ops "kernel: aten::relu(f32[4]); aten::neg(f32[4])"
    line: str
    runner: str  # the runner that executed it: "ATen 2.13.0", "compiled kernels"; "" if it failed
    declined: str  # earlier runners, and why they declined: "compiled kernels: it is being compiled"
    program: int
    sequence: int
    begin: int
    end: int

    @property
    def ops(self) -> list[str]:
        """The names of its ops: one, or those of a kernel."""
        return [label.partition("(")[0] for label in self.label.removeprefix(_KERNEL).split("; ")]

    @property
    def name(self) -> str:
        if not self.label.startswith(_KERNEL):
            return self.label.partition("(")[0]
        ops = [op.removeprefix("aten::") for op in self.ops]
        return _KERNEL + ", ".join(ops[:_SHOWN]) + (f", {len(ops) - _SHOWN} more" if len(ops) > _SHOWN else "")


@dataclass(slots=True)
class Worker:
    process: int
    description: str
    error: str | None  # why all or the last events are missing
    dropped: int
    lost: int | None  # when this process noticed that the worker was gone
    messages: list[WorkerMessage] = field(default_factory=list)
    ops: list[WorkerOp] = field(default_factory=list)
    runs: dict[int, Run] = field(default_factory=dict)  # by sequence
    acknowledged: list[tuple[int, int]] = field(default_factory=list)  # (sequence, time); both increase

    def acknowledged_at(self, sequence: int) -> int | None:
        """When this process learned that the worker had finished a message; None: never."""
        place = bisect.bisect_left(self.acknowledged, (sequence, 0))
        return self.acknowledged[place][1] if place < len(self.acknowledged) else None


@dataclass(slots=True)
class Recording:
    process: int
    begin: int
    end: int
    threads: dict[int, str]
    client: list[ClientEvent]
    dropped: int
    workers: list[Worker]
    ranges: list[Range]


def clock_of(samples: list[tuple[int, int, int]]) -> Callable[[int], int]:
    """Returns a function from a worker's time to ours.

    A sample states that at `at` the worker's clock was ahead by `least` to `most` ns. If this range contains 0, the
    clocks are taken as equal (on one machine they are the same clock). Clocks drift, so the difference is interpolated
    between two samples.
    """
    points = [(at, 0 if least <= 0 <= most else (least + most) // 2) for at, least, most in samples]
    if not points or all(ahead == 0 for _, ahead in points):
        return lambda time: time
    (at, ahead), (last_at, last_ahead) = points[0], points[-1]
    drift = (last_ahead - ahead) / (last_at - at) if last_at > at else 0.0
    return lambda time: time - ahead - round((time - ahead - at) * drift)


def _thread_names(events: list[dict[str, Any]]) -> dict[int, str]:
    names = {thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id is not None}
    for event in events:
        thread = event["thread"]
        if event["kind"] == "build":
            names[thread] = "program builder"
        elif thread not in names:
            try:
                # The kernel cuts a name after 15 bytes, perhaps within a character.
                names[thread] = Path(f"/proc/self/task/{thread}/comm").read_text(errors="replace").strip()
            except OSError:  # it has ended
                names[thread] = "thread"
    return names


def _read_worker(raw: dict[str, Any], worker: Worker, message_types: dict[int, str]) -> None:
    ours = clock_of(raw["clock"])
    programs = raw["programs"]
    for begin, end, sequence, program, node in _EVENT.iter_unpack(raw["events"]):
        if program == _MESSAGE:
            kind = message_types.get(node, "message")
            if kind != "profile":
                worker.messages.append(WorkerMessage(kind, sequence, ours(begin), ours(end)))
            continue
        number, labels, records, runners, declined = programs[program]
        run = worker.runs.get(sequence)
        record = records[node]
        line = run.lines[record] if run and record < len(run.lines) else ""
        worker.ops.append(
            WorkerOp(labels[node], line, runners[node], declined[node], number, sequence, ours(begin), ours(end))
        )


def read(raw: dict[str, Any], ranges: list[Range]) -> Recording:
    """Converts the result of `_C.profile_stop`. `ranges` that began before the profile are cut."""
    lines = [*raw["lines"], ""]  # index -1: the line is unknown
    sources = [[lines[i] for i in numbers] for numbers in raw["sources"]]
    numbers = {worker["session"]: i for i, worker in enumerate(raw["workers"])}
    workers = [
        Worker(w["process"], w["description"], w["error"], w["dropped"], w["lost"] or None) for w in raw["workers"]
    ]
    client = []
    for e in raw["events"]:
        number = numbers.get(e["session"], -1)
        if e["end"] < raw["begin"] or (e["kind"] == "send" and e["name"] == "profile"):
            continue
        if e["kind"] == "run":
            if number >= 0:
                run = Run(e["program"], e["ops"], e["bytes"], e["miss"], sources[e["sources"]])
                workers[number].runs[e["sequence"]] = run
        elif e["kind"] == "acknowledged":
            if number >= 0:
                known = workers[number].acknowledged
                if not known or known[-1][0] < e["sequence"]:
                    known.append((e["sequence"], e["begin"]))
        else:
            client.append(
                ClientEvent(
                    e["kind"], e["name"], e["thread"], e["begin"], e["end"], number, e["sequence"], e["program"],
                    e["ops"], e["bytes"], e["attachment"], lines[e["line"]],
                )
            )  # fmt: skip
    for worker, part in zip(workers, raw["workers"], strict=True):
        _read_worker(part, worker, raw["message_types"])
    return Recording(
        os.getpid(), raw["begin"], raw["end"], _thread_names(raw["events"]), client, raw["dropped"], workers,
        [r._replace(begin=max(r.begin, raw["begin"])) for r in ranges if r.end >= raw["begin"]],
    )  # fmt: skip
