from __future__ import annotations

import numpy as np
import pytest
import torch

from service.runner.device_copies import layout, part_of, to_device
from service.runner.staging import StagingTurns

ARRAYS = {
    "odd": np.arange(5, dtype=np.int32),
    "empty": np.zeros(0, dtype=np.int64),
    "table": np.arange(12, dtype=np.int64).reshape(3, 4) - 2**40,
    "strided": np.arange(10, dtype=np.float32)[::3],
    "flags": np.array([True, False, True]),
}


@pytest.mark.parametrize(
    ("device", "with_turn"),
    [("cpu", False), *(pytest.param("cuda", turn, marks=pytest.mark.gpu) for turn in (False, True))],
)
def test_values_shapes_and_types_arrive(device, with_turn):
    turn = StagingTurns(torch.device(device)).take() if with_turn else None
    tensors = to_device(ARRAYS, torch.device(device), turn)
    assert list(tensors) == list(ARRAYS)
    for name, array in ARRAYS.items():
        got = tensors[name].cpu().numpy()
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert (got == array).all()


@pytest.mark.gpu
def test_a_buffer_is_not_reused_before_its_copy_ran():
    device = torch.device("cuda")
    torch.cuda._sleep(10**8)  # the copies have to wait behind this
    sent = [to_device({"x": np.full(1000, i, dtype=np.int64)}, device)["x"] for i in range(50)]
    assert [int(x.min()) for x in sent] == [int(x.max()) for x in sent] == list(range(50))


def test_parts_begin_at_multiples_of_16_and_do_not_overlap():
    offsets, num_bytes = layout({"a": 1, "b": 16, "c": 0, "d": 17})
    assert (offsets, num_bytes) == ({"a": 0, "b": 16, "c": 32, "d": 32}, 64)


def test_a_part_has_the_type_and_shape_of_its_array():
    buffer = torch.arange(64, dtype=torch.uint8)
    part = part_of(buffer, 16, np.zeros((2, 3), dtype=np.int32))
    assert (part.dtype, part.shape) == (torch.int32, (2, 3))
    assert part[0, 0] == int.from_bytes(bytes([16, 17, 18, 19]), "little")
