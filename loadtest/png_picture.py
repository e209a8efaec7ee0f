"""`python -m loadtest.png_picture a.svg ...` writes a.png beside each SVG, in its light colours, for pages without SVG.

Uses librsvg's `rsvg-convert` (Debian: librsvg2-bin). It does not know CSS variables, so they are replaced first. If
`pngquant` is installed, it reduces the file to about a third.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONVERTER = "rsvg-convert"
_NUM_COLORS = 32
"""Enough for a picture of a few curves and letters."""


def without_variables(svg: str) -> str:
    """The same picture, with each `var(--x)` replaced by the first value that the style gives to `--x`. Raises KeyError
    if there is none."""
    values: dict[str, str] = {}
    for name, value in re.findall(r"--([\w-]+):\s*([^;}]+)", svg):
        values.setdefault(name, value.strip())
    return re.sub(r"var\(--([\w-]+)\)", lambda found: values[found[1]], svg)


def write_png(svg: str, file: Path) -> None:
    """Raises FileNotFoundError if the converter is not installed, CalledProcessError if it rejects the SVG."""
    if shutil.which(CONVERTER) is None:
        raise FileNotFoundError(f"{CONVERTER} is not installed (Debian: librsvg2-bin)")
    drawn = subprocess.run([CONVERTER, "--format", "png"], input=without_variables(svg).encode(), capture_output=True)
    drawn.check_returncode()
    file.write_bytes(_smaller(drawn.stdout))


def _smaller(png: bytes) -> bytes:
    if shutil.which("pngquant") is None:
        return png
    reduced = subprocess.run(["pngquant", str(_NUM_COLORS), "-"], input=png, capture_output=True)
    reduced.check_returncode()
    return reduced.stdout


def main(arguments: Sequence[str]) -> int:
    for name in arguments:
        file = Path(name)
        write_png(file.read_text(encoding="utf-8"), file.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
