"""All requests of a workload at once: requests and tokens per second of the time from start to last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.model_limits import ModelCosts
from loadtest.bench.offline_run import greedy_requests, run_at_once
from loadtest.bench.report import percent, print_table
from service.engine.engine import Engine

_NUM_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    workload: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    limit_s: float

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens together."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def measure_throughput(
    engine: Engine,
    costs: ModelCosts,
    limits: DeviceLimits,
    workload: str,
    lengths: Sequence[tuple[int, int]],
    max_num_seqs: int,
    vocab_size: int,
) -> ThroughputRow:
    """lengths: (prompt, output) tokens per request. A few of them are run first without counting."""
    run_at_once(engine, greedy_requests(lengths[:_NUM_WARM_UP], vocab_size, 0))
    run = run_at_once(engine, greedy_requests(lengths, vocab_size, 1))
    return ThroughputRow(
        workload=workload,
        num_requests=len(lengths),
        prompt_tokens=sum(prompt for prompt, _ in lengths),
        output_tokens=sum(output for _, output in lengths),
        seconds=run.duration_s,
        limit_s=costs.requests_s(limits, lengths, max_num_seqs),
    )


def print_throughput(row: ThroughputRow) -> None:
    header = ["workload", "requests", "seconds", "limit s", "of limit", "req/s", "tok/s", "output tok/s"]
    cells = [
        row.workload,
        str(row.num_requests),
        f"{row.seconds:.2f}",
        f"{row.limit_s:.2f}",
        percent(row.limit_s, row.seconds),
        f"{row.requests_per_s:.2f}",
        f"{row.tokens_per_s:.0f}",
        f"{row.output_tokens_per_s:.0f}",
    ]
    print_table(header, [cells])


def throughput_json(row: ThroughputRow) -> dict[str, object]:
    return {
        **asdict(row),
        "requests_per_s": row.requests_per_s,
        "tokens_per_s": row.tokens_per_s,
        "output_tokens_per_s": row.output_tokens_per_s,
        "share_of_limit": row.limit_s / row.seconds,
    }
