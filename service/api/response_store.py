"""Responses that are kept for a while: to be read again, to be continued, or because they are made in the
background."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from service.api.kept_events import KeptEvents
from service.errors import NotFound

_OVERHEAD_BYTES = 1024
"""Memory of an entry besides its JSON."""


@dataclass(slots=True)
class StoredResponse:
    """client: the name of the API key that it belongs to. items: JSON list of the conversation that it was made from.
    response: its current JSON. task: makes it in the background; None: it was made by a request. events: for clients
    that follow it; event_bytes: their size, as reported to the store."""

    client: str
    items: bytes
    response: bytes
    task: asyncio.Task[None] | None = None
    events: KeptEvents | None = None
    event_bytes: int = 0

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def num_bytes(self) -> int:
        return len(self.items) + len(self.response) + self.event_bytes + _OVERHEAD_BYTES


class ResponseStore:
    """In memory, bounded in entries and in bytes; the oldest are evicted first. Event-loop thread.

    max_bytes: 0 keeps nothing. A response larger than this is not kept. If a response is evicted while it is made, its
    task is cancelled.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    @property
    def keeps(self) -> bool:
        """Whether it may keep anything at all."""
        return self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        self._entries[response_id] = stored
        self.num_bytes += stored.num_bytes
        self._make_room()

    def complete(self, response_id: str, response: bytes) -> None:
        """Sets the JSON of a response that was being made. Nothing happens if it was evicted."""
        stored = self._entries.get(response_id)
        if stored is not None:
            self.num_bytes += len(response) - len(stored.response)
            stored.response = response
            self._make_room()

    def note_events(self, response_id: str, num_bytes: int) -> None:
        """Adds to the event bytes of a response that is being made. Nothing happens if it was evicted."""
        stored = self._entries.get(response_id)
        if stored is not None:
            self.num_bytes += num_bytes
            stored.event_bytes += num_bytes
            self._make_room()

    def get(self, response_id: str, client: str) -> StoredResponse:
        """NotFound if there is none, or if it belongs to another client."""
        stored = self._entries.get(response_id)
        if stored is None or stored.client != client:
            raise NotFound(f"Response with id '{response_id[:64]}' not found.", param="response_id")
        return stored

    def delete(self, response_id: str, client: str) -> None:
        """As `get`."""
        self.get(response_id, client)
        self._drop(response_id)

    def num_running(self, client: str) -> int:
        """The number of this client's responses that are being made."""
        return sum(each.is_running and each.client == client for each in self._entries.values())

    def close(self) -> None:
        for response_id in list(self._entries):
            self._drop(response_id)

    def _make_room(self) -> None:
        while len(self._entries) > self._max_entries or self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, response_id: str) -> None:
        stored = self._entries.pop(response_id)
        self.num_bytes -= stored.num_bytes
        if stored.task is not None:
            stored.task.cancel()
