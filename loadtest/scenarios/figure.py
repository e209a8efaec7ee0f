"""A scenario's result: tables, plots and notes; printed as text, written as JSON and SVG, collected on one page."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.svg_plot import Axes, Curve, legend, page_style, standalone_svg, svg_plot
from loadtest.table import aligned, format_figure


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are numbers or text. A number's unit is in the column's heading."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot with its legend."""

    axes: Axes
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class Figure:
    """name: the scenario's, also used for its files. title: which figure of which paper.

    driven_by: what was measured, such as the offline engine or a server over HTTP. notes: what is modelled, and the
    conclusions.
    """

    name: str
    title: str
    driven_by: str
    tables: Sequence[Table]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def figure_text(figure: Figure) -> str:
    """As printed."""
    parts = [f"## {figure.name}: {figure.title}", f"driven by: {figure.driven_by}"]
    parts += [f"\n{table.title}\n{_table_text(table)}" for table in figure.tables]
    parts += [f"- {note}" for note in figure.notes]
    return "\n".join(parts)


def write_figure(figure: Figure, folder: Path) -> None:
    """Write NAME.txt, NAME.json and NAME-1.svg, ... to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{figure.name}.txt").write_text(figure_text(figure) + "\n", encoding="utf-8")
    tables = [{"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]} for t in figure.tables]
    content = {"name": figure.name, "title": figure.title, "tables": tables, "notes": list(figure.notes)}
    (folder / f"{figure.name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    for number, plot in enumerate(figure.plots, 1):
        svg = standalone_svg(plot.axes, plot.curves)
        (folder / f"{figure.name}-{number}.svg").write_text(svg, encoding="utf-8")


def write_page(figures: Sequence[Figure], caption: str, path: Path) -> None:
    """Write all figures as one self-contained HTML page."""
    body = "".join(_section(figure) for figure in figures)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace: the papers\' figures</title>'
        f"<style>{page_style()}</style></head><body><h1>The papers' figures</h1><p>{html.escape(caption)}</p>{body}"
        "</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _section(figure: Figure) -> str:
    plots = "".join(_plot(plot) for plot in figure.plots)
    tables = "".join(_html_table(table) for table in figure.tables)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in figure.notes)
    head = f"<h2>{html.escape(figure.title)}</h2><p>{html.escape(figure.name)}, {html.escape(figure.driven_by)}</p>"
    return f'{head}<div class="plots">{plots}</div>{tables}<ul>{notes}</ul>'


def _plot(plot: Plot) -> str:
    names = legend((curve.name, curve.color_index) for curve in plot.curves)
    return f"<div>{svg_plot(plot.axes, plot.curves)}{names}</div>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(format_figure(cell))}</td>' for cell in row)}</tr>" for row in table.rows
    )
    title = f"<p>{html.escape(table.title)}</p>"
    return f'{title}<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _table_text(table: Table) -> str:
    lines = [list(table.columns), *([format_figure(cell) for cell in row] for row in table.rows)]
    return aligned(lines)
