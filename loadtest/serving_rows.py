"""The serving figures that are compared on one H200: each row's workload, vLLM's value, the goal and the limit.

vLLM is 0.24.0 with its defaults on one H200. Limits are computed from bytes and operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.model_shapes import LLAMA_8B, LLAMA_8B_W4A16, LLAMA_31_8B, QWEN3_06B

SEED = 0
"""Seed of arrivals, and of lengths unless a row has its own."""

ANSWERS_LIKE_VLLMS: Mapping[str, int] = {"orca": 89, "sharegpt": 6}
"""Seeds of the lengths of bursts. Requests/s compare only if answers are equally long. vLLM's (its tokens/s divided by
its requests/s) had 66.1 tokens (orca) and 303.5 (sharegpt) in the mean; the lengths of its prompts are not known. These
are the lowest seeds whose 1,000 answers come within 0.5 % of that (65.9 and 304.9) while the mean prompt is within 2
tokens of its distribution's (272.5 and 155.8). Until 2026-11-21 loadtest/log/serving.md used seed 0, whose answers have
64.1 and 336.2 tokens and whose prompts have 273.9 and 145.9."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure of a row: its title, its key in the result, vLLM's value, the goal and the limit; None: unknown."""

    title: str
    key: str
    vllm: float | None = None
    goal: float | None = None
    limit: float | None = None
    less_is_better: bool = True

    def verdict(self, value: float) -> str:
        """`met` or `missed`; empty without a goal."""
        if self.goal is None:
            return ""
        return "met" if (value <= self.goal if self.less_is_better else value >= self.goal) else "missed"


@dataclass(frozen=True, slots=True)
class Row:
    """A workload: all requests at once, or Poisson arrivals at `request_rate`. beside_offline: also run it through the
    engine without HTTP. seed: of the lengths. prompts_of: the earlier row whose prompts are sent again, now in the
    prefix cache; empty: the row has its own prompts."""

    name: str
    workload: str
    num_requests: int
    targets: tuple[Target, ...]
    request_rate: float | None = None
    beside_offline: bool = False
    seed: int = SEED
    prompts_of: str = ""


def _decode(batch: int, vllm: float | None, goal: float | None, limit: float | None = None, *more: Target) -> Row:
    tpot = Target("TPOT, ms", "median_tpot_ms", vllm, goal, limit)
    return Row(f"decode-{batch}", f"decode-{batch}", batch, (tpot, *more))


def _itl(vllm: float | None = None, goal: float | None = None) -> Target:
    """Time between two events of a stream, as the client sees it."""
    return Target("ITL p50, ms", "median_itl_ms", vllm, goal)


def _at_once(workload: str, num: int, *targets: Target, beside_offline: bool = False) -> Row:
    seed = ANSWERS_LIKE_VLLMS.get(workload, SEED)
    return Row(f"{workload}, {num} at once", workload, num, targets, beside_offline=beside_offline, seed=seed)


def _requests_per_s(vllm: float, goal: float, limit: float | None = None) -> Target:
    return Target("requests/s", "request_throughput", vllm, goal, limit, less_is_better=False)


def _tokens_per_s(vllm: float) -> Target:
    return Target("output tokens/s", "output_throughput", vllm, less_is_better=False)


_ORCA_AT_70 = (
    Target("TTFT p50, ms", "median_ttft_ms", 19),
    Target("TTFT p99, ms", "p99_ttft_ms", 53),
    Target("TPOT p50, ms", "median_tpot_ms", 5.6),
    Target("TPOT p99, ms", "p99_tpot_ms", 10.9),
    _itl(),
    Target("normalized latency, mean ms", "mean_normalized_latency_ms", 7.3, 6.0),
)
"""Whether vLLM had these prompts in its prefix cache, which is on by default, is not known. Its TPOT is lower here than
at 40/s, which would not be possible if it computed them. So there is one row with new prompts, and one that sends them
again."""

ROWS: Mapping[str, tuple[Row, ...]] = {
    LLAMA_8B: (
        _decode(1, 4.94, 4.3, 3.55),
        _decode(8, 5.06, 4.4, 3.6),
        _decode(64, 6.21, 5.4, 4.6, _itl(6.4, 6.2)),
        _decode(256, 12.4, 10.8, 9.5, _itl(14.7, 21.6)),
        _at_once(
            "prefill", 300, Target("tokens/s", "total_token_throughput", 42_400, 43_000, 46_000, less_is_better=False)
        ),
        _at_once("orca", 1000, _requests_per_s(110, 115, 126), beside_offline=True),
        _at_once("sharegpt", 1000, _requests_per_s(54.7, 65, 75), _tokens_per_s(16_600)),
        Row(
            "orca at 40/s",
            "orca",
            1000,
            (
                Target("TTFT p50, ms", "median_ttft_ms", 23, 15),
                Target("TTFT p99, ms", "p99_ttft_ms", 46),
                Target("TPOT p50, ms", "median_tpot_ms", 6.3),
                Target("normalized latency, mean ms", "mean_normalized_latency_ms", 7.2, 5.5),
            ),
            40.0,
        ),
        Row("orca at 70/s", "orca", 1000, _ORCA_AT_70, 70.0),
        Row("orca at 70/s again", "orca", 1000, _ORCA_AT_70, 70.0, prompts_of="orca at 70/s"),
    ),
    LLAMA_31_8B: (
        _at_once(
            "long-prompts",
            100,
            Target("prompt tokens/s", "input_throughput", 28_600, 30_500, less_is_better=False),
        ),
    ),
    LLAMA_8B_W4A16: (
        _decode(1, None, 2.2, 1.1),
        _decode(64, None, None),
        _decode(256, None, None),
    ),
    QWEN3_06B: (
        _decode(1, 1.62, 1.1),
        _decode(64, 2.54, 1.8, None, _itl()),
        Row(
            "decode-256",
            "decode-256",
            256,
            (
                Target("TPOT, ms", "median_tpot_ms", 8.6, 5.0),
                _itl(),
                _tokens_per_s(28_600),
                Target("host's CPU, us a token", "host_us_per_token", None, 5.0),
            ),
        ),
        _at_once("orca", 1000, _requests_per_s(280, 400), _tokens_per_s(18_500)),
        _at_once("sharegpt", 1000, _requests_per_s(85, 150), _tokens_per_s(25_800)),
    ),
}

START = (
    Target("process to ready, s", "start_s", 79.5, 15),
    Target("TTFT of the first request, ms", "first_ttft_ms", 18.7, 15),
)
FIRST_REQUEST = Row("the first request", "fixed-128x8", 1, ())
"""Sent as soon as the service is ready, before all rows."""
FIRST_ASKED = Row("the first deterministic request", "fixed-128x8", 1, ())

OF_OFFLINE = Target("of the offline engine", "of_offline", goal=0.95, less_is_better=False)
