"""Runs pieces, and chooses the pieces that are missing."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.gates import results
from tests.gates.pieces import Outcome, Piece, prepare
from tests.gates.results import Part


def workspace() -> Path:
    return Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=workspace(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def timed_out(signal_number: int, frame: object) -> None:
    raise TimeoutError("it hangs")


def run_piece(part: Part, number: int, limit: float, commit: str, most: float = math.inf) -> results.Record:
    """Runs a piece; an exception counts as one wrong unit. `limit` multiplies the part's own limit. `most`: seconds."""
    first = number * part.piece
    count = int(min(part.piece, most)) if part.least else part.piece
    if not part.least and first < part.contract:
        count = min(count, part.contract - first)
    load, begin = os.getloadavg()[0], time.monotonic()
    signal.signal(signal.SIGALRM, timed_out)
    signal.alarm(1800 + (2 * count if part.least else 0))
    try:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name))
            outcome = part.run(Piece(Path(name), first, count))
    except Exception as error:  # the other pieces must still run
        outcome = Outcome(0, 1, text=re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[-300:])
    finally:
        signal.alarm(0)
    return {
        "part": part.name, "piece": number, "first": first, "count": outcome.count, "wrong": int(outcome.wrong),
        "late": sum(time > part.limit * limit for time in outcome.times) if part.limit else 0,
        "worst": round(max(outcome.times, default=outcome.worst), 6), "kinds": outcome.kinds, "text": outcome.text,
        "seconds": round(time.monotonic() - begin, 1), "cores": os.cpu_count() or 1, "load": round(load, 2),
        "commit": commit,
    }  # fmt: skip


def is_failure(part: Part, record: results.Record) -> bool:
    return record["wrong"] > 0 or results.exceeds_limit(part, record)


def describe(part: Part, record: results.Record) -> str:
    worst = part.worst.format(record["worst"]) if part.worst else ""
    busy = f"load {record['load']:g}" if results.loaded(record) else ""
    more = "; ".join(text for text in (worst, record["text"], busy) if text)
    return (
        f"{part.name} piece {record['piece']}: {record['count']:,}, {record['wrong']} wrong, {record['late']} late, "
        f"{record['seconds']:.0f} s" + (f" ({more})" if more else "")
    )


def is_idle(seconds: float) -> bool:
    """Waits up to `seconds` until the load is below the number of cores. Earlier processes still count in the load for
    a while."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > (os.cpu_count() or 1):
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


def run_missing(parts: list[Part], file: Path, minutes: float, start: int) -> int:
    """Runs pieces in turn until nothing is missing, or the time is over.

    While the machine is loaded, parts with a time limit are run only when nothing else is missing.
    """
    changed = git("status", "--porcelain", "--untracked-files=no").splitlines()
    own = ("tests/gates/results.jsonl", "docs/reliability.md")
    commit = git("rev-parse", "--short=12", "HEAD") + ("+" if any(not line.endswith(own) for line in changed) else "")
    end, failed, left = time.monotonic() + 60 * minutes, False, list(parts)
    waits, ran = True, True
    while left:
        all_of_them, ran = not ran, False
        for part in list(left):
            idle = not part.limit or is_idle(min(90 if waits else 0, max(0, end - time.monotonic())))
            if part.limit:
                waits = idle  # waits only once per run
            if not idle and not all_of_them:
                continue
            records = results.read(file)
            number = results.next_piece(part, records, commit, idle, start)
            took = [record["seconds"] for record in records if record["part"] == part.name and record["wrong"] == 0]
            remains = end - time.monotonic()
            needed = part.least * 1.6 if part.least else max(took, default=0)
            if number is None or remains < max(needed, 1):
                left.remove(part)
                continue
            record = run_piece(part, number, 1, commit, remains / 1.6)
            results.append(file, record)
            ran = True
            failed |= is_failure(part, record)
            print(describe(part, record), flush=True)
    return int(failed)
