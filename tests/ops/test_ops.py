"""Every op of torch's op_db in float32, and the overloads of the op table that they reach. matrix.json states how
many calls must be compared. matrix.py covers all dtypes."""

import floors
import matrix
import pytest
from harness import LAYOUTS, STRIDES_DIFFER, load_table

FLOORS = floors.load()
# Counts of what is not compared; they may only shrink. floors.py writes the list.
NOT_COMPARED = {"packed": 32, "permuted": 34, "overloads": 111}
UNITS = [unit for unit in floors.units(FLOORS["more"]) if str(unit) in FLOORS["overloads"]]


def check(report):
    assert not report.failures(), "\n".join(report.failures())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("names", floors.GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_ops_equal_cpu(device, names, layout):
    report = floors.run_ops(names, layout, device)
    check(report)
    least = {name: FLOORS["ops"].get(name, [0] * len(LAYOUTS))[list(LAYOUTS).index(layout)] for name in names}
    less = {name: (report.compared[name], least[name]) for name in names if report.compared[name] < least[name]}
    assert not less, f"fewer calls were compared than should be: {less}"
    for name in names:
        measured = name in FLOORS["ops"] or matrix.is_measured()
        assert least[name] or not report.compared[name] or not measured, (
            f"{name} is compared now: run //tests/ops:floors"
        )
    if device.type == "remote":
        expected = {e for e in STRIDES_DIFFER if e.endswith(f", {layout}") and e.split(", ")[0] in names}
        assert set(report.excused) == expected or not matrix.is_measured(), (
            "take what is not needed any more out of STRIDES_DIFFER"
        )


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_overloads_equal_cpu(device, unit):
    report = floors.run_unit(unit, device, load_table())
    check(report)
    missing = set(FLOORS["overloads"][str(unit)]) - set(floors.reached(report))
    assert not missing, f"not compared any more: {sorted(missing)}"


def test_what_is_not_compared_is_listed():
    listed = FLOORS["not compared"]
    assert set(FLOORS["ops"]) == set(floors.NAMES) or not matrix.is_measured(), "run //tests/ops:floors"
    for i, layout in enumerate(LAYOUTS):
        none = {name for name, counts in FLOORS["ops"].items() if not counts[i]}
        assert none == set(listed["ops"][layout]), "run //tests/ops:floors"
        assert len(listed["ops"][layout]) <= NOT_COMPARED[layout]
    compared = {name for names in FLOORS["overloads"].values() for name in names}
    others = [name for names in listed["overloads"].values() for name in names]
    assert compared.isdisjoint(others) and compared | set(others) == set(load_table()), "run //tests/ops:floors"
    assert len(others) <= NOT_COMPARED["overloads"]
