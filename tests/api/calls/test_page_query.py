from __future__ import annotations

from starlette.requests import Request

from service.api.calls.page_query import page_query
from service.storage.listing import PageQuery


def test_the_newest_come_first_and_the_default_is_the_lists_own() -> None:
    """What is refused: tests/api/endpoints/test_files.py."""
    http = Request({"type": "http", "query_string": b"", "headers": []})
    assert page_query(http, most=10, default=3) == PageQuery(None, 3, False)
    http = Request({"type": "http", "query_string": b"limit=10&after=a&order=asc", "headers": []})
    assert page_query(http, most=10, default=3) == PageQuery("a", 10, True)
