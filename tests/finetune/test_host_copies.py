from __future__ import annotations

import pytest
import torch

from service.finetune.host_copies import host_copies, reserve_host_copies

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_the_tensors_as_they_were(device: str):
    tensors = [torch.arange(1000.0, device=device) + start for start in (0, 5)]
    of_host = torch.empty(1000, pin_memory=device == "cuda")
    tensors.append(of_host.copy_(torch.arange(1000.0, device=device) + 9, non_blocking=True))
    reserve_host_copies(3, 1000, torch.device(device))
    copies = host_copies(tensors, torch.device(device))
    for tensor in tensors:
        tensor.zero_()
    for copy, start in zip(copies, (0, 5, 9), strict=True):
        assert copy.device.type == "cpu"
        assert torch.equal(copy, torch.arange(1000.0) + start)
        assert copy.is_pinned() == (device == "cuda")


def test_two_copies_share_no_memory():
    first, second = (host_copies([torch.zeros(4)], torch.device("cpu")) for _ in range(2))
    first[0].fill_(1.0)
    assert second[0].sum() == 0
