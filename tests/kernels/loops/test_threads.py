from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="module")
def loops():
    """(adds one to a number, calls a body by its address, counts how many turns it waited for a number)"""
    from kernels.loops.bf16 import count_up, int64_at
    from kernels.loops.team import Loop
    from kernels.loops.threads import call, give_way, peek

    def add_one(arguments):
        int64_at(int64_at(arguments, 3)[2], 1)[0] += 1

    def call_twice(arguments):
        a = int64_at(arguments, 4)
        call(a[2], a[3])
        call(a[2], a[3])

    def wait(arguments):
        """The first thread waits for the second to count, however the system takes turns with them."""
        if count_up(arguments) == 0:
            turns = 0
            while peek(arguments) < 2:
                turns += 1
                give_way(turns)
            int64_at(int64_at(arguments, 3)[2], 1)[0] = peek(arguments)

    return Loop(add_one), Loop(call_twice), Loop(wait)


def test_a_body_is_called_by_its_address(loops):
    add_one, call_twice, _ = loops
    number = torch.zeros(1, dtype=torch.int64)
    arguments = torch.tensor([0, 1, number.data_ptr()])
    call_twice(False, 1, add_one._address, arguments.data_ptr())
    assert number.item() == 2


def test_a_thread_waits_for_what_another_counts(loops):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(20):
            seen = torch.zeros(1, dtype=torch.int64)
            loops[2](True, 1, seen.data_ptr())
            assert seen.item() == 2
    finally:
        torch.set_num_threads(before)
