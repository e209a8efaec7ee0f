"""A choice's output as the items of a response, and the events of a stream of them; both are made by one reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from service.api.answers.response_events import ResponseEvents
from service.api.calls.response_tools import CalledAs
from service.core.request import FinishReason
from service.text.chat_output import OutputDelta, ReasoningDelta
from service.text.string_argument import StringArgument
from service.text.tool_calls import CallDelta

_Kind = Literal["message", "reasoning", "call"]


class MessageLogprob(NamedTuple):
    """Log probability of one token. message: index of the message that it belongs to."""

    message: int
    json: orjson.Fragment


class OutputItems:
    """Reads one choice. One thread at a time.

    The items are the same whether the output comes at once or piece by piece.

    response_id: the items' ids are made from it. called_as: how calls are shown, by the names that the model knows.
    make_call_id: makes the id by which the client answers a call. whole: JSON of the items that are complete.
    """

    def __init__(
        self,
        response_id: str,
        called_as: Mapping[str, CalledAs],
        make_call_id: Callable[[], str],
        events: ResponseEvents,
    ) -> None:
        self._suffix = response_id.partition("_")[2]
        self._called_as = called_as
        self._make_call_id = make_call_id
        self._events = events
        self._item: _Item | None = None
        self._logprobs: deque[MessageLogprob] = deque()  # of content whose text has not come yet
        self._num_messages = 0
        self.whole: list[orjson.Fragment] = []

    def push(self, deltas: Sequence[OutputDelta], logprobs: Sequence[MessageLogprob] = ()) -> bytes:
        """Events of what is new. logprobs: of each token of the messages."""
        self._logprobs += logprobs
        return b"".join([self._push(delta) for delta in deltas])

    def finish(self, reason: FinishReason, *, call_is_cut: bool = False) -> bytes:
        """Events of the end. A choice without any output becomes an empty message."""
        said = self._change_to("message") if self._item is None else b""
        return said + self._end("incomplete" if reason is FinishReason.LENGTH or call_is_cut else "completed")

    def _push(self, delta: OutputDelta) -> bytes:
        if isinstance(delta, CallDelta):
            said = b"" if delta.name is None else self._change_to("call", delta.name)
            return said + self._add(delta.arguments)
        if isinstance(delta, ReasoningDelta):
            return self._change_to("reasoning") + self._add(delta.text)
        said = self._change_to("message")
        logprobs = []
        while self._logprobs and self._logprobs[0].message < self._num_messages:
            logprobs.append(self._logprobs.popleft().json)
        return said + self._add(delta.text, logprobs)

    def _change_to(self, kind: _Kind, function: str = "") -> bytes:
        """Begin a new item, and complete the open one, unless the output continues it."""
        if self._item is not None and self._item.kind == kind != "call":
            return b""
        said = b"" if self._item is None else self._end("completed")
        self._num_messages += kind == "message"
        index, events = len(self.whole), self._events
        item_id = f"{self._suffix}{index:02x}"
        if kind == "call":
            called_as = self._called_as[function]
            self._item = _Call(
                _News(f"{'ctc' if called_as.type == 'custom' else 'fc'}_{item_id}", index, events),
                called_as,
                self._make_call_id(),
            )
        else:
            self._item = _Text(_News(f"{'msg' if kind == 'message' else 'rs'}_{item_id}", index, events), kind)
        return said + self._item.begin()

    def _add(self, text: str, logprobs: Sequence[orjson.Fragment] = ()) -> bytes:
        assert self._item is not None, "a call begins with its name"
        return self._item.add(text, logprobs)

    def _end(self, status: str) -> bytes:
        assert self._item is not None
        said, whole = self._item.end(status)
        self.whole.append(whole)
        return said


class _News:
    """Makes the events of one item."""

    def __init__(self, item_id: str, index: int, events: ResponseEvents) -> None:
        self.item_id = item_id
        self._index = index
        self._events = events

    def show(self, kind: str, item: object) -> bytes:
        """An event with the whole item."""
        return self._events.frame(f"response.output_item.{kind}", output_index=self._index, item=item)

    def tell(self, kind: str, **fields: object) -> bytes:
        """An event with the item's id and place."""
        return self._events.frame(f"response.{kind}", item_id=self.item_id, output_index=self._index, **fields)


