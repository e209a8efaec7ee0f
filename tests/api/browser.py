"""A real Chromium, driven by its DevTools protocol over two pipes: no driver, no port, and the page as it is served.

https://chromedevtools.github.io/devtools-protocol/ names the methods. One thread calls, one of its own reads.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM = "there is no Chromium here"

_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions --no-first-run "
    "--disable-background-networking --disable-component-update --hide-scrollbars --remote-debugging-pipe"
).split()
_ON_3_AND_4 = """
import fcntl, os, sys
commands, events = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])  # neither may be 3 or 4 now
os.dup2(commands, 3)
os.dup2(events, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and writes to 4."""
_ANSWER_S = 30.0
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "PageUp": 33}

Params = dict[str, Any]


@dataclass(frozen=True)
class Screen:
    width: int = 1280
    height: int = 800
    is_dark: bool = False
    is_phone: bool = False


class Browser:
    """A running Chromium. Pages that it opens share nothing: each has a storage of its own."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_3_AND_4, str(commands), str(events), *command],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self._last_id = 0
        self._answers: queue.SimpleQueue[Params] = queue.SimpleQueue()
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, session: str | None = None, **params: Any) -> Params:
        """The answer's `result`; an error of the protocol fails the test."""
        self._last_id += 1
        self.send(self._last_id, method, session, params)
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            answer = self._answers.get(timeout=max(0.01, deadline_s - time.monotonic()))
            if answer["id"] == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                result: Params = answer["result"]
                return result

    def send(self, message_id: int, method: str, session: str | None, params: Params) -> None:
        message = {"id": message_id, "method": method, "params": params} | ({"sessionId": session} if session else {})
        left = memoryview(json.dumps(message).encode() + b"\0")
        while left:
            left = left[os.write(self._commands, left) :]

    @contextmanager
    def page(self, url: str, screen: Screen | None = None, canned: dict[str, str] | None = None) -> Iterator[Page]:
        """Opens `url`. canned: path -> what is answered there instead of by the server: JSON, or a stream's events."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        self.call("Browser.grantPermissions", permissions=["clipboardReadWrite"], browserContextId=context)
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, canned or {})
        try:
            page.open(url, screen or Screen())
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)
            del self._pages[session]

    def close(self) -> None:
        self.send(0, "Browser.close", None, {})
        self._process.wait(20)
        self._reader.join(20)
        os.close(self._commands)
        os.close(self._events)

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._events, 2**16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "method" in message:
                    page = self._pages.get(message.get("sessionId", ""))
                    if page is not None:
                        page.note(message["method"], message["params"])
                elif message["id"]:
                    self._answers.put(message)


class Page:
    """One page. `complaints`: what the browser's console says of errors, broken policies and exceptions that nobody
    caught. `requested`: every address that it asked for. `sent`: every JSON that it sent."""

    def __init__(self, browser: Browser, session: str, canned: dict[str, str]) -> None:
        self._browser = browser
        self._session = session
        self._canned = canned
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self.sent: list[Any] = []

    def open(self, url: str, screen: Screen) -> None:
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self._call(f"{domain}.enable")
        if self._canned:
            self._call("Fetch.enable", patterns=[{"urlPattern": f"*{path}"} for path in self._canned])
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=screen.width,
            height=screen.height,
            deviceScaleFactor=1,
            mobile=screen.is_phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if screen.is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)  # as the page that a person works with
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def reload(self) -> None:
        self._call("Page.reload")
        self.wait_for("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Of an expression, or of what its promise gives; it has to be JSON."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, within_s: float = 30.0) -> None:
        """Until an expression is true; as long as it throws, it is not."""
        deadline_s = time.monotonic() + within_s
        while not self.value(f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"):
            assert time.monotonic() < deadline_s, f"never came: {expression}\n{self.complaints}\n{self.text('body')}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """What a person sees of the first element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def html(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerHTML"))

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first element: what lies on top of it gets the click."""
        self._mouse("mouseMoved", selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, selector, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        self._mouse("mouseMoved", selector)

    def scroll(self, selector: str, by: int) -> None:
        """With the wheel, over the middle of the element."""
        self._mouse("mouseWheel", selector, deltaX=0, deltaY=by)

    def write(self, selector: str, text: str) -> None:
        """Puts the text in the place of a field's, as typing does."""
        self.value(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        if text:
            self._call("Input.insertText", text=text)
        else:
            self.press("Delete")

    def press(self, key: str, *, shift: bool = False) -> None:
        code = _KEYS.get(key, 46)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self._call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": "\r"} if key == "Enter" else {}))
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def busy_s(self) -> float:
        """Seconds for which the page's main thread has worked."""
        metrics = {each["name"]: each["value"] for each in self._call("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    def picture(self, file: Path) -> None:
        file.write_bytes(b64decode(self._call("Page.captureScreenshot")["data"]))

    def note(self, method: str, params: Params) -> None:
        """Called by the reading thread."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
            if "postData" in params["request"]:
                self.sent.append(json.loads(params["request"]["postData"]))
        elif method == "Fetch.requestPaused":
            self._answer(params)

    def _answer(self, params: Params) -> None:
        body = next(body for path, body in self._canned.items() if params["request"]["url"].endswith(path))
        answer = {
            "requestId": params["requestId"],
            "responseCode": 200,
            "body": b64encode(body.encode()).decode(),
        }
        self._browser.send(0, "Fetch.fulfillRequest", self._session, answer)

    def _mouse(self, kind: str, selector: str, **more: Any) -> None:
        x, y = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'});"
            " const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def _call(self, method: str, **params: Any) -> Params:
        return self._browser.call(method, self._session, **params)
