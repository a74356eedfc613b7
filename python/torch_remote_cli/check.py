"""One check of `torch-remote doctor`: its name, its state, what was found, and how to fix a failure."""

from __future__ import annotations

from typing import Any

Check = dict[str, Any]


def ok(name: str, found: str) -> Check:
    return {"check": name, "state": "ok", "found": found, "fix": ""}


def failed(name: str, found: str, fix: str) -> Check:
    return {"check": name, "state": "failed", "found": found, "fix": fix}


def note(name: str, found: str, fix: str = "") -> Check:
    return {"check": name, "state": "note", "found": found, "fix": fix}
