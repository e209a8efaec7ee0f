from __future__ import annotations

import time

from starlette.requests import Request

from service.api.call_head import call_head
from service.api.random_ids import RandomIds


def test_every_call_has_an_id_of_its_own() -> None:
    ids, http = RandomIds(), Request({"type": "http", "headers": []})
    first, second = call_head(ids, http, "cmpl-", 1.5), call_head(ids, http, "cmpl-", 1.5)
    assert first.call_id.startswith("cmpl-")
    assert first.call_id != second.call_id
    assert (first.arrival_s, first.client) == (1.5, "")
    assert abs(first.created - time.time()) < 5
