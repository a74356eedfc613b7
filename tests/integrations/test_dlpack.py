"""Sharing tensors with other libraries: the error says what to do, and an explicit copy works."""

import numpy as np
import pytest
import torch
from torch.utils.dlpack import DLDeviceType


@pytest.mark.parametrize("take", [torch.from_dlpack, np.from_dlpack])
def test_the_message_says_what_to_do(remote, take):
    x = torch.arange(3.0, device=remote)
    with pytest.raises(BufferError, match=r"remote: a tensor on remote:0 cannot .* from_dlpack\(x\.cpu\(\)\)"):
        take(x)
    assert take(x.cpu()).tolist() == [0, 1, 2]


def test_a_copy_on_the_cpu_is_given_to_who_asks_for_it(remote):
    x = torch.arange(6.0, device=remote).view(2, 3).t()
    taken = np.from_dlpack(x, device="cpu")
    assert np.array_equal(taken, x.cpu().numpy())
    with pytest.raises(BufferError, match="remote: "):
        x.__dlpack__(dl_device=(DLDeviceType.kDLCPU, 0), copy=False)


def test_the_device_is_told(remote):
    assert torch.ones(1, device=remote).__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch.ones(1).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)


def test_other_tensors_are_shared_as_ever(remote):
    x = torch.zeros(3)
    np.from_dlpack(x)[0] = 5
    torch.from_dlpack(x)[1] = 6
    assert x.tolist() == [5, 6, 0]
    with pytest.raises(BufferError, match="require gradient"):
        np.from_dlpack(x.requires_grad_())
