"""`python -m loadtest.dashboard_picture`: a Grafana dashboard's panels as an SVG or PNG, with data from Prometheus.

Makes pictures for documentation on a machine without Grafana. Panels, order, queries and legends come from the
dashboard's JSON file; `svg_plot` draws.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from loadtest.png_picture import write_png
from loadtest.svg_plot import Axes, Curve, picture_style, svg_plot

DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "headrace.json"
NUM_STEPS = 60
"""Query steps over the window: a curve has one point more."""

_WIDTH, _COLUMNS, _MARGIN = 1200, 24, 6
_STAT_HEIGHT, _HEADING_HEIGHT = 92, 34
_PLOT_WIDTH, _PLOT_HEIGHT = 560, 320
_LEGEND_ROW = 18
_CHARACTER = 7.2
"""Approximate width of a legend's character, in pixels."""

_STYLE = """
.paper { fill: var(--paper) } .panel { fill: none; stroke: var(--grid) }
svg text.heading { fill: var(--ink); font-size: 16px; font-weight: 600 }
svg text.value { fill: var(--ink); font-size: 30px; text-anchor: middle } svg text.name { text-anchor: middle }
.cell { fill: var(--series-0) }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a query's answer: its legend, times in seconds from the window's start, values."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]


Ask = Callable[[str, str], list[Series]]
"""(expression, legend format) -> its series."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time window, in seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        return max(1.0, (self.end_s - self.start_s) / NUM_STEPS)


def ask_prometheus(url: str, window: Window, rate_interval: str) -> Ask:
    """Runs range queries over the window. The dashboard's variables are replaced as Grafana would do it."""

    def ask(expression: str, legend: str) -> list[Series]:
        query = expression.replace("$__rate_interval", rate_interval).replace("$instance", ".*")
        facts = {"query": query, "start": window.start_s, "end": window.end_s, "step": window.step_s}
        with urlopen(f"{url}/api/v1/query_range?{urlencode(facts)}", timeout=30) as response:
            answer = json.load(response)
        return [_series(found, legend, window.start_s) for found in answer["data"]["result"]]

    return ask


def draw(dashboard: dict[str, Any], sections: Sequence[str], ask: Ask) -> str:
    """The panels below the headings `sections` (empty: all), as one SVG file's text."""
    parts, y = [], _MARGIN
    for heading, panels in _sections(dashboard):
        if sections and heading not in sections:
            continue
        y += _HEADING_HEIGHT
        parts.append(f'<text class="heading" x="{_MARGIN}" y="{y - 10}">{html.escape(heading)}</text>')
        for row in _rows(panels):
            drawn = [_panel(panel, ask) for panel in row]
            height = max(height for _, height in drawn)
            parts += [_placed(inside, panel, y, height) for (inside, _), panel in zip(drawn, row, strict=True)]
            y += height + _MARGIN
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif"'
    head = f'{root} role="img" aria-label="{html.escape(dashboard["title"])}"><style>{picture_style()}{_STYLE}</style>'
    return f'{head}<rect class="paper" width="{_WIDTH}" height="{y}"/>{"".join(parts)}</svg>\n'


def _series(found: dict[str, Any], legend: str, start_s: float) -> Series:
    points = [(float(moment) - start_s, float(value)) for moment, value in found["values"]]
    name = re.sub(r"\{\{(\w+)}}", lambda label: str(found["metric"].get(label[1], "")), legend)
    return Series(name, tuple(x for x, _ in points), tuple(y for _, y in points))


