"""What identifies a call, known when it arrives."""

from __future__ import annotations

import re
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from service.api.random_ids import RandomIds
from service.api.scope import client_of, header_of, is_fit_id
from service.errors import InvalidRequest

_OBJECTIVES = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
"""The header of llm-d, and that of the Gateway API's inference extension."""

_MILLISECONDS = re.compile(r"\d{1,9}(\.\d{1,6})?")


@dataclass(frozen=True, slots=True)
class CallHead:
    """What identifies a call.

    call_id, created: in its answer; created is Unix time in seconds. arrival_s: on the engine's clock. client: the name
        of its API key.
    request_id: `X-Request-Id`, which a client may use twice. is_background: the call is a line of a batch.
    start_within_s: the time from arrival within which it has to start; None: any time.
    """

    call_id: str
    created: int
    arrival_s: float
    client: str
    request_id: str = ""
    is_background: bool = False
    start_within_s: float | None = None


def call_head(ids: RandomIds, http: Request, prefix: str, arrival_s: float, *, own_id: str | None = None) -> CallHead:
    """The head of a new call. prefix: of the call's id, as the API has it. own_id: the body's `request_id`; it becomes
    the request id if no header gave one. InvalidRequest if it is not fit to be repeated.

    The call's id is always new, since a client's own id may come again. If the client sends none, the answer's id and
    `X-Request-Id` have the same suffix.
    """
    state = http.scope["state"]
    if own_id is not None:
        _note_own_id(own_id, state)
    is_given = state.get("request_id_is_given", False)
    head = CallHead(
        f"{prefix}{ids.next() if is_given else state['request_id']}",
        int(time.time()),
        arrival_s,
        client_of(http.scope),
        state["request_id"],
        state.get("is_background", False),
        _start_within_s(http),
    )
    state["call_id"] = head.call_id
    return head


def _start_within_s(http: Request) -> float | None:
    """A gateway's target for the time to the first token, in seconds. InvalidRequest if the header is not a number of
    milliseconds."""
    for name in _OBJECTIVES:
        if text := header_of(http.scope, name):
            if not _MILLISECONDS.fullmatch(text) or not float(text):
                raise InvalidRequest(f"{name.decode()} must be a number of milliseconds above 0 and below 10^9.")
            return float(text) / 1e3
    return None


def _note_own_id(own_id: str, state: MutableMapping[str, Any]) -> None:
    if not is_fit_id(own_id):
        raise InvalidRequest(
            "request_id must have 1 to 64 characters, each a letter, digit, dot, dash or underscore.",
            param="request_id",
        )
    if not state.get("request_id_is_given", False):
        state.update(request_id=own_id, request_id_is_given=True)
