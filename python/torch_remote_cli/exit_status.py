"""Exit statuses of processes, as text."""

from __future__ import annotations

import signal


def describe(status: int) -> str:
    """How a process ended: "exited with status 3", "was killed by signal 9 (Killed)".

    Args:
        status: as Popen.returncode: the negative number of a signal, or the exit status. Shells and containers report
            a signal as 128 + its number.
    """
    if status < 0:
        return f"was killed by signal {-status} ({_name(-status)})"
    name = _name(status - 128) if 128 < status < 128 + signal.NSIG else ""
    return f"exited with status {status}" + (f" (signal {status - 128}, {name})" if name else "")


def _name(number: int) -> str:
    try:
        return signal.strsignal(number) or ""
    except ValueError:
        return ""
