"""Saved results -> one self-contained HTML page: a side-by-side table, and plots with one colour per result.

Results that share a label and differ in request rate form one line in the plot of normalized latency against request
rate, the figure in which ORCA and PagedAttention compare servers.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtest.metrics import max_concurrent
from loadtest.svg_plot import Axes, Curve, legend, page_style, svg_plot
from loadtest.table import ROWS, Row, format_figure

_MAX_POINTS = 400


def html_report(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The page. Results saved without their long arrays are in the table only. Raises ValueError unless there are as
    many names as results."""
    if len(results) != len(names) or not results:
        raise ValueError("want as many names as results, and at least one")
    titles = _titles(results, names)
    by_rate = [_normalized_against_rate(results, names)] if len(results) > 1 else []
    body = [
        "<h1>Load test</h1>",
        legend((title, i) for i, title in enumerate(titles)),
        _runs_table(results, titles),
        _figures_table(results, titles),
        f'<h2>Plots</h2><div class="plots">{"".join(by_rate + _plots(results, titles))}</div>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Load test</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{page_style()}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _titles(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The names; equal ones are distinguished by their request rate."""
    return [
        f"{name}, {format_figure(result['request_rate'])}/s" if names.count(name) > 1 else name
        for result, name in zip(results, names, strict=True)
    ]


def _runs_table(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    keys = (
        "date",
        "backend",
        "model_id",
        "workload",
        "num_prompts",
        "arrival",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "seed",
        "num_client_processes",
    )
    rows = [(key.replace("_", " "), [format_figure(result.get(key)) for result in results]) for key in keys]
    return f"<h2>Runs</h2>{_html_table(names, rows)}"


def _figures_table(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    rows = []
    for row in ROWS:
        values = [result.get(row.key) for result in results]
        if any(value is not None for value in values):
            rows.append((row.title, [_figure_cell(row, value, values[0]) for value in values]))
    note = "<p>Small: ratio to the first column.</p>" if len(results) > 1 else ""
    return f"<h2>Figures</h2>{_html_table(names, rows)}{note}"


def _figure_cell(row: Row, value: Any, first: Any) -> str:
    text = html.escape(format_figure(value))
    if value is first or not value or not first:
        return text
    ratio = value / first
    verdict = ""
    if row.more_is_better is not None and abs(ratio - 1) > 0.02:
        verdict = "better" if (ratio > 1) == row.more_is_better else "worse"
    return f'{text} <small class="{verdict}">&times;{ratio:.2f}</small>'


def _html_table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = "".join(
        f"<tr><td>{html.escape(title)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for title, cells in rows
    )
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{lines}</table></div>'


def _plots(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    detailed = [(i, result) for i, result in enumerate(results) if "ttfts" in result]
    plots = []
    share = "share of requests"
    for title, values_of in (
        ("Time to first token", _ttfts_ms),
        ("Time per output token", _tpots_ms),
        ("Normalized latency", _normalized_ms),
        ("Latency", _latencies_ms),
    ):
        curves = [_cumulative(names[i], values_of(result), i) for i, result in detailed]
        plots.append(svg_plot(Axes(title, "ms (log)", share, log_x=True), curves))
    gaps = [_cumulative(names[i], _gaps_ms(result), i) for i, result in detailed]
    plots.append(svg_plot(Axes("Gaps between chunks", "ms (log)", "share of gaps", log_x=True), gaps))
    plots.append(_over_time("Output tokens in each second", "tokens/s", names, detailed, _tokens_over_time))
    plots.append(_over_time("Requests in flight", "requests", names, detailed, _in_flight))
    first = [
        Curve(names[i], *_thinned(result["start_times"], _ttfts_ms(result)), i, markers=True, line=False)
        for i, result in detailed
    ]
    plots.append(svg_plot(Axes("Time to first token over the run", "due at, s", "ms"), first))
    return plots


def _normalized_against_rate(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    groups: dict[str, list[tuple[float, float]]] = {}
    for result, name in zip(results, names, strict=True):
        latency = result.get("mean_normalized_latency_ms")
        if latency is not None:
            rate = result["request_rate"]
            achieved = result["request_throughput"] if rate == "inf" else float(rate)
            groups.setdefault(name, []).append((achieved, latency))
    curves = []
    for name, points in groups.items():
        points.sort()
        xs, ys = zip(*points, strict=True)
        curves.append(Curve(name, xs, ys, list(names).index(name), markers=True))
    axes = Axes("Mean normalized latency against request rate", "requests/s (offered; at once: served)", "ms/token")
    return svg_plot(axes, curves)


def _over_time(
    title: str,
    unit: str,
    names: Sequence[str],
    detailed: Sequence[tuple[int, Mapping[str, Any]]],
    values_of: Any,
) -> str:
    curves = []
    for i, result in detailed:
        values = values_of(result)
        curves.append(Curve(names[i], *_thinned(range(len(values)), values), i))
    return svg_plot(Axes(title, "s", unit), curves)


def _cumulative(name: str, values_ms: Sequence[float], color_index: int) -> Curve:
    ordered = sorted(value for value in values_ms if math.isfinite(value))
    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
    return Curve(name, *_thinned(ordered, shares), color_index)


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `_MAX_POINTS` points, evenly chosen, including the first and the last."""
    if len(xs) <= _MAX_POINTS:
        return list(xs), list(ys)
    chosen = np.linspace(0, len(xs) - 1, _MAX_POINTS).astype(int)
    return [xs[i] for i in chosen], [ys[i] for i in chosen]


def _ttfts_ms(result: Mapping[str, Any]) -> list[float]:
    return [
        math.nan if ttft is None or error else ttft * 1e3
        for ttft, error in zip(result["ttfts"], result["errors"], strict=True)
    ]


def _latencies_ms(result: Mapping[str, Any]) -> list[float]:
    return [
        math.nan if error else (end - start) * 1e3
        for start, end, error in zip(result["start_times"], result["end_times"], result["errors"], strict=True)
    ]


def _tpots_ms(result: Mapping[str, Any]) -> list[float]:
    parts = zip(_latencies_ms(result), _ttfts_ms(result), result["output_lens"], strict=True)
    return [(latency - ttft) / (tokens - 1) if tokens > 1 else math.nan for latency, ttft, tokens in parts]


def _normalized_ms(result: Mapping[str, Any]) -> list[float]:
    parts = zip(_latencies_ms(result), result["output_lens"], strict=True)
    return [latency / tokens if tokens else math.nan for latency, tokens in parts]


def _gaps_ms(result: Mapping[str, Any]) -> list[float]:
    return [gap * 1e3 for gaps in result["itls"] for gap in gaps]


def _tokens_over_time(result: Mapping[str, Any]) -> list[float]:
    counts = np.zeros(int(result["duration"]) + 1)
    parts = zip(result["start_times"], result["ttfts"], result["itls"], result["output_lens"], strict=True)
    for start, ttft, gaps, tokens in parts:
        if ttft is not None:
            times = start + ttft + np.concatenate([[0.0], np.cumsum(gaps)])
            seconds = times.astype(int).clip(0, len(counts) - 1)
            np.add.at(counts, seconds, tokens / len(times))
    return [float(count) for count in counts]


def _in_flight(result: Mapping[str, Any]) -> list[float]:
    spans = list(zip(result["start_times"], result["end_times"], strict=True))
    seconds = range(int(result["duration"]) + 1)
    return [float(max_concurrent((max(a, s), min(b, s + 1)) for a, b in spans if a < s + 1 and b > s)) for s in seconds]
