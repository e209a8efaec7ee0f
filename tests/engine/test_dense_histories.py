"""Histories in which memory is always short: requests with long prompts and several choices arrive at once, for a cache
that holds only a few. So nearly each is preempted, and is swapped in or recomputed.

With and without a sliding window, with which sequences pass blocks on while they run; and with a window in only some
groups of layers.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from service.core.layer_groups import TableGroups
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.scheduler.speculation import Speculation
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_drafts import ToyDrafts
from tests.examples import examples


def play(seed: int, window: int | None, num_lanes: int, groups: TableGroups | None) -> Harness:
    chance = random.Random(seed)
    block_size, budget = chance.choice([1, 2, 3, 4]), chance.choice([9, 12, 20])
    seen = AttentionWindow(window or 1, 2 * budget)
    num_blocks = chance.randint(14, 40) if window is None else seen.most_units(block_size) + chance.randint(0, 5)
    if groups is not None:
        num_blocks = num_blocks * groups.num_windowed + 120 // block_size * groups.num_full
    cache = ChainedPrefixCache(block_size, chance.choice([1, 2]), window=window, groups=groups)
    drafted_by = None if groups is not None else window
    speculation = Speculation(2, 6, lambda: ToyDrafts(chance, 0.6, VOCABULARY, window=drafted_by))
    harness = Harness(
        num_blocks,
        block_size,
        8,
        budget,
        prefix_cache=chance.choice([cache, cache, NoPrefixCache()]),
        policy=chance.choice(["fcfs", "fair", "priority"]),
        admission=chance.choice(["on-demand", "on-demand", "forecast"]),
        preemption=SometimesSwap(0.6),
        num_host_blocks=chance.choice([6, num_blocks]),
        transfer_delay=chance.choice([0, 1, 3]),
        overlap=chance.random() < 0.5,
        num_lanes=num_lanes,
        speculation=speculation if chance.random() < 0.5 else None,
        window=window,
        groups=groups,
    )
    beginnings = [tuple(chance.randint(0, 3) for _ in range(60)) for _ in range(2)]
    longest = 100 if window else num_blocks * block_size
    for number in range(14):
        prompt = chance.choice(beginnings)[: chance.randint(1, max(1, min(60, longest // 2)))]
        max_tokens = chance.randint(1, max(1, min(60, longest // 2)))
        if number % 5 == 4:
            harness.add(harness.beam_request(prompt, min(max_tokens, 8), 3, 2))
        else:
            harness.add(harness.request(prompt, max_tokens, chance.choice([1, 1, 2, 3]), number, priority=number % 3))
        for _ in range(chance.choice([0, 0, 1, 6])):
            harness.step()
        if number % 6 == 5 and harness.engine.requests.request_ids():
            harness.engine.requests.stop_choice(chance.choice(harness.engine.requests.request_ids()), 0)
    harness.run(max_steps=5000)
    return harness


@pytest.mark.parametrize(
    ("window", "groups"), [(None, None), (12, None), (30, None), (12, TableGroups(1, 2)), (7, TableGroups(2, 1))]
)
@pytest.mark.parametrize("num_lanes", [1, 2])
def test_however_short_memory_is_each_gets_its_own_tokens(
    window: int | None, groups: TableGroups | None, num_lanes: int
):
    recoveries = Counter[str]()
    for seed in range(examples(5)):
        harness = play(1000 * num_lanes + 100 * (window or 0) + seed, window, num_lanes, groups)
        for request_id, final in harness.finals.items():
            request = harness.requests[request_id]
            assert final.error is None
            for choice in range(request.sampling.n):
                harness.check_against_oracle(request_id, choice, complete=False)
            recoveries.update(preemption.recovery for preemption in final.stats.preemptions)
        harness.check_nothing_left()
    assert recoveries["swap"] > 0 < recoveries["recompute"]
