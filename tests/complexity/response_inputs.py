"""Worst inputs of a response: its items and tools, on their way to a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.api.answers.followed_events import FollowedEvents
from service.api.answers.input_item_page import listed_items, page_of
from service.api.calls.compaction_item import compaction_item, summary_of
from service.api.calls.member_limits import check_members
from service.api.calls.response_items import ChatMessages
from service.api.calls.response_tools import chat_choice, read_tools
from service.api.calls.wire_parsing import parse
from service.api.kept_events import KeptEvents
from service.api.response_store import ResponseStore, StoredResponse
from service.protocol.responses import InputItem, ResponsesRequest
from service.storage.listing import PageQuery
from tests.complexity.door_inputs import CONFIG
from tests.complexity.growth import Work, WorstInput


def _response_items(*items: dict[str, Any]) -> Callable[[int], Work]:
    """These, again and again: to their wire shape, and to messages of a chat."""

    def make(n: int) -> Work:
        body = {"model": "m", "input": [*items] * (n // len(items))}

        def work() -> None:
            check_members(body, CONFIG)
            read = ChatMessages("x")
            for index, item in enumerate(parse(ResponsesRequest, body).input or ()):
                assert isinstance(item, InputItem)
                read.add(item, f"input[{index}]")
            assert read.messages

        return work

    return make


def _response_tools(n: int) -> Work:
    members = [{"type": "custom", "name": f"f{index}", f"x{index}": 1} for index in range(n)]
    tools = [{"type": "namespace", "name": "n", "tools": members}]
    body = {"model": "m", "tools": tools}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": members[:n]}

    def work() -> None:
        check_members(body, CONFIG)
        chat_choice(choice, read_tools(parse(ResponsesRequest, body).tools or ()))

    return work


def _input_item_page(n: int) -> Work:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}] * n
    after = listed_items(items, "resp_1")[0]["id"]
    return lambda: page_of(listed_items(items, "resp_1"), PageQuery(after, 20, False))


def _stored_responses(n: int) -> Work:
    """Each drives out the one before it, and many run."""

    def work() -> None:
        store = ResponseStore(n // 2, 10**9)
        for index in range(n):
            store.put(str(index), StoredResponse("", b"[]", b"{}"))
        store.num_running("")

    return work


def _compaction_items(n: int) -> Work:
    content = compaction_item("ä" * n, "x")["encrypted_content"]
    return lambda: summary_of(content, "input[0].encrypted_content")


def _followed_events(n: int) -> Work:
    """A token each, told while they are followed from the beginning."""

    def work() -> None:
        events = KeptEvents()
        followed = FollowedEvents(events, 0)
        for _ in range(n):
            events.add(b'event: x\ndata: {"delta":"x"}\n\n')
            assert followed.take()

    return work


RESPONSE_INPUTS = [
    WorstInput(
        "responses: the summary in a compaction",
        ("api/calls/compaction_item.py",),
        _compaction_items,
        50_000,
        CONFIG.max_body_bytes * 3 // 8,
        "loop",
    ),
    WorstInput(
        "responses: events that are kept and followed",
        ("api/kept_events.py", "api/answers/followed_events.py"),
        _followed_events,
        2_000,
        100_000,
        "stream",
    ),
    WorstInput(
        "responses: the items of one, listed",
        ("api/answers/input_item_page.py",),
        _input_item_page,
        1_000,
        CONFIG.max_messages,
        "pool",
    ),
    WorstInput(
        "responses: stored",
        ("api/response_store.py",),
        _stored_responses,
        2_000,
        CONFIG.responses_store_entries,
        "stream",
    ),
    WorstInput(
        "items of a response: messages, each of the same turn",
        ("api/calls/response_items.py", "api/calls/member_limits.py", "protocol/responses.py"),
        _response_items(
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "message", "role": "assistant", "content": "x", "y": 1},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        ),
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "items of a response: system messages behind its instructions",
        ("api/calls/response_items.py",),
        _response_items({"role": "system", "content": [{"type": "input_text", "text": "x" * 100}]}),
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "tools of a response: many in a namespace",
        ("api/calls/response_tools.py", "api/calls/member_limits.py"),
        _response_tools,
        64,
        CONFIG.max_tools,
        "loop",
    ),
]
