"""Line plots as SVG text: no dependency, and small enough to stand inside an HTML page."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Points joined by a line; `color_index` picks one of the page's series colours
    `--series-0`..`--series-7`.

    Points that are not finite are left out. `markers` draws each point.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    color_index: int
    markers: bool = False
    line: bool = True


@dataclass(frozen=True, slots=True)
class Axes:
    """Words of a plot. `log_x` wants x above 0: other points are left out."""

    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    y_from_zero: bool = True


def svg_plot(axes: Axes, curves: Sequence[Curve]) -> str:
    """One `<svg>`; its colours are CSS variables of the page: `--ink`, `--grid`, `--series-N`."""
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
    """Round limits around low..high and the round steps between them."""
    if high <= low:
        low, high = (0.0, high) if high > 0 else (low - 1.0, low + 1.0)
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return first * step, last * step, tuple(step * i for i in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten, or finer round numbers where those would be fewer than three."""
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
