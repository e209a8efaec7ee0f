"""A chat model's output, separated into reasoning, content and tool calls while it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.text.reasoning import ReasoningSplitter
from service.text.tool_calls import CallDelta, TextDelta, ToolRouter


class ReasoningDelta(NamedTuple):
    text: str


OutputDelta = ReasoningDelta | TextDelta | CallDelta


class ChatOutput:
    """The output of one choice. Without a splitter there is no reasoning, without a router there are no calls.

    shows_reasoning: else the reasoning is dropped.
    """

    def __init__(
        self, splitter: ReasoningSplitter | None, router: ToolRouter | None, *, shows_reasoning: bool = True
    ) -> None:
        self._splitter = splitter
        self._router = router
        self._shows_reasoning = shows_reasoning
        self.has_calls = False

    @property
    def is_thinking(self) -> bool:
        return self._splitter is not None and self._splitter.is_thinking

    @property
    def is_in_call(self) -> bool:
        """Whether a call has begun and is not complete."""
        return self._router is not None and self._router.is_in_call

    @property
    def may_say(self) -> bool:
        """Whether the next text may be content: not during reasoning or a call."""
        return not self.is_thinking and not (self._router is not None and self._router.is_calling)

    @property
    def says(self) -> bool:
        """Whether the last text may be content: not the blank lines after the reasoning either."""
        return self.may_say and not (self._splitter is not None and self._splitter.is_between)

    def push(self, text: str) -> list[OutputDelta]:
        if self._splitter is None:
            return self._route(text)
        reasoning, content = self._splitter.push(text)
        return [*self._thought(reasoning), *self._route(content)]

    def flush(self) -> list[OutputDelta]:
        """The text that was held back, after the last piece."""
        deltas: list[OutputDelta] = []
        if self._splitter is not None:
            reasoning, content = self._splitter.flush()
            deltas += [*self._thought(reasoning), *self._route(content)]
        if self._router is not None:
            deltas += self._noted(self._router.flush())
        return deltas

    def _route(self, text: str) -> list[OutputDelta]:
        if not text:
            return []
        if self._router is None:
            return [TextDelta(text)]
        return self._noted(self._router.push(text))

    def _noted(self, deltas: list[TextDelta | CallDelta]) -> list[OutputDelta]:
        self.has_calls = self.has_calls or any(isinstance(delta, CallDelta) for delta in deltas)
        return [delta for delta in deltas if not isinstance(delta, TextDelta) or delta.text]

    def _thought(self, text: str) -> list[OutputDelta]:
        return [ReasoningDelta(text)] if text and self._shows_reasoning else []


def merged(deltas: Sequence[OutputDelta]) -> list[OutputDelta]:
    """Adjacent deltas of one kind merged, so that tokens that come together go out together."""
    runs: list[list[OutputDelta]] = []
    for delta in deltas:
        begins_call = isinstance(delta, CallDelta) and delta.name is not None
        if runs and type(runs[-1][0]) is type(delta) and not begins_call:
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return [_joined(run) for run in runs]


def _joined(run: Sequence[OutputDelta]) -> OutputDelta:
    first = run[0]
    if isinstance(first, CallDelta):
        return first._replace(arguments="".join([each.arguments for each in run if isinstance(each, CallDelta)]))
    return first._replace(text="".join([each.text for each in run if not isinstance(each, CallDelta)]))
