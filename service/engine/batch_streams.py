"""The streams of the decode batch: their tokens by iteration, and their turns. Event-loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from service.engine.request_stream import RequestStream


class BatchStreams:
    """Streams that get one token each in every iteration: a row of tokens costs nothing for each of them until it takes
    its own, and only those that are due are looked at.

    request_ids: whose they are, as the engine names them in `BatchTokens`.
    """

    def __init__(self, request_ids: Sequence[str], streams: Mapping[str, RequestStream]) -> None:
        self.request_ids = request_ids
        self.rows: list[tuple[int, ...]] = []
        self._streams = [(place, streams[each]) for place, each in enumerate(request_ids) if each in streams]
        self._turns = [(stream.due_s, place, stream) for place, stream in self._streams]
        heapify(self._turns)

    def add(self, token_ids: tuple[int, ...]) -> None:
        """One more token for each."""
        if not self.rows:
            for place, stream in self._streams:
                stream.rows, stream.num_taken, stream.place = self.rows, 0, place
        self.rows.append(token_ids)

    def give_tokens(self) -> None:
        """Give the streams what is theirs, so that other events may follow."""
        if self.rows:
            for _, stream in self._streams:
                stream.take_rows()
            self.rows = []

    def all(self) -> list[RequestStream]:
        """In the order of their places."""
        return [stream for _, stream in self._streams]

    def due(self, now_s: float, plan: Callable[[RequestStream], None]) -> list[RequestStream]:
        """Those that are due by now. plan: sets when a stream is due again."""
        due, passed, turns = list[RequestStream](), list[tuple[float, int, RequestStream]](), self._turns
        while turns and turns[0][0] <= now_s:
            _, place, stream = heappop(turns)
            if stream.due_s <= now_s:  # else it had its turn elsewhere
                plan(stream)
                due.append(stream)
            passed.append((stream.due_s, place, stream))
        for turn in passed:
            heappush(turns, turn)
        return due
