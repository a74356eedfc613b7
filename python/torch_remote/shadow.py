"""Shadow runs: the worker executes steps of runs again on a reference and compares the results (docs/tools.md)."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch_remote import _C
from torch_remote.device._device import _Device, _index

__all__ = ["ShadowDifference", "ShadowReport", "ShadowWarning", "shadow", "shadow_report"]


class ShadowWarning(UserWarning):
    """A worker's results differ from those of its reference implementation."""


@dataclass(frozen=True)
class ShadowDifference:
    """A step whose results differ: one op, or a group of ops that one kernel computes."""

    op: str  # the first op that differs, with its operands
    line: str  # the user's line; "" if it is not known any more
    what: str  # how the results differ
    runner: str  # what computed them
    file: Path | None  # a capture of the step with its operands, for remote-replay; None: it could not be written

    def __str__(self) -> str:
        where = f"\n  at {self.line}" if self.line else ""
        repeat = f"\n  to repeat it: remote-replay --compare worker --other WORKER {self.file}" if self.file else ""
        return f"{self.op} by {self.runner}{where}\n  {self.what}{repeat}"


@dataclass(frozen=True)
class ShadowReport:
    """What the worker of a device checked since its session began."""

    runs: int = 0  # runs that were checked
    steps: int = 0  # steps that were compared
    left_out: int = 0  # steps that were not: too large, or without a reference implementation
    bytes: int = 0  # bytes copied from the device
    copying_seconds: float = 0.0  # time that the session spent on copying
    checking_seconds: float = 0.0  # time of the checks, on a thread of their own
    differences: int = 0  # steps whose results differ
    found: tuple[ShadowDifference, ...] = ()  # the differences that no earlier report or warning has had


_asked = False  # the script chose shadow runs
_written = 0  # captures of this process


def shadow(rate: float, *, first: int = 0) -> None:
    """Makes the workers check some of their runs, from now on.

    The worker executes the steps of these runs again on its reference, a slow and simple implementation on its CPU.
    Each step gets the operands that it had on the device. A difference raises a ShadowWarning soon after, on the main
    thread, with the op, the user's line, and a file for remote-replay.

    Args:
        rate: the share of the runs, from 0 to 1. 0.01 checks one run in a hundred.
        first: before that, so many runs are checked: those whose program, or choice of kernels, is new.

    Raises:
        ValueError: rate is not between 0 and 1, or first is negative.
        NotImplementedError: a running worker has no reference (`inproc`).
    """
    global _asked
    if not 0 <= rate <= 1:
        raise ValueError(f"torch.remote.shadow: rate is between 0 and 1, got {rate}")
    if first < 0:
        raise ValueError(f"torch.remote.shadow: first is at least 0, got {first}")
    _asked = True
    _C.set_shadow(rate, first)


def shadow_report(device: _Device = None, *, wait: bool = True) -> ShadowReport:
    """Returns what the worker of a device has checked. Waits for the worker, and with `wait` for its checks."""
    index = _index(device)
    _C.flush(index)
    return _report(index, wait)


def _report(device: int, wait: bool) -> ShadowReport:
    found: list[ShadowDifference] = []
    while (report := _C.shadow_report(device, wait, str(_next_file()))) is not None:
        difference = report.pop("difference")
        if difference is None:
            return ShadowReport(**report, found=tuple(found))
        found.append(_made(difference))
    return ShadowReport()


def _next_file() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-remote" / "shadow"
    return folder / f"{os.getpid()}-{_written + 1}.rreplay"


def _made(difference: dict[str, str | None]) -> ShadowDifference:
    global _written
    file = difference["file"]
    if file is not None:
        _written += 1
    texts = {name: difference[name] or "" for name in ("op", "line", "what", "runner")}
    return ShadowDifference(**texts, file=None if file is None else Path(file))


def _new_reports() -> list[ShadowReport]:
    """By device, without waiting for checks. A worker that is lost has nothing to report: its users get an error."""
    reports = []
    for device in range(_C.device_count()):
        try:
            reports.append(_report(device, wait=False))
        except RuntimeError:
            reports.append(ShadowReport())
    return reports


def _text(difference: ShadowDifference) -> str:
    return f"torch_remote: a result differs from that of the worker's reference\n  {difference}"


def _warn() -> None:
    """Warns of the differences that were found. Called on the main thread, between two bytecodes."""
    for report in _new_reports():
        for difference in report.found:
            warnings.warn(ShadowWarning(_text(difference)), stacklevel=2)


def _report_at_exit() -> None:
    """Prints the differences that no warning has had, and what the checks of a GPU's first runs cost. A user who did
    not ask for them must know."""
    for device, report in enumerate(_new_reports()):
        for difference in report.found:
            print(_text(difference), file=sys.stderr)
        if not _asked and report.runs:
            print(
                f"torch_remote: compared {report.steps} steps of the first {report.runs} runs of remote:{device} "
                f"with the worker's reference: {report.differences or 'none'} differ. Copying took "
                f"{report.copying_seconds:.1f} s. TORCH_REMOTE_SHADOW=0 turns this off",
                file=sys.stderr,
            )


def _read_environment() -> None:
    text = os.environ.get("TORCH_REMOTE_SHADOW", "")
    if not text:
        return
    try:
        shadow(float(text))
    except ValueError:
        raise ValueError(
            f"TORCH_REMOTE_SHADOW is a share of runs between 0 and 1, such as 0.01, got {text!r}"
        ) from None
