"""What a call is known by, from its arrival on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request

from service.api.random_ids import RandomIds
from service.api.scope import client_of


@dataclass(frozen=True, slots=True)
class CallHead:
    """What a call is known by: call_id and created (Unix seconds) in its answer, when it came (seconds on the engine's
    clock), and the name of its API key."""

    call_id: str
    created: int
    arrival_s: float
    client: str


def call_head(ids: RandomIds, http: Request, prefix: str, arrival_s: float) -> CallHead:
    """A new id, and the client. prefix: of the id, as each API has one, with what stands behind it."""
    return CallHead(f"{prefix}{ids.next()}", int(time.time()), arrival_s, client_of(http.scope))
