from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import httpx
import pytest

from service.api.endpoints import playground
from service.config import ApiConfig
from tests.api.running_server import MODEL, RunningServer, Scene, running

ROOT = Path(__file__).parents[3]
FOLDER = Path(playground.__file__).parents[1] / "playground"
VENDOR = FOLDER / "vendor"
OURS = [file for file in sorted(FOLDER.iterdir()) if file.suffix in {".html", ".css", ".js"}]
FILES = [file.relative_to(FOLDER).as_posix() for file in sorted(FOLDER.rglob("*")) if file.is_file()]
LIBRARIES = [folder.name for folder in sorted(VENDOR.iterdir()) if folder.is_dir()]


def test_the_page_is_served(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_it_is(http: httpx.Client, name: str) -> None:
    response = http.get(f"/playground/{name}")
    assert response.content == (FOLDER / name).read_bytes()
    kind = {"js": "javascript", "mjs": "javascript", "txt": "plain", "md": "markdown"}.get(name.rpartition(".")[2])
    assert response.headers["content-type"] == f"text/{kind or name.rpartition('.')[2]}; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "/playground/main.js"])
def test_only_our_own_files_may_run(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    policy = dict(each.strip().partition(" ")[::2] for each in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/playground/main.js"])
def test_a_copy_that_is_still_right_is_not_sent_again(http: httpx.Client, path: str) -> None:
    first = http.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert http.get(path, headers={"If-None-Match": '"another"'}).content == first.content


@pytest.mark.parametrize(
    "name", ["", "nothing.js", "../endpoints/playground.py", "..%2fapp.py", "/etc/passwd", "vendor", "%00"]
)
def test_nothing_else_is_served(http: httpx.Client, name: str) -> None:
    assert http.get(f"/playground/{name}").status_code == 404


def test_the_files_need_no_key_and_what_they_call_does() -> None:
    config = ApiConfig(served_model_names=(MODEL,), api_keys=("sk-one",))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        assert {http.get(path).status_code for path in ("/", "/playground/main.js")} == {200}
        assert http.get("/v1/models").status_code == 401


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_nothing_comes_from_elsewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    # the one address is the name space of the icon's SVG, which nobody loads
    assert set(re.findall(r"https?://[^'\"\s)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|\beval\b|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=\"", text)


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_what_a_file_names_is_there(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for path in re.findall(r"""(?:from |import\()"(\./[^"]+)\"""", text):
        assert (FOLDER / path).is_file(), path
    for path in re.findall(r'(?:src|href)="playground/([^"]+)"', text):
        assert (FOLDER / path).is_file(), path


def test_the_page_asks_only_for_routes_that_there_are(server: RunningServer, http: httpx.Client) -> None:
    paths = set(re.findall(r'#call\("([^"]+)"', (FOLDER / "server.js").read_text(encoding="utf-8")))
    assert paths == {"v1/models", "v1/chat/completions", "version", "metrics"}
    assert all(http.get(f"/{path}").status_code in (200, 405) for path in paths)


def test_no_other_module_calls_the_server() -> None:
    call = re.compile(r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon")
    calling = {file.name for file in OURS if call.search(file.read_text(encoding="utf-8"))}
    assert calling == {"server.js"}


def test_the_metrics_that_it_reads_are_there(http: httpx.Client) -> None:
    named = re.findall(r'"(headrace_\w+)"', (FOLDER / "server_strip.js").read_text(encoding="utf-8"))
    shown = http.get("/metrics").text
    assert len(named) == 4
    assert all(re.search(rf"^{name}[ {{]", shown, re.MULTILINE) for name in named)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_as_published_and_brings_its_licence(http: httpx.Client, library: str) -> None:
    """The table of vendor/README.md has each library's version, licence and the digest of its one file."""
    rows = (VENDOR / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith(f"| `{library}/")]
    path, licence, digest = (cell.strip().strip("`") for cell in row.strip("|").split("|"))
    assert hashlib.sha256((VENDOR / path).read_bytes()).hexdigest() == digest
    assert {file.name for file in (VENDOR / library).iterdir()} == {"LICENSE.txt", Path(path).name}
    assert "Copyright" in http.get(f"/playground/vendor/{library}/LICENSE.txt").text
    assert licence in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]


def test_the_distribution_brings_the_licences() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    found = {file for pattern in patterns for file in ROOT.glob(pattern)}
    assert found == {ROOT / "LICENSE", *(VENDOR / library / "LICENSE.txt" for library in LIBRARIES)}
