from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from service.core.stats import RankFacts
from service.metrics.rank_metrics import RankMetrics


def shown(*facts: RankFacts) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(RankMetrics(lambda: facts))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_one_rank_has_nothing_to_tell_of_others():
    assert shown() == {"headrace_ranks": 1}


def test_every_fact_of_every_rank_is_shown_under_its_number():
    """Of rank 0, which tells the plans, not what control messages are about."""
    ranks = [RankFacts(rank, *(100.0 * rank + number for number in range(1, 11))) for rank in (0, 1, 2)]
    values = shown(*ranks)
    assert values.pop("headrace_ranks") == 3
    of_rank_0 = [ranks[0].memory_bytes, ranks[0].kv_bytes, ranks[0].num_exchanges, ranks[0].exchange_s]
    others = [value for facts in ranks[1:] for value in facts[1:11]]
    assert sorted(values.values()) == sorted(of_rank_0 + others)
    assert values['headrace_rank_memory_bytes{rank="2"}'] == 201
    assert values['headrace_rank_exchange_seconds_total{rank="0"}'] == 10
    assert values['headrace_rank_control_latency_seconds_total{rank="1"}'] == 104


def test_a_stage_has_the_seconds_of_its_ranks_and_is_there_where_there_are_several():
    ranks = [RankFacts(rank, *(0,) * 7, stage=1 - rank // 2, compute_s=10.0 + rank) for rank in range(4)]
    values = {name: value for name, value in shown(*ranks).items() if "stage" in name}
    assert values == {
        'headrace_stage_compute_seconds_total{stage="0"}': 12.5,
        'headrace_stage_compute_seconds_total{stage="1"}': 10.5,
    }
    assert not any("stage" in name for name in shown(*(RankFacts(rank, *(0,) * 7) for rank in range(2))))
