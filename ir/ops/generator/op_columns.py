"""The notation of columns for the worker's targets. Every function raises ValueError for a wrong value."""

from __future__ import annotations

import re

_DTYPES = ("any", "real", "complex")
# Torch's names of dtypes, and those of c10::ScalarType.
SCALAR_TYPES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "complex32": "ComplexHalf",
    "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


_FUNCTION = r"[a-z]\w*\.[a-z]\w*"
_PLAN = rf"{_FUNCTION}(\([A-Za-z]\w*(::\w+)+\))?"  # with an enumerator or an opcode as argument


def _check_function(name: object, form: str = _FUNCTION):
    if not isinstance(name, str) or not re.fullmatch(form, name):
        raise ValueError(f"{name!r} is not a function; write 'file.function'")


def function(value: object) -> str:
    _check_function(value)
    return value


def cuda_plans(value: object) -> tuple[str, str]:
    """The plans for real and for complex dtypes, of a column `cuda`; "" if there is none."""
    plans = value if isinstance(value, dict) else {"real": value}
    if not plans or plans.keys() - set(_DTYPES) or ("any" in plans and len(plans) > 1):
        raise ValueError(f"cuda names plans for {sorted(plans)}; use 'any' alone, or 'real' and 'complex'")
    for plan in plans.values():
        _check_function(plan, _PLAN)
    return tuple(plans.get(dtypes, plans.get("any", "")) for dtypes in ("real", "complex"))


def by_overload(value: object, entry: str, overloads: list[str]) -> dict[str, str]:
    """The functions of overloads, in `aten` and `aten_if`. A string is for the overload that the entry names."""
    functions = value if isinstance(value, dict) else {entry: value}
    for overload, name in functions.items():
        if overload not in overloads:
            raise ValueError(f"the entry captures no overload {overload!r}; it captures {', '.join(sorted(overloads))}")
        _check_function(name)
    return functions


def wider_dtypes(value: object) -> dict[str, str]:
    """A column `computes_in`: dtypes, and those that their elements are converted to."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"computes_in = {value!r} is not a table of dtypes")
    if unknown := {*value.keys(), *value.values()} - SCALAR_TYPES.keys():
        raise ValueError(f"computes_in names the dtypes {sorted(unknown)}; use {', '.join(SCALAR_TYPES)}")
    return value


def message(value: str) -> str:
    """A column with an error message, in which {index} and {size} stand for numbers."""
    if unknown := set(re.findall(r"{(.*?)}", value)) - {"index", "size"}:
        raise ValueError(f"the message {value!r} names {sorted(unknown)}; it can name 'index' and 'size'")
    return value
