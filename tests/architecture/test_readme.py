"""What README.md says of settings, routes, packages and files is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.serving_state import ServingState
from service.config import ApiConfig
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.settings.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if line.startswith("| `")]
SETTINGS = {row[0].strip("`"): row[1] for row in ROWS if row[0].startswith("`--")}
PARTS_OF_THE_MAP = [name for row in ROWS if len(row) == 3 for name in re.findall(r"`([\w/.]+)`", row[0])]
SINGLE_FILES_OF_NO_ROW = {"__init__", "__main__", "cli", "errors"}


def as_written(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if default in (None, (), {}):
        return ""
    if isinstance(default, int) and default >= 2**20 and default % 2**20 == 0:
        return f"{default // 2**30}GiB" if default % 2**30 == 0 else f"{default // 2**20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_every_setting_has_its_row_and_nothing_else_has():
    named = {f"--{name.replace('_', '-')}" for name in Settings.model_fields} - {"--model"}
    assert sorted(named ^ SETTINGS.keys()) == []


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name != "model"])
def test_a_settings_default_is_the_real_one(name: str):
    written = SETTINGS[f"--{name.replace('_', '-')}"]
    default = as_written(Settings.model_fields[name].default)
    assert written == default if default else written  # what nothing means is told in words


def test_every_route_has_its_row_and_nothing_else_has():
    recorder = Recorder(Instruments(CollectorRegistry()))
    app = create_app(ServingState(), ApiConfig(("a",)), recorder, CollectorRegistry())
    real = {
        f"{method} {re.sub(r'{[^}]*}', '{id}', route.path)}"
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    written = set(re.findall(r"`((?:GET|POST) /[^`]*)`", "\n".join(row[0] for row in ROWS)))
    assert sorted(written ^ real) == []


def test_every_package_is_on_the_map():
    packages = {file.parent for top in ("service", "kernels", "loadtest") for file in (ROOT / top).rglob("__init__.py")}
    names = {str(package.relative_to(ROOT)) for package in packages} - {"service"}
    assert sorted(name for name in names if name not in PARTS_OF_THE_MAP) == []
    files = {f.stem for f in (ROOT / "service").glob("*.py")} - SINGLE_FILES_OF_NO_ROW
    assert sorted(stem for stem in files if f"service/{stem}.py" not in PARTS_OF_THE_MAP) == []


def test_every_file_and_folder_that_is_named_is_there():
    named = re.findall(r"`([\w-]+(?:/[\w.-]+)+?)/?`", README) + re.findall(r"\]\(([\w/.]+)\)", README)
    assert len(named) > 40
    places = (ROOT, ROOT / "service", ROOT / "tests")
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert sorted(set(missing) - {"path/to/model"}) == []
