from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.graph_capture import capture_graph
from service.runner.staging import FixedTensors, layout, part_of, to_device
from service.runner.staging_turns import StagingTurns

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ARRAYS = {
    "odd": np.arange(5, dtype=np.int32),
    "empty": np.zeros(0, dtype=np.int64),
    "table": np.arange(12, dtype=np.int64).reshape(3, 4) - 2**40,
    "strided": np.arange(10, dtype=np.float32)[::3],
    "flags": np.array([True, False, True]),
}


@pytest.mark.parametrize("with_turn", [False, True])
@pytest.mark.parametrize("device", DEVICES)
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


@pytest.mark.parametrize("device", DEVICES)
def test_fixed_tensors_change_what_they_hold_not_where_they_are(device):
    fixed = FixedTensors({"a": np.zeros(3, np.int64), "b": np.zeros(5, np.float32)}, torch.device(device))
    a, b = fixed["a"], fixed["b"]
    for value in (1, 2):
        for array in fixed.writable().values():
            array.fill(value)
        fixed.fetch()
        for array in fixed.writable().values():
            array.fill(77)  # behind the copy
        assert (a.tolist(), b.tolist()) == ([value] * 3, [value] * 5)
    assert fixed["a"].data_ptr() == a.data_ptr()


class Fetched:
    """In place of a CUDA event, behind a copy that runs when it is waited for."""

    def __init__(self):
        self.is_pending = False

    def query(self):
        return not self.is_pending

    def synchronize(self):
        self.is_pending = False

    def record(self):
        self.is_pending = True


def test_what_has_not_been_fetched_is_not_written_again():
    fixed = FixedTensors({"a": np.zeros(3, np.int64)}, torch.device("cpu"))
    fixed._fetched = Fetched()
    fixed.writable()["a"][:] = 5
    fixed.fetch()
    assert fixed._fetched.is_pending
    fixed.writable()
    assert not fixed._fetched.is_pending


@pytest.mark.gpu
@pytest.mark.parametrize("is_captured", [False, True])
def test_what_the_device_has_not_fetched_yet_is_not_written_again(is_captured):
    """Steps in a row, all launched before the first begins."""
    device = torch.device("cuda")
    fixed = FixedTensors({"a": np.zeros(1000, np.int64)}, device)
    seen = torch.zeros(1000, dtype=torch.int64, device=device)

    def step():
        fixed.fetch()
        seen.add_(fixed["a"])

    step()
    torch.cuda.synchronize()
    graph = capture_graph(step, torch.cuda.Stream(device))[0] if is_captured else None
    for value in (1, 10, 100):
        fixed.writable()["a"][:] = value
        torch.cuda._sleep(10**8)
        step() if graph is None else graph.replay()
        assert fixed._fetched is not None
        assert not fixed._fetched.query()
    fixed.writable()["a"][:] = -1
    assert seen.unique().tolist() == [111]
