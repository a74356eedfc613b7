"""A cached step takes few calls of the driver. Its kernels are CUDA graphs; few of them get new addresses, and one copy
updates their numbers. (How often the worker polls for completion depends on time, and is not tested.)"""

import driver_calls
import pytest

# Maximum number of calls per step.
MOST = {
    "MLP, AdamW": {
        "cuGraphLaunch": 2,
        "cuGraphExecKernelNodeSetParams": 4,
        "cuLaunchKernel": 2,
        "cuMemcpyHtoDAsync": 1,
        "cuMemcpyDtoHAsync": 3,
        "cuMemcpyDtoDAsync": 0,
        "cuEventRecord": 3,
        "cuStreamWaitEvent": 0,
        "cuLaunchHostFunc": 0,
    },
    "GPT-2 decode": {
        "cuGraphLaunch": 3,
        "cuGraphExecKernelNodeSetParams": 20,
        "cuLaunchKernel": 16,
        "cuMemcpyHtoDAsync": 2,
        "cuMemcpyDtoHAsync": 3,
        "cuEventRecord": 4,
        "cuStreamWaitEvent": 0,
        "cuLaunchHostFunc": 0,
    },
}


@pytest.mark.parametrize("name", MOST)
def test_calls_of_a_step(remote, name):
    calls = driver_calls.calls_of(name, remote)
    assert calls.get("cuGraphLaunch", 0) >= 1
    assert {call: calls.get(call, 0) for call in MOST[name] if calls.get(call, 0) > MOST[name][call]} == {}, calls


POLLING = {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventQuery", "cuEventSynchronize"}


def test_item_is_one_copy_and_one_event(remote):
    """Besides these, the step has the kernel and the event of its run."""
    calls = driver_calls.calls_of("one kernel, item()", remote)
    made = {call: round(count) for call, count in calls.items() if round(count) != 0 and call not in POLLING}
    assert made == {"cuLaunchKernel": 1, "cuMemcpyDtoHAsync": 1, "cuEventRecord": 2}, calls
