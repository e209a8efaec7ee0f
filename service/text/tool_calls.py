"""Routes a model's text to content and tool calls, in the style that its chat template taught it.

    hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call>, text between them (Hermes, Qwen)
    llama3_json  the whole answer is {"name": ..., "parameters": {...}}, several with ; between them
    mistral      [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], also where the marker has no text
    pythonic     the whole answer is [name(key=value), ...] (Llama 4, Olmo)

Only calls of tools that the client named are calls; everything else stays text. Nothing is kept to the end: a call's
name comes out when it is complete, its arguments as they are written (a Python argument when it is complete).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import StrEnum
from string import whitespace
from typing import NamedTuple, Protocol

from service.text.held_blank import HeldBlank
from service.text.json_call import JsonCall
from service.text.marker import Marker
from service.text.partial_call import CallStatus, PartialCall
from service.text.pythonic_call import PythonicCall

MISTRAL_MARKER = "[TOOL_CALLS]"


class ToolStyle(StrEnum):
    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    PYTHONIC = "pythonic"


class TextDelta(NamedTuple):
    text: str


class CallDelta(NamedTuple):
    """What is new in the call number `call_index`; `name` comes first, once."""

    call_index: int
    name: str | None
    arguments: str


ToolDelta = TextDelta | CallDelta


class ToolRouter(Protocol):
    """Belongs to one choice. is_calling: the last text was part of a call, or of what surrounds it. is_in_call: a call
    whose name is known has begun and is not complete."""

    @property
    def is_calling(self) -> bool: ...

    @property
    def is_in_call(self) -> bool: ...

    def push(self, text: str) -> list[ToolDelta]: ...

    def flush(self) -> list[ToolDelta]:
        """The text that was held back, after the last piece."""
        ...


def style_of_template(source: str) -> ToolStyle | None:
    """The style of tool calls in a chat template; None if the template knows no tools, or its style is unknown."""
    if "<tool_call>" in source:
        return ToolStyle.HERMES
    if MISTRAL_MARKER in source:
        return ToolStyle.MISTRAL
    if re.search(r'"parameters":|\'"parameters": \'|<\|python_tag\|>', source):
        return ToolStyle.LLAMA3_JSON
    if re.search(r"\[\w*func\w*1?\(|python(ic)? list", source):
        return ToolStyle.PYTHONIC
    return None


def make_router(style: ToolStyle, names: Collection[str]) -> ToolRouter:
    """names: of the tools that may be called."""
    match style:
        case ToolStyle.HERMES:
            return _MarkedCalls(names)
        case ToolStyle.LLAMA3_JSON:
            return _LeadingCalls(lambda: JsonCall(names), "<|python_tag|>", "", ";,")
        case ToolStyle.MISTRAL:
            return _LeadingCalls(lambda: JsonCall(names), MISTRAL_MARKER, "[", ",]")
        case ToolStyle.PYTHONIC:
            return _LeadingCalls(lambda: PythonicCall(names), "<|python_start|>", "[", ",]")


def _is_open(call: PartialCall | None) -> bool:
    return call is not None and call.status is CallStatus.OPEN


class _MarkedCalls:
    """Hermes: calls between markers, anywhere in the text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._open, self._close = Marker("<tool_call>"), Marker("</tool_call>")
        self._call: JsonCall | None = None
        self._in_block = False
        self._num_calls = 0
        self._blank = HeldBlank()  # dropped if a call follows

    @property
    def is_calling(self) -> bool:
        return self._call is not None or self._in_block

    @property
    def is_in_call(self) -> bool:
        return _is_open(self._call)

    def push(self, text: str) -> list[ToolDelta]:
        deltas: list[ToolDelta] = []
        rest: str | None = text
        while rest:
            if self._call is not None:
                rest = self._read_call(self._call, rest, deltas)
            elif self._in_block:
                _, rest = self._close.push(rest)
                self._in_block = rest is None
            else:
                before, rest = self._open.push(rest)
                self._say(before, deltas)
                if rest is not None:
                    self._call = JsonCall(self._names)
        return deltas

    def flush(self) -> list[ToolDelta]:
        held = self._open.flush()
        if self._call is not None and self._call.status is CallStatus.UNSURE:
            held = "<tool_call>" + self._call.text
        blank = self._blank.take()
        text = blank + held if held or not self._num_calls else ""
        return [TextDelta(text)] if text else []

    def _read_call(self, call: JsonCall, text: str, deltas: list[ToolDelta]) -> str:
        news, rest = call.push(text)
        if news.name is not None or news.arguments:
            self._blank.take()
            deltas.append(CallDelta(self._num_calls, news.name, news.arguments))
        if call.status is CallStatus.DONE:
            self._num_calls += 1
            self._call, self._in_block = None, True
        elif call.status is CallStatus.NO_CALL:
            self._call = None
            deltas.append(TextDelta(self._blank.take() + "<tool_call>" + call.text))
        return rest

    def _say(self, text: str, deltas: list[ToolDelta]) -> None:
        shown = self._blank.push(text)
        if shown:
            deltas.append(TextDelta(shown))


