"""Metrics of the ranks, read at scrape time. Empty with a single rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.core.stats import RankFacts

Table = Sequence[tuple[str, str, Callable[[RankFacts], float]]]

_GAUGES: Table = (
    (
        "headrace_rank_memory_bytes",
        "GPU memory held by a rank's process.",
        lambda facts: facts.memory_bytes,
    ),
    ("headrace_rank_kv_bytes", "A rank's part of the KV cache.", lambda facts: facts.kv_bytes),
)
_COUNTERS: Table = (
    (
        "headrace_rank_exchanges",
        "Timed exchanges of tensors between ranks: on a CPU all, on a GPU one in 8 outside CUDA graphs.",
        lambda facts: facts.num_exchanges,
    ),
    (
        "headrace_rank_exchange_seconds",
        "Seconds of these exchanges (all-reduces, gathered logits), from a rank's own part being ready to the result.",
        lambda facts: facts.exchange_s,
    ),
)
_GAUGES_OF_OTHERS: Table = (
    (
        "headrace_rank_lora_adapters",
        "LoRA adapters whose part a rank holds in host memory.",
        lambda facts: facts.num_adapters,
    ),
    (
        "headrace_rank_control_latency_seconds_max",
        "Longest time from writing a control message to reading it, without time in which the rank was busy.",
        lambda facts: facts.max_latency_s,
    ),
)
_COUNTERS_OF_OTHERS: Table = (
    ("headrace_rank_control_messages", "Control messages that a rank has read.", lambda facts: facts.num_messages),
    (
        "headrace_rank_control_latency_seconds",
        "Seconds from writing control messages to reading them, without time in which the rank was busy.",
        lambda facts: facts.latency_s,
    ),
    ("headrace_rank_busy_seconds", "Seconds in which a rank's host executed plans.", lambda facts: facts.busy_s),
    ("headrace_rank_waiting_seconds", "Seconds in which a rank waited for a plan.", lambda facts: facts.waiting_s),
)
"""Rank 0 sends the plans, and waits for none."""

_STAGE_SECONDS = (
    "headrace_stage_compute_seconds",
    "Seconds in which a stage's device computed its layers; 1 - rate() is its idle share.",
)


class RankMetrics:
    """A Prometheus collector. read_facts: of all ranks, rank 0 first, or empty; called from the thread that scrapes,
    whichever it is."""

    def __init__(self, read_facts: Callable[[], Sequence[RankFacts]]) -> None:
        self._read_facts = read_facts

    def collect(self) -> Iterator[Metric]:
        ranks = self._read_facts()
        yield GaugeMetricFamily("headrace_ranks", "Ranks: processes that compute together.", value=max(1, len(ranks)))
        for gauges, counters, told in (
            (_GAUGES, _COUNTERS, ranks),
            (_GAUGES_OF_OTHERS, _COUNTERS_OF_OTHERS, ranks[1:]),
        ):
            if told:
                yield from (_labelled(GaugeMetricFamily(*each[:2], labels=["rank"]), each[2], told) for each in gauges)
                yield from (
                    _labelled(CounterMetricFamily(*each[:2], labels=["rank"]), each[2], told) for each in counters
                )
        yield from _of_stages(ranks)


def _of_stages(ranks: Sequence[RankFacts]) -> Iterator[Metric]:
    """The ranks of a stage compute equally long, except for what they wait for each other: the mean is the stage's."""
    stages = sorted({facts.stage for facts in ranks if facts.stage is not None})
    if stages:
        family = CounterMetricFamily(*_STAGE_SECONDS, labels=["stage"])
        for stage in stages:
            seconds = [facts.compute_s for facts in ranks if facts.stage == stage]
            family.add_metric([str(stage)], sum(seconds) / len(seconds))
        yield family


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, value_of: Callable[[RankFacts], float], ranks: Sequence[RankFacts]
) -> Metric:
    for facts in ranks:
        family.add_metric([str(facts.rank)], value_of(facts))
    return family
