"""A recording as text: where the time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from torch_remote.profiling.events import LAST_MOMENTS
from torch_remote.profiling.recording import ClientEvent, Recording, Worker

_TEXTS = ("line", "runner", "declined by")  # titles of columns


def _time(ns: float) -> str:
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= limit:
            return f"{ns / limit:.2f} {unit}"
    return f"{ns:.0f} ns"


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with columns as narrow as possible; all columns but the first and `_TEXTS` are numbers."""
    rows = [header, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  " + "  ".join(
            cell.ljust(width) if i == 0 or header[i] in _TEXTS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _covered(spans: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """The length of the part of [begin, end) that the spans cover."""
    total, reached = 0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total


def _spread(times: list[int]) -> list[str]:
    times.sort()
    return [str(len(times)), _time(sum(times)), _time(_percentile(times, 0.5)), _time(_percentile(times, 0.99))]


def _client(recording: Recording) -> list[str]:
    whole = recording.end - recording.begin
    groups: dict[str, list[ClientEvent]] = defaultdict(list)
    for e in recording.client:
        if e.kind in ("recording", "flush", "upload", "back-pressure", "connect"):
            groups[{"recording": "record", "connect": "start worker"}.get(e.kind, e.kind)].append(e)
        elif e.kind == "wait":
            groups[f"wait: {e.name}"].append(e)
    rows = []
    for name, events in groups.items():
        times = [e.end - e.begin for e in events]
        share = f"{100 * sum(times) / whole:.1f} %"
        count, total, median, slow = _spread(times)
        rows.append((sum(times), [name, total, share, count, median, slow]))
    rows.sort(reverse=True)
    lines = ["client: record is from a trace's first op to its flush, with the user's own code between ops"]
    lines += _table(["", "total", "share", "count", "p50", "p99"], [row for _, row in rows])
    ops = sum(e.ops for e in groups["record"])
    if ops:
        lines.append(f"  {ops} ops recorded, {_time(sum(e.end - e.begin for e in groups['record']) / ops)} each")
    return lines


def _waits(recording: Recording, rows: int) -> list[str]:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for e in recording.client:
        if e.kind == "wait":
            groups[e.name, e.line or "?"].append(e.end - e.begin)
    if not groups:
        return ["waits: none"]
    slowest = sorted(groups.items(), key=lambda item: -sum(item[1]))
    table = _table(
        ["why", "count", "total", "p50", "p99", "line"],
        [[reason, *_spread(times), line] for (reason, line), times in slowest[:rows]],
    )
    more = [f"  and {len(slowest) - rows} more"] if len(slowest) > rows else []
    return ["waits, by line", *table, *more]


def _ranges(recording: Recording, rows: int) -> list[str]:
    groups: dict[str, list[int]] = defaultdict(list)
    for r in recording.ranges:
        if r.kind != "mark":
            groups[r.name].append(r.end - r.begin)
    slowest = sorted(groups.items(), key=lambda item: -sum(item[1]))
    table = _table(["", "count", "total", "p50", "p99"], [[name, *_spread(times)] for name, times in slowest[:rows]])
    more = [f"  and {len(slowest) - rows} more"] if len(slowest) > rows else []
    return ["ranges (torch.remote.nvtx), recording and waits", *table, *more]


def _builds(recording: Recording) -> list[str]:
    builds = [e.end - e.begin for e in recording.client if e.kind == "build"]
    if not builds:
        return ["programs built: none"]
    passes: dict[str, list[int]] = defaultdict(list)
    for e in recording.client:
        if e.kind == "pass":
            passes[e.name].append(e.end - e.begin)
    lines = [f"programs built: {len(builds)}, off the recording threads"]
    lines += _table(
        ["", "count", "total", "p50", "p99"],
        [["build", *_spread(builds)], *([name, *_spread(times)] for name, times in passes.items())],
    )
    misses = [
        f"  program {run.program}, {run.ops} ops: {run.miss}"
        for worker in recording.workers for run in worker.runs.values() if run.miss
    ]  # fmt: skip
    return lines + misses[:10] + ([f"  and {len(misses) - 10} more"] if len(misses) > 10 else [])


def _worker(recording: Recording, worker: Worker, rows: int) -> list[str]:
    lines = [f"worker: {worker.description}"]
    if worker.lost is not None:
        lines.append(f"  lost {_time(max(0, worker.lost - recording.begin))} after the profile began: {worker.error}")
        lines.append(f"  {LAST_MOMENTS}")
    elif worker.error:
        lines.append(f"  events missing: {worker.error}")
    if worker.error and not worker.messages:
        return lines
    whole = recording.end - recording.begin
    busy = _covered(((m.begin, m.end) for m in worker.messages), recording.begin, recording.end)
    in_ops = sum(op.end - op.begin for op in worker.ops)

    def share(name: str, ns: int) -> list[str]:
        return [name, _time(ns), f"{100 * ns / whole:.1f} %"]

    lines += _table(
        ["", "total", "share"], [share("busy", busy), share("of it, in ops", in_ops), share("idle", whole - busy)]
    )
    kinds: dict[str, list[int]] = defaultdict(list)
    for message in worker.messages:
        kinds[message.type].append(message.end - message.begin)
    lines += _table(
        ["message", "count", "total", "p50", "p99"], [[kind, *_spread(times)] for kind, times in kinds.items()]
    )
    ops: dict[tuple[str, str], list[int]] = defaultdict(list)
    declined: dict[tuple[str, str], list[int]] = defaultdict(list)
    for op in worker.ops:
        ops[op.name, op.runner].append(op.end - op.begin)
        if op.declined:
            declined[op.name, op.declined].append(op.end - op.begin)
    slowest = sorted(ops.items(), key=lambda item: -sum(item[1]))
    lines += _table(
        ["op", "count", "total", "p50", "p99", "share", "runner"],
        [
            [name, *_spread(times), f"{100 * sum(times) / max(in_ops, 1):.1f} %", runner]
            for (name, runner), times in slowest[:rows]
        ],
    )
    if len(slowest) > rows:
        lines.append(f"  and {len(slowest) - rows} more")
    if declined:
        lines.append("ops that an earlier runner declined, and why")
        slowest = sorted(declined.items(), key=lambda item: -sum(item[1]))
        lines += _table(
            ["op", "count", "total", "declined by"],
            [[name, str(len(times)), _time(sum(times)), why] for (name, why), times in slowest[:rows]],
        )
        if len(slowest) > rows:
            lines.append(f"  and {len(slowest) - rows} more")
    return lines


def summary(recording: Recording, rows: int = 15) -> str:
    """A table for each of: client, waits by line, builds, workers and their ops. At most `rows` lines and ops."""
    sections = [[f"profile: {_time(recording.end - recording.begin)}"]]
    sections += [_client(recording), _waits(recording, rows), _builds(recording)]
    if any(r.kind != "mark" for r in recording.ranges):
        sections.insert(2, _ranges(recording, rows))
    sections += [_worker(recording, worker, rows) for worker in recording.workers]
    dropped = recording.dropped + sum(worker.dropped for worker in recording.workers)
    if dropped:
        sections.append([f"{dropped} events dropped: the totals are too small; use a larger max_events"])
    return "\n\n".join("\n".join(section) for section in sections) + "\n"