class _LeadingCalls:
    """Calls that are the whole answer: after `marker`, which may be missing, and `opening`. between: characters that
    may stand between two calls or after the last.

    From the first text that does not fit, everything is text; if that comes before the first call, so is everything
    before it.
    """

    def __init__(self, make_call: Callable[[], PartialCall], marker: str, opening: str, between: str) -> None:
        self._make_call = make_call
        self._marker = marker
        self._opening = opening
        self._between = between
        self._head: list[str] = []  # what was read before the first call, until it is certain to be one
        self._unread = ""  # its end, which may become the marker or the opening
        self._is_marked = False
        self._is_open = False
        self._is_text = False
        self._call: PartialCall | None = None
        self._num_calls = 0

    @property
    def is_calling(self) -> bool:
        return self._is_open and not self._is_text

    @property
    def is_in_call(self) -> bool:
        return _is_open(self._call)

    def push(self, text: str) -> list[ToolDelta]:
        deltas: list[ToolDelta] = []
        while text and not self._is_text:
            if self._call is not None:
                text = self._read_call(self._call, text, deltas)
            elif not self._is_open:
                text = self._read_head(text)
            else:
                text = self._read_between(text)
        if text:
            deltas.append(TextDelta(text))
        return deltas

    def flush(self) -> list[ToolDelta]:
        unsure = self._call.text if self._call is not None and self._call.status is CallStatus.UNSURE else ""
        text = "" if self._is_text else "".join(self._head) + unsure
        return [TextDelta(text)] if text else []

    def _read_head(self, text: str) -> str:
        """The text after the marker and the opening; all of it if they are not there."""
        self._head.append(text)
        seen = (self._unread + text).lstrip()
        if not self._is_marked and seen.startswith(self._marker):
            self._is_marked, seen = True, seen.removeprefix(self._marker).lstrip()
        self._unread = seen
        if not seen or (not self._is_marked and self._marker.startswith(seen)):
            return ""
        head = "".join(self._head)
        if not seen.startswith(self._opening or "{"):
            self._head, self._is_text = [], True
            return head
        rest = seen.removeprefix(self._opening)
        self._head = [head[: len(head) - len(rest)]]
        self._is_open, self._call = True, self._make_call()
        return rest

    def _read_call(self, call: PartialCall, text: str, deltas: list[ToolDelta]) -> str:
        news, rest = call.push(text)
        if news.name is not None or news.arguments:
            self._head.clear()
            deltas.append(CallDelta(self._num_calls, news.name, news.arguments))
        if call.status is CallStatus.DONE:
            self._num_calls += 1
            self._call = None
        elif call.status is CallStatus.NO_CALL:
            self._is_text, self._call = True, None
            rest = "".join(self._head) + call.text + rest
            self._head.clear()
        return rest

    def _read_between(self, text: str) -> str:
        """Skips what may stand between calls; what follows is the next call or text."""
        rest = text.lstrip(self._between + whitespace)
        if rest:
            self._call = self._make_call()
        return rest
