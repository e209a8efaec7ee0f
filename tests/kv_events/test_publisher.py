"""Events as a subscriber gets them: a real socket, and a prefix cache that is really filled and emptied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("zmq", reason="the extra kv-events is not installed")
pytest.importorskip("msgpack", reason="the extra kv-events is not installed")

import msgpack
import zmq

from service.errors import ConfigError
from service.kv_events import publisher as module
from service.kv_events.publisher import KvEventPublisher
from service.kvcache.prefix_cache import ChainedPrefixCache
from tests.kvcache.test_prefix_cache import BLOCK, make_sequence

TOPIC = "kv@pod@model"


class Subscriber:
    def __init__(self, publisher: KvEventPublisher) -> None:
        self._context = zmq.Context()
        self.socket = self._connected(zmq.SUB, publisher._publications)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        self.replays = self._connected(zmq.DEALER, publisher._replays)
        self.next = 0
        time.sleep(0.2)  # a publisher sends to those whom it knows

    def _connected(self, kind: int, to: Any) -> Any:
        made = self._context.socket(kind)
        made.setsockopt(zmq.RCVTIMEO, 5000)
        made.connect(to.getsockopt_string(zmq.LAST_ENDPOINT))
        return made

    def events(self, count: int) -> list[dict[str, Any]]:
        """The next ones, numbers without a gap."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            topic, number, payload = self.socket.recv_multipart()
            assert (topic.decode(), int.from_bytes(number, "big")) == (TOPIC, self.next)
            self.next += 1
            when, events, rank = msgpack.unpackb(payload)
            assert abs(when - time.time()) < 10 and rank == 0
            found += events
        assert len(found) == count
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[KvEventPublisher]:
    made = KvEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", TOPIC, BLOCK)
    yield made
    made.close()


@pytest.fixture
def subscriber(publisher: KvEventPublisher) -> Iterator[Subscriber]:
    made = Subscriber(publisher)
    yield made
    made.close()


def test_a_router_that_listens_itself_is_connected_to():
    """llm-d's, in the form with one socket for all replicas."""
    context = zmq.Context()
    router = context.socket(zmq.SUB)
    router.setsockopt(zmq.RCVTIMEO, 200)
    router.setsockopt_string(zmq.SUBSCRIBE, "kv@")
    port = router.bind_to_random_port("tcp://127.0.0.1")
    publishers = [KvEventPublisher(f"tcp://127.0.0.1:{port}", None, f"kv@{i}@model", BLOCK) for i in range(2)]
    heard: set[bytes] = set()
    deadline_s = time.monotonic() + 10
    while len(heard) < len(publishers):
        assert time.monotonic() < deadline_s
        for publisher in publishers:  # what nobody hears yet is lost
            publisher.cleared()
        with suppress(zmq.Again):
            heard.add(router.recv_multipart()[0])
    assert heard == {b"kv@0@model", b"kv@1@model"}
    for publisher in publishers:
        publisher.close()
    context.destroy(linger=0)


def test_a_router_knows_what_the_cache_knows(publisher: KvEventPublisher, subscriber: Subscriber):
    cache = ChainedPrefixCache(BLOCK, events=publisher)
    tokens = list(range(1, 3 * BLOCK + 1))
    held = make_sequence(tokens)
    cache.insert(held, "adapter:salt", [5, 6, 7], len(tokens))
    cache.insert(make_sequence(tokens), "adapter:salt", [8, 9, 10], len(tokens))  # known already: nothing to tell
    first, second, third = subscriber.events(3)
    assert [event["type"] for event in (first, second, third)] == ["BlockStored"] * 3
    assert first["parent_block_hash"] is None
    assert second["parent_block_hash"] == first["block_hashes"][0]
    assert third["parent_block_hash"] == second["block_hashes"][0]
    assert [*first["token_ids"], *second["token_ids"], *third["token_ids"]] == tokens
    assert {event["block_size"] for event in (first, second, third)} == {BLOCK}
    assert (first["extra_keys"], second["extra_keys"]) == ([["adapter", "salt"]], [None])
    cache.known.forget([6])
    cache.known.forget_all()
    assert [*subscriber.events(2)] == [
        {"type": "BlockRemoved", "block_hashes": second["block_hashes"], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]


def test_what_everybody_shares_has_no_extra_key(publisher: KvEventPublisher, subscriber: Subscriber):
    tokens = list(range(BLOCK))
    ChainedPrefixCache(BLOCK, events=publisher).insert(make_sequence(tokens), ":", [1], BLOCK)
    (event,) = subscriber.events(1)
    assert event["extra_keys"] == [None]


def test_who_has_missed_some_may_ask_for_them(publisher: KvEventPublisher, subscriber: Subscriber):
    for i in range(3):
        publisher.removed(bytes([i]))
        subscriber.events(1)
    subscriber.replays.send_multipart([b"", b"no number"])
    subscriber.replays.send_multipart([b"", (1).to_bytes(8, "big")])
    found = []
    while (frames := subscriber.replays.recv_multipart())[1] != (-1).to_bytes(8, "big", signed=True):
        assert frames[0] == b""
        found.append((int.from_bytes(frames[1], "big"), msgpack.unpackb(frames[2])[1][0]["block_hashes"]))
    assert found == [(1, [b"\1"]), (2, [b"\2"])]


def test_too_many_at_once_become_one_that_forgets_all(
    publisher: KvEventPublisher, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
):
    publisher.removed(b"x")
    subscriber.events(1)
    monkeypatch.setattr(module, "MAX_QUEUED", 0)
    publisher.removed(b"lost")
    assert subscriber.events(1) == [{"type": "AllBlocksCleared"}]


def test_an_address_that_cannot_be_had_is_told_by_its_setting(publisher: KvEventPublisher):
    taken = publisher._publications.getsockopt_string(zmq.LAST_ENDPOINT).replace("127.0.0.1", "*")
    with pytest.raises(ConfigError, match="kv-events-endpoint: "):
        KvEventPublisher(taken, None, "", BLOCK)
    with pytest.raises(ConfigError, match="kv-events-replay-endpoint: "):
        KvEventPublisher("tcp://127.0.0.1:*", "nonsense", "", BLOCK)
    with pytest.raises(ConfigError, match="kv-events-endpoint: "):
        KvEventPublisher("router:5557", None, "", BLOCK)
