"""Every op in every dtype, and every overload that they reach: the long form of test_ops.py."""

import pytest
import run


@pytest.mark.parametrize("table", [False, True], ids=["op_db", "op_table"])
@pytest.mark.parametrize("dtype", run.ALL)
def test_ops_equal_cpu(device, dtype, table):
    report, _ = run.run(str(device), dtype, only="", samples=6, table=table, timeout=120)
    failed = [f"{name}: {report.messages[name]}" for name, outcome in report.outcomes.items() if outcome == "fail"]
    assert not failed, "\n".join(failed)
