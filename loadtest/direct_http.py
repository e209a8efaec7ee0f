"""HTTP requests that bypass any proxy named in the environment, as the measured requests do."""

import http.client
import urllib.request
from typing import cast


def opened(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Returns the response; the caller closes it. Raises as `urllib.request.urlopen` does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return cast(http.client.HTTPResponse, opener.open(request, timeout=timeout_s))
