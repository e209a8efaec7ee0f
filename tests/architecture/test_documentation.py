"""What README.md and docs/ say of settings, routes, packages, files, commands, links and messages is so."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.serving_state import ServingState
from service.config import ApiConfig
from service.errors import RequestError
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.settings.settings import Settings
from service.storage.storage import Storage

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), ROOT / "tests" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FLAGS = {f"--{name.replace('_', '-')}" for name in Settings.model_fields} - {"--model"}
FLAGS_OF_OTHERS = {"--help", "--target", "--markdown", "--lengths", "--step-ms", "--stub", "--base-url", "--workload"}
FLAGS_OF_OTHERS |= {"--request-rate", "--continuous-batching", "--url", "--out", "--prompts", "--server-args"}
FLAGS_OF_OTHERS |= {
    "--check",
    "--profile",
    "--input-tokens",
    "--output-tokens",
}  # of headrace plan, and what measures for it
SINGLE_FILES_OF_NO_ROW = {"__init__", "__main__", "cli", "errors"}


def rows_of(page: str) -> list[list[str]]:
    """Cells of the rows of docs/PAGE.md that begin with code."""
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


SETTINGS = {row[0].strip("`"): row[1] for row in rows_of("configuration")}
PARTS_OF_THE_MAP = [
    name for row in rows_of("architecture") if len(row) == 3 for name in re.findall(r"`([\w/.]+)`", row[0])
]


def as_written(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if default in (None, (), {}):
        return ""
    if isinstance(default, int) and default >= 2**20 and default % 2**20 == 0:
        return f"{default // 2**30}GiB" if default % 2**30 == 0 else f"{default // 2**20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default)


def slug(heading: str) -> str:
    """As a page's anchors are made of its headings."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def text_outside_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_setting_has_its_row_and_nothing_else_has():
    assert sorted(FLAGS ^ SETTINGS.keys()) == []


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name != "model"])
def test_a_settings_default_is_the_real_one(name: str):
    written = SETTINGS[f"--{name.replace('_', '-')}"]
    default = as_written(Settings.model_fields[name].default)
    assert written == default if default else written  # what nothing means is told in words


def test_the_readme_has_every_group_of_settings():
    linked = re.findall(r"^\| \[([^]]+)]\(docs/configuration\.md#", README, re.MULTILINE)
    assert linked == re.findall(r"^## (.+)$", (DOCS / "configuration.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_flag_that_is_named_is_there(page: Path):
    named = set(re.findall(r"`(--[a-z][a-z-]+)", text_outside_code(page)))
    assert sorted(named - FLAGS - FLAGS_OF_OTHERS) == []


def test_every_route_has_its_row_and_nothing_else_has():
    recorder = Recorder(Instruments(CollectorRegistry()))
    app = create_app(ServingState(), ApiConfig(("a",)), recorder, CollectorRegistry(), Storage(Path("unused"), 0))
    real = {
        f"{method} {re.sub(r'{[^}]*}', '{id}', route.path)}"
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    written = set(re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", "\n".join(row[0] for row in rows_of("api"))))
    assert sorted(written ^ real) == []


def test_every_package_is_on_the_map():
    packages = {file.parent for top in ("service", "kernels", "loadtest") for file in (ROOT / top).rglob("__init__.py")}
    names = {str(package.relative_to(ROOT)) for package in packages} - {"service"}
    assert sorted(name for name in names if name not in PARTS_OF_THE_MAP) == []
    files = {f.stem for f in (ROOT / "service").glob("*.py")} - SINGLE_FILES_OF_NO_ROW
    assert sorted(stem for stem in files if f"service/{stem}.py" not in PARTS_OF_THE_MAP) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_folder_that_is_named_is_there(page: Path):
    named = re.findall(r"`([\w-]+(?:/[\w.-]+)+?)/?`", text_outside_code(page))
    places = (ROOT, ROOT / "service", ROOT / "tests")
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert sorted(set(missing) - {"path/to/model", "name/model", "deploy/headrace.env"}) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_there_are(page: Path):
    links = re.findall(r"\]\(([^)\s]+)\)", text_outside_code(page))
    for link in links:
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_named_is_there(page: Path):
    text = page.read_text(encoding="utf-8")
    commands = (ROOT / "service" / "cli.py").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module) is not None, module
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets
    for command in re.findall(r"(?:`|bin/)headrace ([a-z]+)", text):
        assert f'"{command}"' in commands


def test_every_page_of_docs_is_linked_from_the_readme():
    assert sorted({f"docs/{page.name}" for page in DOCS.glob("*.md")} - {*re.findall(r"\]\(([\w/.]+)\)", README)}) == []


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """Every string of the service, what is filled in left out."""
    return tuple(text for file in sorted((ROOT / "service").rglob("*.py")) for text in _texts(file))


def _texts(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(\.\d+)?[a-z]", "\0", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


def quoted_messages() -> list[str]:
    cells = [row[0] for row in rows_of("troubleshooting")]
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell) if " " in message]


@pytest.mark.parametrize("message", quoted_messages())
def test_a_message_that_is_quoted_is_one_of_the_services(message: str):
    pieces = [piece.strip() for piece in message.split("...") if len(piece.strip()) > 1]
    assert any(all(piece in text for piece in pieces) for text in texts_of_the_code())


def test_every_error_code_and_status_is_told_of():
    family = [RequestError]
    for kind in family:
        family += kind.__subclasses__()
    statuses = {str(kind.status) for kind in family}
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    told = " ".join(re.findall(r"^\| ([45]\d\d[^|]*)", page, re.MULTILINE))
    assert sorted(status for status in statuses if status not in told) == []
    assert sorted(kind.code for kind in family if kind.code and f"`{kind.code}`" not in told) == []
