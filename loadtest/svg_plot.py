"""Line plots as SVG text: no dependency, and small enough to embed in an HTML page."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_NUM_TICKS = 5
_LEGEND_ROW = 18
_LEGEND_COLUMNS = 2

_COLORS = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6775; --paper: #fbfbfa; --grid: #e2e5e8;
  --good: #1b7f4b; --bad: #b3372f;
  --series-0: #2a6fbb; --series-1: #d9772b; --series-2: #2e9e78; --series-3: #a8509f;
  --series-4: #c2a020; --series-5: #5f6fd0; --series-6: #c94c5b; --series-7: #6b7784; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa5b1; --paper: #14181d;
  --grid: #2c333b; --good: #5cc98f; --bad: #ef8279;
  --series-0: #6aa8ea; --series-1: #f0a15f; --series-2: #5cc9a3; --series-3: #cf86c8;
  --series-4: #e0c35a; --series-5: #9aa5f0; --series-6: #ef8794; --series-7: #a0abb6; } }
"""

_FULL_WIDTH = """
svg { width: 100%; height: auto }"""

_PLOT = """
svg text { fill: var(--soft); font-size: 12px }
svg text.title { fill: var(--ink); font-size: 14px } svg text.x { text-anchor: middle }
svg text.y { text-anchor: end } svg .grid { stroke: var(--grid); fill: none }
svg .line { fill: none; stroke-width: 1.8 }
"""

_PAGE = """
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap }
th { white-space: normal; vertical-align: bottom }
th:first-child, td:first-child { text-align: left } td small { color: var(--soft) }
td small.better { color: var(--good) } td small.worse { color: var(--bad) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem }
.plots > div { max-width: 38rem }
.legend span { margin-right: 1.2rem; white-space: nowrap }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem }
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points joined by a line. color_index: one of the page's series colours `--series-0`..`--series-7`.

    Points that are not finite are left out. markers: draw each point.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    color_index: int
    markers: bool = False
    line: bool = True


@dataclass(frozen=True, slots=True)
class Axes:
    """Title and axis labels. log_x: logarithmic x axis; points with x <= 0 are left out."""

    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    y_from_zero: bool = True


def svg_plot(axes: Axes, curves: Sequence[Curve]) -> str:
    """One `<svg>`. Its colours are CSS variables that the page defines: `--ink`, `--grid`, `--series-N`."""
    points = [[(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if _shown(x, y, axes)] for curve in curves]
    everything = [point for of_curve in points for point in of_curve]
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(axes.title)}">'
    title = f'<text class="title" x="{_LEFT}" y="18">{html.escape(axes.title)}</text>'
    if not everything:
        return f'{head}{title}<text x="{_LEFT}" y="{_HEIGHT // 2}">no data</text></svg>'
    x_scale = _x_scale([x for x, _ in everything], axes.log_x)
    y_scale = _y_scale([y for _, y in everything], axes.y_from_zero)
    drawn = [_curve(curve, of_curve, x_scale, y_scale) for curve, of_curve in zip(curves, points, strict=True)]
    return "".join((head, title, _grid(axes, x_scale, y_scale), *drawn, "</svg>"))


def page_style() -> str:
    """CSS of a page with plots, tables and legends, for light and dark mode."""
    return _COLORS + _FULL_WIDTH + _PLOT + _PAGE


def picture_style() -> str:
    """CSS of a standalone SVG with plots, for light and dark mode."""
    return _COLORS + _PLOT


def legend(names: Iterable[tuple[str, int]]) -> str:
    """An HTML legend of (name, colour index) pairs, for a page with `page_style`."""
    entries = (
        f'<span><i style="background:var(--series-{color_index % 8})"></i>{html.escape(name)}</span>'
        for name, color_index in names
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def standalone_svg(axes: Axes, curves: Sequence[Curve]) -> str:
    """The plot as a complete SVG file, with the legend below it."""
    rows = -(-len(curves) // _LEGEND_COLUMNS)
    plot = svg_plot(axes, curves)
    height = _HEIGHT + rows * _LEGEND_ROW + 6
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    names = "".join(_legend_entry(i, curve) for i, curve in enumerate(curves))
    inside = plot.removeprefix(f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}"').removesuffix("</svg>")
    before, _, rest = inside.partition(">")
    return f"{head}{before}><style>{picture_style()}</style>{rest}{names}</svg>\n"


def _legend_entry(index: int, curve: Curve) -> str:
    row, column = divmod(index, _LEGEND_COLUMNS)
    x = _LEFT + column * (_WIDTH - _LEFT) / _LEGEND_COLUMNS
    y = _HEIGHT + 10 + row * _LEGEND_ROW
    color = f"var(--series-{curve.color_index % 8})"
    return (
        f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="10" height="10" fill="{color}"/>'
        f'<text x="{x + 16:.0f}" y="{y + 1:.0f}">{html.escape(curve.name)}</text>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    pixel_low: float
    pixel_high: float
    log: bool
    ticks: tuple[float, ...]

    def pixel(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.pixel_low + (at - low) / (high - low) * (self.pixel_high - self.pixel_low)


def _shown(x: float, y: float, axes: Axes) -> bool:
    return math.isfinite(x) and math.isfinite(y) and not (axes.log_x and x <= 0)


def _x_scale(values: Sequence[float], log: bool) -> _Scale:
    low, high = min(values), max(values)
    if log:
        low, high = (low, high) if high > low else (low / 2, high * 2)
        return _Scale(low, high, _LEFT, _WIDTH - _RIGHT, True, _log_ticks(low, high))
    low, high, ticks = _linear_ticks(low, high)
    return _Scale(low, high, _LEFT, _WIDTH - _RIGHT, False, ticks)


def _y_scale(values: Sequence[float], from_zero: bool) -> _Scale:
    low, high, ticks = _linear_ticks(min(0.0, *values) if from_zero else min(values), max(values))
    return _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, False, ticks)


def _linear_ticks(low: float, high: float) -> tuple[float, float, tuple[float, ...]]:
    """Round limits that include low..high, and the round ticks between them."""
    if high <= low:
        low, high = (0.0, high) if high > 0 else (low - 1.0, low + 1.0)
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return first * step, last * step, tuple(step * i for i in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten; finer round numbers if those would be fewer than three."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = tuple(f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high)
        if len(ticks) >= 3:
            return ticks
    return tuple(tick for tick in _linear_ticks(low, high)[2] if low <= tick <= high)


def _grid(axes: Axes, x_scale: _Scale, y_scale: _Scale) -> str:
    parts = []
    for tick in x_scale.ticks:
        x = x_scale.pixel(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}">{tick:g}</text>')
    for tick in y_scale.ticks:
        y = y_scale.pixel(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{tick:g}</text>')
    center, middle = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="x" x="{center}" y="{_HEIGHT - 8}">{html.escape(axes.x_label)}</text>'
        f'<text class="x" transform="translate(14 {middle}) rotate(-90)">{html.escape(axes.y_label)}</text>'
    )
    return "".join(parts)


def _curve(curve: Curve, points: Sequence[tuple[float, float]], x_scale: _Scale, y_scale: _Scale) -> str:
    pixels = [(x_scale.pixel(x), y_scale.pixel(y)) for x, y in points]
    color = f"var(--series-{curve.color_index % 8})"
    title = f"<title>{html.escape(curve.name)}</title>"
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
    line = f'<path class="line" stroke="{color}" d="M{path}">{title}</path>' if curve.line and pixels else ""
    if not curve.markers:
        return line
    return line + "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}">{title}</circle>' for x, y in pixels)
