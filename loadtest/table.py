"""Text tables of results: one result, or several side by side."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One figure: its label, its key in the result, whether more is better (None: neither)."""

    title: str
    key: str
    more_is_better: bool | None


ROWS: tuple[Row, ...] = (
    Row("requests completed", "completed", None),
    Row("requests failed", "failed", False),
    Row("duration, s", "duration", None),
    Row("requests/s", "request_throughput", True),
    Row("goodput, requests/s", "request_goodput", True),
    Row("output tokens/s", "output_throughput", True),
    Row("all tokens/s", "total_token_throughput", True),
    Row("peak output tokens in a second", "max_output_tokens_per_s", True),
    Row("most requests in flight", "max_concurrent_requests", None),
    Row("TTFT, ms: median", "median_ttft_ms", False),
    Row("TTFT, ms: p99", "p99_ttft_ms", False),
    Row("TPOT, ms: median", "median_tpot_ms", False),
    Row("TPOT, ms: p99", "p99_tpot_ms", False),
    Row("ITL (between chunks), ms: median", "median_itl_ms", False),
    Row("ITL (between chunks), ms: p99", "p99_itl_ms", False),
    Row("latency, ms: median", "median_e2el_ms", False),
    Row("latency, ms: p99", "p99_e2el_ms", False),
    Row("normalized latency, ms/token: mean", "mean_normalized_latency_ms", False),
    Row("normalized latency, ms/token: median", "median_normalized_latency_ms", False),
    Row("normalized latency, ms/token: p99", "p99_normalized_latency_ms", False),
    Row("prompt tokens from a prefix cache", "total_cached_tokens", None),
    Row("tokens a chunk", "mean_tokens_per_chunk", None),
    Row("client: sent late, ms: p99", "p99_schedule_lag_ms", False),
)


def text_table(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """One line per figure that at least one result has, one column per result."""
    lines = [["", *names]]
    for row in ROWS:
        values = [result.get(row.key) for result in results]
        if any(value is not None for value in values):
            lines.append([row.title, *(format_figure(value) for value in values)])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Lines with the same number of cells as text; a column is as wide as its longest cell. left: indexes of
    left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def format_figure(value: Any) -> str:
    """Three to four significant digits, with thousands separators; a dash for None."""
    if value is None:
        return "-"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value else "0"
