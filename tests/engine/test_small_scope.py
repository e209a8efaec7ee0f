"""Every short history on a tiny cache: most bugs also show up in a small case.

Four blocks of two tokens, three requests with the same beginning, and every order of nine operations (of ten with
TEST_EXAMPLES=10): the next request arrives, the oldest leaves, an iteration. Then all run to their end. Each history
runs in two of the six modes, others than the next history's; with TEST_EXAMPLES in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

from service.core.events import Outcome
from service.core.request import Request
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap, Preemption
from tests.engine.harness import Harness
from tests.examples import FACTOR

NUM_BLOCKS = 4
LENGTH = 9 if FACTOR <= 1 else 10
NUM_REQUESTS = 3
MOST_STEPS = 30
"""The most iterations that three such requests may take, however they preempt each other."""


def arrivals(harness: Harness, mix: str, number: int) -> Request:
    """The number-th request of a mix. s: one choice, n: two choices, b: two beams; p: one choice and q: two, each with
    an adapter of its own."""
    match mix[number]:
        case "p":
            return harness.request((1, 2), 5, seed=number, adapter=harness.adapter(1))
        case "q":
            return harness.request((1, 2), 3, n=2, seed=number, adapter=harness.adapter(1))
        case "s":
            return harness.request((1, 2, 3), 5, seed=number)
        case "n":
            return harness.request((1, 2), 3, n=2, seed=number)
        case _:
            return harness.beam_request((1, 2), 3, width=2, n=2)


@cache
def histories() -> tuple[str, ...]:
    """a: the next arrives, x: the oldest leaves, i: an iteration. None has an operation without effect."""
    return tuple("".join(operations) for operations in product("axi", repeat=LENGTH) if _says_something(operations))


def _says_something(operations: tuple[str, ...]) -> bool:
    num_arrived = num_left = 0
    for operation in operations:
        num_arrived += operation == "a"
        num_left += operation == "x"
        if num_arrived > NUM_REQUESTS or num_left > num_arrived or num_arrived == 0:
            return False
    return True


def play(harness: Harness, mix: str, history: str) -> None:
    num_arrived = num_left = 0
    for operation in history:
        match operation:
            case "a":
                assert harness.add(arrivals(harness, mix, num_arrived))
                num_arrived += 1
            case "x":
                harness.engine.requests.abort(f"request-{num_left}")
                harness.collect()
                num_left += 1
            case _:
                harness.step()
    harness.run(max_steps=MOST_STEPS)


def check_end(harness: Harness) -> None:
    assert harness.blocks.pool.num_used == harness.blocks.adapter_slots.num_idle_blocks
    assert harness.blocks.swap_space.num_used == 0
    for request_id, request in harness.requests.items():
        is_whole = harness.finals[request_id].outcome is Outcome.FINISHED
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice, complete=is_whole)


def modes() -> Iterator[tuple[str, type[Preemption], bool]]:
    yield "snb", AlwaysRecompute, False
    yield "bsn", AlwaysSwap, False
    yield "nbs", AlwaysSwap, True
    yield "sbb", AlwaysRecompute, True
    yield "pqs", AlwaysRecompute, True
    yield "pqp", AlwaysSwap, False


MODES = list(modes())
TAKEN_BY = 2 if FACTOR <= 1 else len(MODES)


@pytest.mark.parametrize(("mix", "preemption", "overlap"), MODES)
def test_every_short_history_ends_as_it_should(mix: str, preemption: type[Preemption], overlap: bool):
    num_preempted, own = 0, MODES.index((mix, preemption, overlap))
    for number, history in enumerate(histories()):
        if (own - number // len(MODES)) % len(MODES) >= TAKEN_BY:
            continue
        harness = Harness(
            NUM_BLOCKS,
            2,
            max_num_seqs=4,
            max_num_batched_tokens=6,
            preemption=preemption(),
            num_host_blocks=number % 3 * 2,
            num_adapter_slots=1 + number // 2 % 2,
            transfer_delay=number % 2,
            overlap=overlap,
        )
        try:
            play(harness, mix, history)
            check_end(harness)
        except Exception as fault:
            raise AssertionError(f"history {history} of {mix}") from fault
        num_preempted += sum(stats.num_preemptions for stats, _, _ in harness.sink.requests)
    assert num_preempted > 100 * TAKEN_BY / len(MODES)
