"""The prefix cache's events as vLLM publishes them: msgpack over ZMQ, with a replay socket for missed ones.

A message has three frames: topic, sequence number (8 bytes, big-endian), and the batch: [Unix seconds, events, rank]. A
subscriber that missed some sends the first number that it needs to the replay socket and gets the batches from there
on, then one with number -1 and no content. Imported only if used: pyzmq and msgpack are an extra.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any

import msgpack
import zmq

from service.errors import ConfigError

MAX_QUEUED = 100_000
"""Events. Beyond it subscribers are told to forget everything, which costs them hits but is never wrong."""

MAX_REPLAYED = 10_000
"""Batches that can be asked for again."""

_GATHER_S = 0.01
_LOOK_FOR_REPLAYS_S = 0.1
_END = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"  # vLLM's word for blocks that are not offloaded, on a CPU too
_RANK = 0
_Event = dict[str, Any]


class KvEventPublisher:
    """A `KvEvents`. block_size: tokens of an entry. ConfigError if an address is not available.

    endpoint: bound if it has a wildcard (`tcp://*:5557`) or is local to the machine; else it is the address of a
    router, which binds it for all its replicas, and is connected to, as in vLLM. replay_endpoint: always bound.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None, topic: str, block_size: int) -> None:
        self._topic = topic.encode()
        self._block_size = block_size
        self._queue: SimpleQueue[_Event | None] = SimpleQueue()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=MAX_REPLAYED)
        self._num_sent = 0
        self._context = zmq.Context()
        self._publications = self._opened(zmq.PUB, endpoint, "kv-events-endpoint", listens=_is_ours(endpoint))
        self._replays = (
            None if replay_endpoint is None else self._opened(zmq.ROUTER, replay_endpoint, "kv-events-replay-endpoint")
        )
        self._thread = threading.Thread(target=self._send_all, name="kv events", daemon=True)
        self._thread.start()

    def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
        self._offer(
            {
                "type": "BlockStored",
                "block_hashes": [digest],
                "parent_block_hash": parent,
                "token_ids": tokens,  # converted to a list by the thread that sends
                "block_size": self._block_size,
                "lora_id": None,
                "medium": _MEDIUM,
                "lora_name": None,
                "extra_keys": [_keys_of(salt) if parent is None else None],
            }
        )

    def removed(self, digest: bytes) -> None:
        self._offer({"type": "BlockRemoved", "block_hashes": [digest], "medium": _MEDIUM})

    def cleared(self) -> None:
        self._offer({"type": "AllBlocksCleared"})

    def close(self) -> None:
        """Queued events are sent first. Any thread."""
        self._queue.put(None)
        self._thread.join(1.0)
        self._context.destroy(linger=0)

    def _opened(self, kind: int, endpoint: str, setting: str, listens: bool = True) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        try:
            (made.bind if listens else made.connect)(endpoint)
        except zmq.ZMQError as fault:
            self._context.destroy(linger=0)
            raise ConfigError(f"{setting}: {endpoint!r}: {fault.strerror}") from fault
        return made

    def _offer(self, event: _Event) -> None:
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put(event)
            return
        while not self._queue.empty():
            self._queue.get()
        self._queue.put({"type": "AllBlocksCleared"})

    def _send_all(self) -> None:
        """The thread's main function."""
        is_last = False
        while not is_last:
            events = self._take()
            is_last = None in events
            if told := [event for event in events if event is not None]:
                self._send(told)
            self._replay_what_is_asked()

    def _take(self) -> list[_Event | None]:
        """The events of a moment; may be empty."""
        try:
            taken = [self._queue.get(timeout=_LOOK_FOR_REPLAYS_S)]
        except Empty:
            return []
        if taken[0] is not None:
            time.sleep(_GATHER_S)
        while not self._queue.empty():
            taken.append(self._queue.get())
        return taken

    def _send(self, events: list[_Event]) -> None:
        for event in events:
            if "token_ids" in event:
                event["token_ids"] = array("i", event["token_ids"]).tolist()
        payload = msgpack.packb([time.time(), events, _RANK])
        self._publications.send_multipart([self._topic, self._num_sent.to_bytes(8, "big"), payload])
        self._sent.append((self._num_sent, payload))
        self._num_sent += 1

    def _replay_what_is_asked(self) -> None:
        while self._replays is not None and self._replays.poll(0):
            who, *_, first = self._replays.recv_multipart()
            if len(first) != len(_END):
                continue  # not a request
            for number, payload in self._sent:
                if number >= int.from_bytes(first, "big"):
                    self._replays.send_multipart([who, b"", number.to_bytes(8, "big"), payload])
            self._replays.send_multipart([who, b"", _END, b""])


def _is_ours(endpoint: str) -> bool:
    return any(mark in endpoint for mark in ("*", "::", "0.0.0.0")) or endpoint.startswith(("ipc://", "inproc://"))


def _keys_of(salt: str) -> list[str] | None:
    """The adapter's digest, and the cache salt; None for blocks that everybody shares."""
    return [part for part in salt.split(":", 1) if part] or None
