from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from service.chat_client.batch_input import BatchItem
from service.chat_client.batches import Batches, answer_or_fault
from service.chat_client.server import ServerFault
from service.chat_client.server_batch import ServerBatch

A, B, C = (BatchItem(name, 5) for name in "abc")


class Held:
    """Answers that come when they are let through."""

    def __init__(self) -> None:
        self.gates = {item: threading.Event() for item in (A, B, C)}

    def __call__(self, item: BatchItem) -> str:
        assert self.gates[item].wait(10)
        if item is B:
            raise ServerFault("no")
        return f"answer to {item.prompt}"


def no_batches(items: Sequence[BatchItem]) -> ServerBatch:
    raise ServerFault("there are none here")


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def batches(held: Held) -> Iterator[Batches]:
    batches = Batches(no_batches, held)
    yield batches
    for gate in held.gates.values():
        gate.set()
    batches.close()


def test_a_batch_is_told_of_once_and_its_answers_wait_until_they_are_taken_once(held: Held, batches: Batches):
    first, second = batches.start([A, B]), batches.start([C])
    assert (first.name, second.name) == ("1", "2")
    assert (batches.newly_done(), batches.take_done(), batches.num_running) == ([], [], 2)
    held.gates[C].set()
    second.answers[0].result(10)
    assert batches.newly_done() == ["2"]
    assert batches.newly_done() == []
    assert batches.take_done() == [second]
    assert (batches.take_done(), batches.num_running) == ([], 1)


def test_answers_stand_in_the_order_of_the_prompts_and_a_fault_stands_for_one(held: Held, batches: Batches):
    batch = batches.start([A, B])
    for item in (B, A):
        held.gates[item].set()
    assert [answer_or_fault(answer) for answer in batch.answers] == ["answer to a", "(failed: no)"]
