from __future__ import annotations

import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from service.api.endpoints import playground
from tests.api.running_server import RunningServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGE = Path(playground.__file__).with_name("playground.html").read_text(encoding="utf-8")


def test_the_page_is_served(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == PAGE
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    # the one address is the name space of the icon's SVG, which nobody loads
    assert set(re.findall(r"https?://[^'\"\s)]+", PAGE)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script[^>]+src|<link[^>]+stylesheet|@import|url\(|import\(", PAGE)
    assert "innerHTML" not in PAGE  # a model's words are text, never markup


def test_the_page_asks_only_for_routes_that_there_are(server: RunningServer, http: httpx.Client) -> None:
    paths = set(re.findall(r'fetch\("([^"]+)"', PAGE))
    assert paths == {"v1/models", "v1/chat/completions", "version"}
    assert all(http.get(f"/{path}").status_code in (200, 405) for path in paths)


class Stagehand:
    """Keeps the browser from being done: an image of the page does not arrive before the page says that it is."""

    def __init__(self) -> None:
        finished = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/finished":
                    finished.set()
                finished.wait(60)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Stagehand:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.shutdown()
        self._http.server_close()


PLAY = """<img src="STAGE/image" hidden><script>
let isSent = false;
setInterval(() => {
  if ($("model").value && !isSent) { isSent = true; box.value = "two and two?"; $("form").requestSubmit(); }
  if (document.querySelector(".facts")?.textContent.includes("tokens/s")) fetch("STAGE/finished", {mode: "no-cors"});
}, 50);
</script></body>"""


STOP_AND_FAIL = """<img src="STAGE/image" hidden><script>
const steps = [
  [() => $("model").value, () => document.querySelector("#examples button").click()],
  [() => document.querySelector(".turn.assistant .text")?.textContent.length > 20,
   () => document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}))],
  [() => document.querySelector(".facts")?.textContent.includes("stopped"),
   () => { $("max-tokens").value = "99999999"; box.value = "and more?"; $("form").requestSubmit(); }],
  [() => document.querySelector(".error"),
   () => { document.title = `asks again: ${box.value}`; fetch("STAGE/finished", {mode: "no-cors"}); }],
];
setInterval(() => { if (steps.length && steps[0][0]()) steps.shift()[1](); }, 50);
</script></body>"""


def dom_after(script: str, server: RunningServer, folder: Path) -> str:
    """The page when a script that is put into a copy of it says that it has finished."""
    assert CHROMIUM is not None
    with Stagehand() as stage:
        page = PAGE.replace('fetch("', f'fetch("{server.base_url}/').replace(
            "</body>", script.replace("STAGE", stage.url)
        )
        (folder / "page.html").write_text(page, encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security", "--dump-dom",
            f"--user-data-dir={folder / 'profile'}", f"file://{folder / 'page.html'}",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=90).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_in_a_browser(server: RunningServer, tmp_path: Path) -> None:
    """It lists the models and streams an answer."""
    server.say("<b>four</b> **bold** and ```py\nprint(4)\n```")
    server.executor.delay_s = 0.005
    shown = dom_after(PLAY, server, tmp_path)
    assert 'value="tiny/model"' in shown
    assert '<button type="button">Explain continuous batching in two sentences.</button>' not in shown, "chatting now"
    assert '<div class="text">two and two?</div>' in shown
    assert "&lt;b&gt;four&lt;/b&gt; <strong>bold</strong> and" in shown
    assert "<code>print(4)</code>" in shown
    assert "first token" in shown
    assert "tokens/s" in shown


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_in_a_browser_an_answer_is_stopped_and_an_error_is_shown(server: RunningServer, tmp_path: Path) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.01
    shown = dom_after(STOP_AND_FAIL, server, tmp_path)
    assert '<div class="text">Explain continuous batching in two sentences.</div>' in shown
    assert "ended by stopped" in shown
    assert '<div class="error" role="alert">This model&#39;s maximum context' in shown.replace("model's", "model&#39;s")
    assert "<title>asks again: and more?</title>" in shown, "the question that was not answered is in the box"
    server.check_idle()