class _Item(Protocol):
    """An item that is being written. Each method returns the events of what it did."""

    kind: _Kind

    def begin(self) -> bytes: ...

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> bytes: ...

    def end(self, status: str) -> tuple[bytes, orjson.Fragment]:
        """Also returns the item, which is complete."""
        ...


class _Text:
    """A message or a reasoning item: one part, which is text."""

    def __init__(self, news: _News, kind: Literal["message", "reasoning"]) -> None:
        self.kind: _Kind = kind
        self._news = news
        self._is_message = kind == "message"
        self._part_type = "output_text" if self._is_message else "reasoning_text"
        self._texts: list[str] = []
        self._logprobs: list[orjson.Fragment] = []

    def begin(self) -> bytes:
        shown = self._news.show("added", self._whole("in_progress"))
        return shown + self._news.tell("content_part.added", content_index=0, part=self._part("", []))

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> bytes:
        self._texts.append(text)
        self._logprobs += logprobs
        return self._news.tell(
            f"{self._part_type}.delta", content_index=0, delta=text, **self._only_of_message(logprobs=logprobs)
        )

    def end(self, status: str) -> tuple[bytes, orjson.Fragment]:
        text, logprobs = "".join(self._texts), self._logprobs
        part = orjson.Fragment(orjson.dumps(self._part(text, logprobs)))
        item = orjson.Fragment(orjson.dumps(self._whole(status, part)))
        told = self._news.tell(
            f"{self._part_type}.done", content_index=0, text=text, **self._only_of_message(logprobs=logprobs)
        )
        told += self._news.tell("content_part.done", content_index=0, part=part)
        return told + self._news.show("done", item), item

    def _whole(self, status: str, *parts: orjson.Fragment) -> dict[str, Any]:
        own: dict[str, Any] = {"role": "assistant"} if self._is_message else {"summary": [], "encrypted_content": None}
        return {"id": self._news.item_id, "type": self.kind, "status": status, "content": parts, **own}

    def _part(self, text: str, logprobs: Sequence[orjson.Fragment]) -> dict[str, Any]:
        own = self._only_of_message(annotations=[], logprobs=logprobs)
        return {"type": self._part_type, "text": text, **own}

    def _only_of_message(self, **fields: object) -> dict[str, object]:
        return fields if self._is_message else {}


class _Call:
    """A function call, or a call of a custom tool, whose one argument is its input."""

    kind: _Kind = "call"

    def __init__(self, news: _News, called_as: CalledAs, call_id: str) -> None:
        self._news = news
        self._called_as = called_as
        self._call_id = call_id
        self._argument = StringArgument() if called_as.type == "custom" else None
        self._field, self._event = (
            ("arguments", "function_call_arguments") if self._argument is None else ("input", "custom_tool_call_input")
        )
        self._texts: list[str] = []

    def begin(self) -> bytes:
        return self._news.show("added", self._whole("in_progress", ""))

    def add(self, text: str, logprobs: Sequence[orjson.Fragment]) -> bytes:
        added = text if self._argument is None else self._argument.push(text)
        if not added:
            return b""
        self._texts.append(added)
        return self._news.tell(f"{self._event}.delta", delta=added)

    def end(self, status: str) -> tuple[bytes, orjson.Fragment]:
        text = "".join(self._texts)
        item = orjson.Fragment(orjson.dumps(self._whole(status, text)))
        named = {"name": self._called_as.name} if self._argument is None else {}
        told = self._news.tell(f"{self._event}.done", **{self._field: text}, **named)
        return told + self._news.show("done", item), item

    def _whole(self, status: str, text: str) -> dict[str, Any]:
        called_as = self._called_as
        item = {
            "id": self._news.item_id,
            "type": f"{called_as.type}_call" if self._argument is None else "custom_tool_call",
            "status": status,
            "call_id": self._call_id,
            "name": called_as.name,
            self._field: text,
        }
        return item if called_as.namespace is None else {**item, "namespace": called_as.namespace}
