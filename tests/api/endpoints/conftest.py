from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.api.browser import CHROMIUM, Browser, Page, Screen
from tests.api.running_server import RunningServer

DESKTOP, PHONE = Screen(1200, 500), Screen(390, 640, is_phone=True)
Visit = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Visit:
    """Opens the playground. Whatever was done there: nobody else was asked for anything, and nothing went wrong but for
    so many `refusals`."""

    @contextmanager
    def visit(screen: Screen = DESKTOP, canned: dict[str, str] | None = None, refusals: int = 0) -> Iterator[Page]:
        with browser.page(server.base_url + "/", screen, canned) as page:
            page.wait_for("document.querySelector('#model').value")
            yield page
            assert [url for url in page.requested if not url.startswith((server.base_url, "data:"))] == []
            refused = [each for each in page.complaints if "Failed to load resource" in each]
            assert (len(refused), page.complaints) == (refusals, refused)

    return visit
