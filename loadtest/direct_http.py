"""GETs that go straight to a server, past any proxy that the environment names, as the measured requests do."""

import http.client
import urllib.request
from typing import cast


def opened(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, to be closed by the caller. Raises as `urllib.request.urlopen` does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return cast(http.client.HTTPResponse, opener.open(request, timeout=timeout_s))
