from __future__ import annotations

import json
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from loadtest.dashboard_picture import DASHBOARD, Series, Window, ask_prometheus, draw, main

OURS = json.loads(DASHBOARD.read_text(encoding="utf-8"))
DOCS = DASHBOARD.parents[3] / "docs"
PANELS = [panel for panel in OURS["panels"] if panel["type"] != "row"]


def texts_of(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]


def three_points(_: str, legend: str) -> list[Series]:
    name = "16.0" if legend == "{{le}}" else legend
    return [Series(name, (0.0, 5.0, 10.0), (1.0, 2.0, 3.0))]


def test_every_panel_of_the_dashboard_is_drawn_with_its_title_and_its_legends():
    texts = texts_of(draw(OURS, [], three_points))
    for panel in PANELS:
        assert panel["title"] in texts
    legends = {t["legendFormat"] for p in PANELS if p["type"] == "timeseries" for t in p["targets"]}
    assert legends <= {*texts}
    assert "no data" not in texts


PICTURES = {"headrace": "dashboard", "headrace-engine": "dashboard-engine", "headrace-capacity": "dashboard-capacity"}


@pytest.mark.parametrize("dashboard", PICTURES)
def test_the_picture_in_the_docs_shows_the_panels_that_there_are_now(dashboard: str):
    shown = texts_of((DOCS / "images" / f"{PICTURES[dashboard]}.svg").read_text(encoding="utf-8"))
    now = json.loads((DASHBOARD.parent / f"{dashboard}.json").read_text(encoding="utf-8"))
    titles = {panel["title"] for panel in now["panels"]}
    assert titles <= {*shown}
    assert {file.stem for file in DASHBOARD.parent.glob("*.json")} == PICTURES.keys()


def test_only_the_sections_that_are_named_are_drawn():
    texts = texts_of(draw(OURS, ["Load"], three_points))
    assert "Requests ended" in texts
    assert "Time to first token" not in texts


def test_a_panel_without_data_says_so():
    texts = texts_of(draw(OURS, [], lambda expression, legend: []))
    assert texts.count("no data") == len(PANELS)


def test_values_that_are_not_finite_leave_the_picture_sound():
    picture = draw(OURS, [], lambda *_: [Series("1.0", (0.0, 1.0), (float("nan"), float("inf")))])
    ElementTree.fromstring(picture)
    assert "nan" not in picture


def test_a_heatmap_shows_each_buckets_own_count():
    cumulative = [Series("1.0", (0.0,), (3.0,)), Series("2.0", (0.0,), (3.0,)), Series("+Inf", (0.0,), (4.0,))]
    engine = json.loads((DASHBOARD.parent / "headrace-engine.json").read_text(encoding="utf-8"))
    panel = next(panel for panel in engine["panels"] if panel["type"] == "heatmap")
    heading = {"type": "row", "title": "x", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}}
    picture = draw({"title": "t", "panels": [heading, panel]}, [], lambda *_: cumulative)
    cells = [e for e in ElementTree.fromstring(picture).iter() if e.attrib.get("class") == "cell"]
    assert [float(cell.attrib["opacity"]) for cell in cells] == [1.0, pytest.approx(1 / 3, abs=1e-3)]


@pytest.fixture
def prometheus() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """URL of a stand-in that answers every range query with two series, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            asked.append(query)
            start = float(query["start"][0])
            values = [[start, "1"], [start + 5, "2.5"]]
            result = [{"metric": {"kind": kind, "le": le}, "values": values} for kind, le in (("a", "1"), ("b", "2"))]
            body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_series_are_named_by_their_labels_and_begin_with_the_window(prometheus):
    url, asked = prometheus
    ask = ask_prometheus(url, Window(1000.0, 1600.0), "20s")
    found = ask('rate(x{instance=~"$instance"}[$__rate_interval])', "kind {{kind}}")
    assert found == [Series("kind a", (0.0, 5.0), (1.0, 2.5)), Series("kind b", (0.0, 5.0), (1.0, 2.5))]
    assert asked[0]["query"] == ['rate(x{instance=~".*"}[20s])']
    assert asked[0]["step"] == ["10.0"]


def test_the_command_writes_the_picture(prometheus, tmp_path: Path):
    out = tmp_path / "picture.svg"
    assert main([prometheus[0], "--start", "1000", "--end", "1060", "--out", str(out)]) == 0
    assert "Batch size" in texts_of(out.read_text())
