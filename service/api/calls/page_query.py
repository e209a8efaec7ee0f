"""Which page of a list is asked for: `after`, `limit` and `order`, as in OpenAI's lists."""

from __future__ import annotations

from starlette.requests import Request

from service.api.calls.query_fields import number_of
from service.errors import InvalidRequest
from service.storage.listing import PageQuery

_ORDERS = ("asc", "desc")


def page_query(http: Request, *, most: int, default: int) -> PageQuery:
    """limit: from 1 to `most`; `default` if left out. By default the newest come first."""
    query = http.query_params
    order, limit = query.get("order", "desc"), number_of(http, "limit")
    if order not in _ORDERS:
        raise InvalidRequest("order must be asc or desc.", param="order")
    limit = default if limit is None else limit
    if not 1 <= limit <= most:
        raise InvalidRequest(f"limit must be from 1 to {most}.", param="limit")
    return PageQuery(query.get("after"), limit, order == "asc")
