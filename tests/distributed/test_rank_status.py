from __future__ import annotations

import os

from service.distributed.rank_status import Fact, RankStatuses


def test_a_fact_is_seen_through_every_mapping_and_is_its_ranks_own():
    memory = RankStatuses.make_memory(3)
    one, other = RankStatuses(memory, 3), RankStatuses(memory, 3)
    os.close(memory)
    for rank in range(3):
        for fact in Fact:
            one.set(rank, fact, 100 * rank + fact)
    assert [[other.get(rank, fact) for fact in Fact] for rank in range(3)] == [
        [100 * rank + fact for fact in Fact] for rank in range(3)
    ]
    other.add(2, Fact.PLANS_DONE, 5)
    assert one.get(2, Fact.PLANS_DONE) == 201 + 5
