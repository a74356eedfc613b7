"""A step that has been there before costs few calls of the driver: its kernels are graphs, few of which are given
other addresses, and other numbers by one copy. (How often the worker asks whether something is done depends on time,
and is not looked at.)"""

import driver_calls
import pytest

# At most so many a step.
MOST = {
    "MLP, AdamW": {
        "cuGraphLaunch": 2,
        "cuGraphExecKernelNodeSetParams": 4,
        "cuLaunchKernel": 2,
        "cuMemcpyHtoDAsync": 1,
        "cuMemcpyDtoHAsync": 3,
    },
    "GPT-2 decode": {
        "cuGraphLaunch": 3,
        "cuGraphExecKernelNodeSetParams": 20,
        "cuLaunchKernel": 16,
        "cuMemcpyHtoDAsync": 2,
        "cuMemcpyDtoHAsync": 3,
    },
}


@pytest.mark.parametrize("name", MOST)
def test_calls_of_a_step(remote, name):
    calls = driver_calls.calls_of(name, remote)
    assert calls.get("cuGraphLaunch", 0) >= 1
    assert {call: calls.get(call, 0) for call in MOST[name] if calls.get(call, 0) > MOST[name][call]} == {}, calls
