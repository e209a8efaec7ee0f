"""What kernels make of it: tests/kernels/test_one_shot_all_reduce.py."""

from __future__ import annotations

import pytest
import torch

from kernels.symmetric_memory import INPUT_BYTES, MAX_PROGRAMS, SymmetricMemory, flag_bytes, mail_offset


@pytest.mark.parametrize("size", [2, 4, 8])
def test_flags_and_two_of_inputs_mail_and_sums_have_room(size):
    assert flag_bytes(size) >= MAX_PROGRAMS * size * 8
    assert SymmetricMemory.num_bytes(size, 1024) == flag_bytes(size) + 2 * INPUT_BYTES + 4 * 1024
    assert flag_bytes(size) % 256 == mail_offset(size) % 256 == 0, "what follows is aligned"


def test_it_begins_at_step_zero_and_refuses_what_kernels_could_not_read():
    cpu = torch.device("cpu")
    memory = SymmetricMemory.at([1024, 2048], 1, 512, cpu, None)
    assert memory.size == 2 and memory.buffers.tolist() == [1024, 2048]
    assert memory.steps.tolist() == [0] * MAX_PROGRAMS
    for addresses, capacity in (([1024, 2056], 512), ([1024, 2048], 500)):
        with pytest.raises(AssertionError):
            SymmetricMemory.at(addresses, 1, capacity, cpu, None)
