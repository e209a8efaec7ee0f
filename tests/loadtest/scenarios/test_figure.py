import json
import xml.dom.minidom
from pathlib import Path

from loadtest.scenarios.figure import Figure, Plot, Table, figure_text, write_figure, write_page
from loadtest.svg_plot import Axes, Curve

FIGURE = Figure(
    "some_fig1",
    "Some paper, figure 1: <rates>",
    "the offline engine",
    [Table("Rates", ["system", "req/s"], [["ours", 12.5], ["theirs", None]])],
    [Plot(Axes("Rates", "x", "y"), [Curve("ours", [1, 2], [3, 4], 0, markers=True)])],
    ["a note"],
)


def test_text_is_aligned() -> None:
    lines = figure_text(FIGURE).splitlines()
    assert lines[0] == "## some_fig1: Some paper, figure 1: <rates>"
    assert "system  req/s" in lines
    assert "ours     12.5" in lines
    assert "theirs      -" in lines
    assert "- a note" in lines


def test_files(tmp_path: Path) -> None:
    write_figure(FIGURE, tmp_path)
    content = json.loads((tmp_path / "some_fig1.json").read_text())
    assert content["tables"][0]["rows"] == [["ours", 12.5], ["theirs", None]]
    xml.dom.minidom.parse(str(tmp_path / "some_fig1-1.svg"))
    assert (tmp_path / "some_fig1.txt").read_text() == figure_text(FIGURE) + "\n"


def test_the_page_holds_all_and_escapes(tmp_path: Path) -> None:
    write_page([FIGURE, FIGURE], "a <machine>", tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == 2
    assert "&lt;machine&gt;" in page
    assert "<rates>" not in page
