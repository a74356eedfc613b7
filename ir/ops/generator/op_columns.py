"""The notation of columns that name hand-written kernels. Every function raises ValueError for a wrong value."""

from __future__ import annotations

import re

_DTYPES = ("any", "real", "complex")


def _check_function(name: object):
    if not isinstance(name, str) or not re.fullmatch(r"[a-z]\w*\.[a-z]\w*", name):
        raise ValueError(f"{name!r} is not a function; write 'file.function'")


def cuda_plans(value: object) -> tuple[str, str]:
    """The plans for real and for complex dtypes, of a column `cuda`; "" if there is none."""
    plans = value if isinstance(value, dict) else {"real": value}
    if not plans or plans.keys() - set(_DTYPES) or ("any" in plans and len(plans) > 1):
        raise ValueError(f"cuda names plans for {sorted(plans)}; use 'any' alone, or 'real' and 'complex'")
    for plan in plans.values():
        _check_function(plan)
    return tuple(plans.get(dtypes, plans.get("any", "")) for dtypes in ("real", "complex"))
