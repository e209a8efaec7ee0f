from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.background_chunks import ON_CPU, QUIET_S, BackgroundChunks
from tests.engine.harness import Harness
from tests.examples import examples


@settings(max_examples=examples(50), deadline=None)
@given(moves=st.lists(st.sampled_from(["chat", "line", "step", "wait"]), max_size=40), overlap=st.booleans())
def test_they_are_few_while_there_are_others_and_until_it_has_been_quiet(moves: list[str], overlap: bool) -> None:
    """The limit is asked for after each move, as the scheduler does in each iteration with prompts."""
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64, overlap=overlap)
    pool, clock = harness.scheduler.pool, harness.clock
    chunks = BackgroundChunks(pool, ON_CPU)
    few_until_s, had_others = -math.inf, False
    for number, move in enumerate(moves):
        match move:
            case "step":
                harness.step()
            case "wait":
                clock.advance(QUIET_S / 2)
            case _:
                harness.add(harness.request((1, 2, number + 3), 3, is_background=move == "line"))
        has_others = any(not group.request.is_background for group in pool.groups())
        assert pool.has_others is has_others
        if has_others or had_others:
            few_until_s = clock.now_s() + QUIET_S
        had_others = has_others
        assert chunks.most(clock.now_s()) == (ON_CPU if clock.now_s() < few_until_s else None)
