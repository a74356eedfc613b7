"""A recording as Chrome trace events, for ui.perfetto.dev and chrome://tracing.

"Trace Event Format" (the Chromium project, 2016) describes the format.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch_remote.profiling.recording import ClientEvent, Recording, Worker

Event = dict[str, Any]

LAST_MOMENTS = "what the worker did in its last 0.1 s may be missing"
_SHARED_TRACK = 1  # for traces that several threads recorded; no thread of ours has this number
_RANGES = 1 << 24  # added to a thread's number to get the track of its ranges; Linux's thread numbers are smaller


class _Writer:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        # Numbers of messages, by worker and sequence: the ids of async events. Arrows have their own ids, two per
        # message. They are assigned before any event is written: a reply is in the log before its message if the sender
        # was preempted.
        sends = [(e.worker, e.sequence) for e in recording.client if e.kind == "send"]
        self.messages = {message: number for number, message in enumerate(sends, 1)}
        taken = {recording.process}
        self.pids = []
        for worker in recording.workers:
            # The process number of a worker in process, or on another machine, may be taken already.
            pid = next(p for p in itertools.count(worker.process or recording.process + 1) if p not in taken)
            taken.add(pid)
            self.pids.append(pid)
        self.wire = next(p for p in itertools.count(1) if p not in taken)

    def time(self, ns: int) -> float:
        """Microseconds since the profile began."""
        return round((ns - self.recording.begin) / 1000, 3)

    def span(self, name: str, category: str, pid: int, tid: int, begin: int, end: int, **args: Any) -> Event:
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": self.time(begin),
            "dur": round((end - begin) / 1000, 3),
            "pid": pid,
            "tid": tid,
            "args": {key: value for key, value in args.items() if value not in (None, "")},
        }

    def arrow(self, number: int, start: bool, pid: int, tid: int, at: int, name: str) -> Event:
        identity = 2 * number + (name == "reply")
        event = {"name": name, "cat": "wire", "ph": "s" if start else "f", "id": identity, "ts": self.time(at)}
        if not start:
            event["bp"] = "e"
        return {**event, "pid": pid, "tid": tid}

    # -- names of the tracks ------------------------------------------------------------------------------------------

    def tracks(self) -> Iterator[Event]:
        def name(kind: str, pid: int, tid: int, text: str) -> Event:
            return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": text}}

        # Short names, because viewers truncate them.
        workers = {p: worker.description for p, worker in zip(self.pids, self.recording.workers, strict=True)}
        processes = {self.recording.process: "client", self.wire: "wire"}
        processes |= {pid: f"worker: {text.partition(', ')[0]}" for pid, text in workers.items()}
        for order, (pid, text) in enumerate(processes.items()):
            yield name("process_name", pid, 0, text)
            yield {**name("process_sort_index", pid, 0, ""), "args": {"sort_index": order}}
        for pid, text in workers.items():
            yield {**name("process_labels", pid, 0, ""), "args": {"labels": text}}
        for thread, text in self.recording.threads.items():
            yield name("thread_name", self.recording.process, thread, text)
        if any(e.kind == "recording" and self.is_shared(e) for e in self.recording.client):
            yield name("thread_name", self.recording.process, _SHARED_TRACK, "traces of several threads")
        for thread in {r.thread for r in self.recording.ranges if r.kind != "free range"}:
            text = f"ranges: {self.recording.threads.get(thread, 'thread')}"
            yield name("thread_name", self.recording.process, _RANGES + thread, text)
        for pid in self.pids:
            yield name("thread_name", pid, pid, "runs and ops")

    # -- client -------------------------------------------------------------------------------------------------------

    def is_shared(self, recording: ClientEvent) -> bool:
        flush = self.flushes.get((recording.worker, recording.sequence))
        return flush is not None and flush.thread != recording.thread

    def client(self) -> Iterator[Event]:
        self.flushes = {(e.worker, e.sequence): e for e in self.recording.client if e.kind == "flush"}
        for e in self.recording.client:
            yield from self.client_event(e)

    def client_event(self, e: ClientEvent) -> Iterator[Event]:
        def span(name: str, **args: Any) -> Event:
            return self.span(name, "client", self.recording.process, e.thread, e.begin, e.end, **args)

        match e.kind:
            case "recording":
                event = span(f"record {e.ops} ops", ops=e.ops, program=e.program)
                if self.is_shared(e):
                    event["tid"] = _SHARED_TRACK
                yield event
            case "flush":
                run = self.recording.workers[e.worker].runs.get(e.sequence) if e.worker >= 0 else None
                args: dict[str, Any] = {"reason": e.name, "ops": e.ops, "program": e.program}
                if run is not None:
                    args |= {"result": f"miss: {run.miss}" if run.miss else "hit", "bytes": run.bytes}
                yield span(f"flush ({e.name})", **args, line=e.line)
            case "wait":
                yield span(f"wait ({e.name})", reason=e.name, line=e.line)
            case "reply":
                yield span("reply", message=e.sequence)
                number = self.messages.get((e.worker, e.sequence))
                if number is not None and (e.worker, e.sequence) in self.taken:
                    yield self.arrow(number, False, self.recording.process, e.thread, e.end - 1, "reply")
            case "send":
                number = self.messages[e.worker, e.sequence]
                yield span(f"send {e.name}", message=e.sequence, bytes=e.bytes, attachment=e.attachment or None)
                if (e.worker, e.sequence) in self.taken:
                    yield self.arrow(number, True, self.recording.process, e.thread, e.begin, e.name)
                yield from self.transit(e, number)
            case "upload":
                yield span("upload", bytes=e.attachment, line=e.line)
            case "build":
                yield span(f"build program {e.program}", program=e.program)
            case "pass":
                yield span(e.name, program=e.program)
            case "connect":
                yield span("start worker")
            case _:
                yield span(e.kind)

    # -- what the user named ------------------------------------------------------------------------------------------

    def ranges(self) -> Iterator[Event]:
        process = self.recording.process
        for number, r in enumerate(self.recording.ranges):
            if r.kind == "range":
                yield self.span(r.name, "range", process, _RANGES + r.thread, r.begin, r.end)
            elif r.kind == "mark":
                place = {"pid": process, "tid": _RANGES + r.thread}
                yield {"name": r.name, "cat": "range", "ph": "i", "s": "t", "ts": self.time(r.begin), **place}
            else:
                common = {"name": r.name, "cat": "range", "id2": {"local": f"{number:#x}"}, "pid": process, "tid": 0}
                yield {**common, "ph": "b", "ts": self.time(r.begin)}
                yield {**common, "ph": "e", "ts": self.time(r.end)}

    # -- wire ---------------------------------------------------------------------------------------------------------

    def transit(self, e: ClientEvent, number: int) -> Iterator[Event]:
        """A message, from its sending until the worker acknowledged it."""
        done = self.recording.workers[e.worker].acknowledged_at(e.sequence) if e.worker >= 0 else None
        # A local id: Perfetto shows events with a global id outside of all processes.
        common = {"name": e.name, "cat": "wire", "id2": {"local": f"{number:#x}"}, "pid": self.wire, "tid": 0}
        args: dict[str, Any] = {"message": e.sequence, "bytes": e.bytes}
        if e.attachment:
            args["attachment"] = e.attachment
        taken = self.taken.get((e.worker, e.sequence))
        if taken is not None:
            args["waited_for_worker"] = f"{max(0, taken - e.begin) / 1000:.3f} µs"
        if done is None:
            args["acknowledged"] = False
            lost = self.recording.workers[e.worker].lost if e.worker >= 0 else None
            done = self.recording.end if lost is None else lost
        yield {**common, "ph": "b", "ts": self.time(e.begin), "args": args}
        yield {**common, "ph": "e", "ts": self.time(max(e.begin, done))}

    # -- workers ------------------------------------------------------------------------------------------------------

    def worker(self, index: int, worker: Worker) -> Iterator[Event]:
        pid = self.pids[index]
        programs = {op.sequence: op.program for op in worker.ops}
        for message in worker.messages:
            run = worker.runs.get(message.sequence)
            program = run.program if run else programs.get(message.sequence)
            name = f"run program {program}" if message.type == "run" and program else message.type
            ops = run.ops if run else None
            yield self.span(
                name, "worker", pid, pid, message.begin, message.end, message=message.sequence, program=program, ops=ops
            )
            number = self.messages.get((index, message.sequence))
            if number is None:
                continue
            yield self.arrow(number, False, pid, pid, message.begin, message.type)
            arrived = self.replies.get((index, message.sequence))
            if arrived is not None:  # often earlier than the worker, preempted by us, finishes the message
                yield self.arrow(number, True, pid, pid, min(message.end, arrived) - 1, "reply")
        for op in worker.ops:
            # On narrow spans viewers show only the first letters: "softmax", not "aten:".
            name = op.name.removeprefix("aten::")
            yield self.span(
                name, "op", pid, pid, op.begin, op.end, op=op.label, line=op.line, runner=op.runner,
                declined=op.declined or None, program=op.program,
            )  # fmt: skip

    def marks(self) -> Iterator[Event]:
        def mark(text: str, pid: int, tid: int, at: int = self.recording.end, **args: str) -> Event:
            return {"name": text, "ph": "i", "s": "p", "ts": self.time(at), "pid": pid, "tid": tid, "args": args}

        if self.recording.dropped:
            yield mark(f"{self.recording.dropped} events dropped", self.recording.process, 0)
        for pid, worker in zip(self.pids, self.recording.workers, strict=True):
            if worker.dropped:
                yield mark(f"{worker.dropped} events dropped", pid, pid)
            if worker.lost is not None:
                yield mark("worker lost", pid, pid, worker.lost, why=worker.error or "", note=LAST_MOMENTS)
            elif worker.error:
                yield mark("events missing", pid, pid, why=worker.error)

    def all(self) -> list[Event]:
        self.replies = {(e.worker, e.sequence): e.end for e in self.recording.client if e.kind == "reply"}
        self.taken = {
            (index, message.sequence): message.begin
            for index, worker in enumerate(self.recording.workers) for message in worker.messages
        }  # fmt: skip
        events = list(self.client())
        for index, worker in enumerate(self.recording.workers):
            events.extend(self.worker(index, worker))
        events.extend(self.ranges())
        events.extend(self.marks())
        # Viewers expect enclosing events first.
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        return [*self.tracks(), *events]


def chrome_events(recording: Recording) -> list[Event]:
    """All events of a recording, ordered by time."""
    return _Writer(recording).all()
