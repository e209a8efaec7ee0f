"""Streams in the background, through openai-python: left, followed from anywhere, stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from service.api.answers.followed_events import FollowedEvents
from service.api.endpoints.stored_responses import MOST_FOLLOWERS
from service.api.kept_events import KeptEvents
from tests.api.endpoints.test_stored_responses import CALL, RESPONSES, TOOLS
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import error_of
from tests.e2e.strict_client import strict_client
from tests.text import tiny_tokenizers

STORE_BYTES = 150_000
CONFIG = replace(Scene().config, responses_store_bytes=STORE_BYTES, responses_store_entries=20)


@pytest.fixture(scope="module")
def storing() -> Iterator[RunningServer]:
    with running(Scene(config=CONFIG, chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.fixture
def client(storing: RunningServer) -> Iterator[OpenAI]:
    storing.reset()
    with strict_client(storing.base_url) as client:
        yield client
    storing.executor.gate.set()
    storing.check_idle()


def stream(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "hi", "stream": True, "background": True, **fields})


def told(events: Sequence[Any]) -> list[dict[str, Any]]:
    """What events say, but for ids, times, numbers and the background, and with the deltas of a text joined: how many
    there are is a matter of time."""
    said: list[dict[str, Any]] = []
    for event in events:
        fields = event.model_dump(exclude={"sequence_number", "item_id"})
        for holder in (fields, fields.get("response") or {}, fields.get("item") or {}):
            for name in ("id", "created_at", "completed_at", "background", "call_id"):
                holder.pop(name, None)
            for item in holder.get("output") or ():
                item.pop("id", None)
                item.pop("call_id", None)
        if "delta" in fields and said and said[-1]["type"] == fields["type"]:
            said[-1]["delta"] += fields["delta"]
        else:
            said.append(fields)
    return said


def test_its_events_are_those_of_any_stream_and_are_found_again_from_any_on(
    storing: RunningServer, client: OpenAI
) -> None:
    storing.say(CALL)
    plain = list(client.responses.create(model=MODEL, input="hi", stream=True, tools=TOOLS))
    events = list(stream(client, tools=TOOLS))
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [events[each].response.status for each in range(3)] == ["queued", "queued", "in_progress"]
    assert told(events[3:]) == told(plain[2:])
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert (last.status, last.background) == ("completed", True)
    assert client.responses.retrieve(last.id) == last
    for after in range(0, len(events), 3):
        assert list(client.responses.retrieve(last.id, stream=True, starting_after=after)) == events[after + 1 :]
    assert list(client.responses.retrieve(last.id, stream=True)) == events
    assert list(client.responses.retrieve(last.id, stream=True, starting_after=10_000)) == []


def test_it_goes_on_without_its_client_and_others_follow_it_as_it_comes(storing: RunningServer, client: OpenAI) -> None:
    storing.say("Good day to you")
    storing.executor.gate.clear()
    left = stream(client)
    created = next(left)
    left.close()
    response_id = created.response.id
    assert client.responses.retrieve(response_id).status == "in_progress"
    follower = client.responses.retrieve(response_id, stream=True, starting_after=0)
    assert next(follower).type == "response.queued"  # it is there before a token is
    storing.executor.gate.set()
    rest = list(follower)
    assert rest[-1].response.output_text == "Good day to you"
    assert client.responses.retrieve(response_id) == rest[-1].response
    going_on = client.responses.create(model=MODEL, input="and?", previous_response_id=response_id)
    assert going_on.status == "completed"


@pytest.mark.parametrize("how", ["cancelled", "deleted", "driven out"])
def test_whoever_follows_one_that_is_stopped_is_told(storing: RunningServer, client: OpenAI, how: str) -> None:
    storing.play(lambda prompt, so_far, seed: 75)
    storing.executor.delay_s = 0.001
    events = stream(client)
    response_id = next(events).response.id
    if how == "cancelled":
        assert client.responses.cancel(response_id).status == "cancelled"
    elif how == "deleted":
        client.responses.delete(response_id)
    else:
        for _ in range(20):
            client.responses.create(model=MODEL, input="hi", max_output_tokens=1)
    *_, error, failed = events
    assert (error.type, error.code) == ("error", "response_cancelled")
    assert (failed.type, failed.response.status) == ("response.failed", "cancelled")
    storing.check_idle()
    if how == "cancelled":
        again = list(client.responses.retrieve(response_id, stream=True, starting_after=error.sequence_number - 1))
        assert again == [error, failed]


def test_what_is_kept_of_events_is_bounded(storing: RunningServer, client: OpenAI) -> None:
    """A response whose events alone are more than the store may hold is stopped."""
    storing.play(lambda prompt, so_far, seed: 75)
    events = list(stream(client, input="x", max_output_tokens=1500))
    assert events[-2].code == "response_cancelled"
    assert 100 < len(events) < 1500
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(events[0].response.id)


def test_a_fault_ends_it_with_its_events(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a b c")
    storing.executor.fault = RuntimeError("broken")
    events = list(stream(client))
    storing.executor.fault = None
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert client.responses.retrieve(events[-1].response.id).status == "failed"
    assert list(client.responses.retrieve(events[-1].response.id, stream=True)) == events


@pytest.mark.parametrize(
    ("made", "query", "param"),
    [
        ({"stream": True, "background": False}, "stream=true", "stream"),
        ({"stream": False}, "stream=true", "stream"),
        ({}, "starting_after=1", "starting_after"),
        ({}, "stream=true&starting_after=-1", "starting_after"),
        ({}, "stream=perhaps", "stream"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    storing: RunningServer, client: OpenAI, made: dict[str, Any], query: str, param: str
) -> None:
    response = stream(client, **made)
    response_id = list(response)[-1].response.id if made.get("stream", True) else response.id
    refused = httpx.get(f"{storing.base_url}{RESPONSES}/{response_id}?{query}")
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


def test_only_so_many_follow_one(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    storing.executor.gate.clear()
    events = stream(client)
    response_id = next(events).response.id
    followers = [client.responses.retrieve(response_id, stream=True) for _ in range(MOST_FOLLOWERS - 1)]
    assert {next(follower).type for follower in followers} == {"response.created"}
    with pytest.raises(openai.InternalServerError, match="which is the limit"):
        client.responses.retrieve(response_id, stream=True)
    storing.executor.gate.set()
    for each in (events, *followers):
        assert list(each)[-1].type == "response.completed"
    assert list(client.responses.retrieve(response_id, stream=True))


def test_the_end_of_the_server_is_told(client: OpenAI) -> None:
    with running(Scene(config=CONFIG)) as server, strict_client(server.base_url) as own:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.001
        events = stream(own)
        next(events)
        draining = threading.Thread(target=server.drain, args=(0.0,))
        draining.start()
        *_, error, failed = events
        draining.join(10)
        assert (error.code, failed.response.status) == ("shutting_down", "failed")


@pytest.mark.parametrize("num_events", [0, 1, 255, 256, 257, 1000])
def test_much_at_once_is_sent_in_turns(num_events: int) -> None:
    async def run() -> None:
        events = KeptEvents()
        events.add(b"".join([b"data: %d\n\n" % each for each in range(num_events)]))
        events.end()
        followed, taken = FollowedEvents(events, 0), []
        followed.read_by(lambda: taken.append(followed.take()))
        taken.append(followed.take())
        for _ in range(20):
            await asyncio.sleep(0)
        assert followed.is_done
        assert b"".join(taken) == b"".join([b"data: %d\n\n" % each for each in range(num_events)])
        assert max(each.count(b"\n\n") for each in taken) <= 256
        followed.close("done")
        assert events.num_followers == 0

    asyncio.run(run())
