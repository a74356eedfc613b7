"""Every op in every dtype, recorded and compiled, and every overload that they reach: the long form of test_ops.py and
test_compiled_ops.py."""

import pytest
import run


@pytest.mark.parametrize("what", run.WHAT)
@pytest.mark.parametrize("dtype", run.ALL)
def test_ops_equal_cpu(device, dtype, what):
    if what == "compiled" and device.type != "remote":
        pytest.skip("of the device remote alone")
    report, _ = run.run(str(device), dtype, only="", samples=6, what=what, timeout=120)
    failed = [f"{name}: {report.messages[name]}" for name, outcome in report.outcomes.items() if outcome == "fail"]
    assert not failed, "\n".join(failed)
