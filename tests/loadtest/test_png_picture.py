from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest

from loadtest.png_picture import CONVERTER, main, without_variables
from loadtest.svg_plot import picture_style

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURE = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20"><style>{picture_style()}'
    ".paper { fill: var(--paper) }</style><rect class='paper' width='30' height='20'/></svg>"
)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_variables_have_their_first_values_which_are_the_light_ones():
    plain = without_variables(PICTURE)
    assert "var(" not in plain
    assert ".paper { fill: #fbfbfa }" in plain
    with pytest.raises(KeyError):
        without_variables("<style>.a { fill: var(--nobody) }</style>")


@pytest.mark.skipif(shutil.which(CONVERTER) is None, reason=f"{CONVERTER} is not installed")
def test_a_png_stands_beside_its_svg_and_is_as_large(tmp_path: Path):
    file = tmp_path / "a.svg"
    file.write_text(PICTURE)
    assert main([str(file)]) == 0
    assert size_of((tmp_path / "a.png").read_bytes()) == (30, 20)


@pytest.mark.parametrize("name", ["dashboard", "dashboard-engine", "dashboard-capacity"])
def test_the_docs_have_each_dashboard_as_both(name: str):
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', (IMAGES / f"{name}.svg").read_text(encoding="utf-8"))
    assert box is not None
    assert size_of((IMAGES / f"{name}.png").read_bytes()) == (int(box[1]), int(box[2]))