def _sections(dashboard: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    panels = sorted(dashboard["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    starts = [i for i, panel in enumerate(panels) if panel["type"] == "row"]
    for start, end in pairwise([*starts, len(panels)]):
        yield panels[start]["title"], panels[start + 1 : end]


def _rows(panels: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for y in sorted({panel["gridPos"]["y"] for panel in panels}):
        yield [panel for panel in panels if panel["gridPos"]["y"] == y]


def _panel(panel: dict[str, Any], ask: Ask) -> tuple[str, int]:
    """The panel's SVG, as wide as its place in the dashboard, and its height in pixels."""
    width = _width(panel)
    series = [s for target in panel["targets"] for s in ask(target["expr"], target["legendFormat"])]
    factor, unit = _unit(panel, series)
    if panel["type"] == "stat":
        return _stat(panel["title"], series, factor, unit, width), _STAT_HEIGHT
    if panel["type"] == "heatmap":
        inside, height = _heatmap(panel["title"], series), _PLOT_HEIGHT
    else:
        scaled = [Curve(s.name, s.xs, [y * factor for y in s.ys], i) for i, s in enumerate(series)]
        legend, height = _legend([s.name for s in series])
        inside = svg_plot(Axes(panel["title"], "s", unit), scaled) + legend
    scale = width / _PLOT_WIDTH
    return f'<g transform="scale({scale:.4f})">{_sized(inside)}</g>', math.ceil(height * scale)


def _placed(inside: str, panel: dict[str, Any], y: float, height: float) -> str:
    x = panel["gridPos"]["x"] * (_WIDTH / _COLUMNS)
    frame = f'<rect class="panel" x="{_MARGIN / 2}" width="{_width(panel) - _MARGIN}" height="{height}" rx="4"/>'
    return f'<g transform="translate({x:.1f} {y:.1f})">{frame}{inside}</g>'


def _width(panel: dict[str, Any]) -> float:
    return float(panel["gridPos"]["w"] * _WIDTH / _COLUMNS)


def _sized(plot: str) -> str:
    """Gives the plot a width and height: inside another SVG it needs them."""
    return plot.replace("<svg ", f'<svg width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" ', 1)


def _unit(panel: dict[str, Any], series: Sequence[Series]) -> tuple[float, str]:
    """The factor by which the panel's values are multiplied, and the unit after that."""
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    largest = max((y for s in series for y in s.ys if math.isfinite(y)), default=0.0)
    if unit == "s" and largest < 1:
        return 1e3, "ms"
    if unit == "Bps":
        return 1 / 2**20, "MiB/s"
    if unit == "bytes":
        return 1 / 2**20, "MiB"
    return {"s": (1.0, "s"), "percentunit": (100.0, "%"), "reqps": (1.0, "a second")}.get(unit, (1.0, ""))


def _stat(title: str, series: Sequence[Series], factor: float, unit: str, width: float) -> str:
    """Shows the mean over the window. Grafana shows the last value, but after a run has ended that says little."""
    values = [y for s in series for y in s.ys if math.isfinite(y)]
    shown = f"{factor * sum(values) / len(values):.3g} {unit}".strip() if values else "no data"
    return (
        f'<text class="name" x="{width / 2:.0f}" y="22">{html.escape(title)}</text>'
        f'<text class="value" x="{width / 2:.0f}" y="58">{shown}</text>'
        f'<text class="name" x="{width / 2:.0f}" y="80">mean of the window</text>'
    )


def _heatmap(title: str, series: Sequence[Series]) -> str:
    """Observations per bucket and interval, darker for more. The series' buckets are cumulative, as Prometheus has
    them."""
    buckets = sorted((float(s.name), s) for s in series)
    counts: dict[tuple[int, float], float] = {}
    below: dict[float, float] = {}
    for row, (_, of_bucket) in enumerate(buckets):
        now = {x: y for x, y in zip(of_bucket.xs, of_bucket.ys, strict=True) if math.isfinite(y)}
        counts |= {(row, x): y - below.get(x, 0.0) for x, y in now.items()}
        below = now
    used = [row for (row, _), count in counts.items() if count > 0]
    name = f'<text class="title" x="64" y="18">{html.escape(title)}</text>'
    head = f'<svg viewBox="0 0 {_PLOT_WIDTH} {_PLOT_HEIGHT}">{name}'
    if not used:
        return f'{head}<text x="64" y="{_PLOT_HEIGHT // 2}">no data</text></svg>'
    first, last = min(used), max(used)
    xs = sorted({x for _, x in counts})
    wide, high = 480 / len(xs), 240 / (last - first + 1)
    most = max(counts.values())
    cells = [
        f'<rect class="cell" x="{64 + xs.index(x) * wide:.1f}" y="{274 - (row - first + 1) * high:.1f}"'
        f' width="{wide:.2f}" height="{high:.1f}" opacity="{count / most:.3f}"/>'
        for (row, x), count in counts.items()
        if count > 0
    ]
    names = [
        f'<text class="y" x="58" y="{274 - (row - first + 0.5) * high + 4:.1f}">{buckets[row][1].name}</text>'
        for row in range(first, last + 1)
    ]
    return f"{head}{''.join(cells)}{''.join(names)}</svg>"


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """The legend's SVG, to go below a plot, and the y at which it ends."""
    parts, x, y = [], 64.0, _PLOT_HEIGHT + 8
    for i, name in enumerate(names):
        width = 26 + _CHARACTER * len(name)
        if x + width > _PLOT_WIDTH and x > 64:
            x, y = 64.0, y + _LEGEND_ROW
        color = f"var(--series-{i % 8})"
        parts.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="{y}">{html.escape(name)}</text>')
        x += width
    return "".join(parts), y + _LEGEND_ROW


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.dashboard_picture", description=__doc__)
    parser.add_argument("url", help="URL of a Prometheus that has scraped the service")
    parser.add_argument("--start", type=float, required=True, help="start of the window, seconds since the epoch")
    parser.add_argument("--end", type=float, required=True)
    parser.add_argument("--rate-interval", default="20s", help="$__rate_interval; Grafana's default is four scrapes")
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD)
    parser.add_argument("--sections", nargs="*", default=[], help="headings of the dashboard; default: all")
    parser.add_argument("--out", type=Path, required=True, help="picture to write: x.svg or x.png")
    options = parser.parse_args(arguments)
    ask = ask_prometheus(options.url, Window(options.start, options.end), options.rate_interval)
    picture = draw(json.loads(options.dashboard.read_text()), options.sections, ask)
    if options.out.suffix == ".png":
        write_png(picture, options.out)
    else:
        options.out.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
