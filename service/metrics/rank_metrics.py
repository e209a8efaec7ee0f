"""What other ranks tell of themselves, read at the moment of the scrape. Where one rank computes there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.core.stats import RankFacts

_GAUGES: Sequence[tuple[str, str, Callable[[RankFacts], float]]] = (
    (
        "headrace_rank_memory_bytes",
        "What a rank's process has taken of its GPU.",
        lambda facts: facts.memory_bytes,
    ),
    ("headrace_rank_kv_bytes", "A rank's part of the KV cache.", lambda facts: facts.kv_bytes),
    (
        "headrace_rank_lora_adapters",
        "LoRA adapters of which a rank holds its part in the host's memory.",
        lambda facts: facts.num_adapters,
    ),
    (
        "headrace_rank_control_latency_seconds_max",
        "The longest time from writing a control message to taking it, likewise.",
        lambda facts: facts.max_latency_s,
    ),
)
_COUNTERS: Sequence[tuple[str, str, Callable[[RankFacts], float]]] = (
    ("headrace_rank_control_messages", "Control messages that a rank has taken.", lambda facts: facts.num_messages),
    (
        "headrace_rank_control_latency_seconds",
        "Seconds from writing control messages to taking them, without those in which their rank was busy.",
        lambda facts: facts.latency_s,
    ),
    ("headrace_rank_busy_seconds", "Seconds in which a rank's host carried out plans.", lambda facts: facts.busy_s),
    ("headrace_rank_waiting_seconds", "Seconds in which a rank waited for a plan.", lambda facts: facts.waiting_s),
)


class RankMetrics:
    """A Prometheus collector. read_facts: of the other ranks; called from whatever thread scrapes."""

    def __init__(self, read_facts: Callable[[], Sequence[RankFacts]]) -> None:
        self._read_facts = read_facts

    def collect(self) -> Iterator[Metric]:
        ranks = self._read_facts()
        yield GaugeMetricFamily("headrace_ranks", "Processes that compute together.", value=1 + len(ranks))
        if not ranks:
            return
        for name, meaning, value_of in _GAUGES:
            gauge = GaugeMetricFamily(name, meaning, labels=["rank"])
            for facts in ranks:
                gauge.add_metric([str(facts.rank)], value_of(facts))
            yield gauge
        for name, meaning, value_of in _COUNTERS:
            counter = CounterMetricFamily(name, meaning, labels=["rank"])
            for facts in ranks:
                counter.add_metric([str(facts.rank)], value_of(facts))
            yield counter
