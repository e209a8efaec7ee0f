"""The answer of the Responses API: the events of a stream, or the whole response."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import orjson

from service.api.answers.call_ids import new_call_id
from service.api.answers.choice_text import Piece, ScoredToken
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.response_events import ResponseEvents
from service.api.answers.response_items import MessageLogprob, OutputItems
from service.api.answers.sse_frames import KEEP_ALIVE
from service.api.answers.token_logprobs import TokenNames, chat_logprobs
from service.api.calls.response_call import ResponseCall
from service.core.request import FinishReason
from service.errors import RequestError
from service.protocol.responses import Status
from service.text.chat_output import merged
from service.text.tool_calls import TextDelta

_FAULTS = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""HTTP status -> OpenAI's code of a failed response; any other status is a server error."""
_BEGINS: Sequence[tuple[str, Status]] = (("created", "in_progress"), ("in_progress", "in_progress"))
_BACKGROUND_BEGINS: Sequence[tuple[str, Status]] = (
    ("created", "queued"),
    ("queued", "queued"),
    ("in_progress", "in_progress"),
)
"""The first events of a background response, and the status that each shows."""


class ResponseAnswer:
    """An `AnswerForm`.

    keep: called on the event loop with the JSON of a streamed response when it ends. A response that is not streamed is
    what `whole` returns.
    """

    keep_alive = KEEP_ALIVE
    around_text: tuple[bytes, bytes] | None = None  # each frame has a sequence number

    def __init__(
        self, call: ResponseCall, generation: Generation, is_stored: bool, keep: Callable[[bytes], None]
    ) -> None:
        prepared = call.prepared
        self._generation = generation
        self._names = TokenNames(prepared.model.tokenizer)
        self._num_logprobs = prepared.checked.logprobs
        self._keep = keep
        self._is_in_background = bool(call.fields.background)
        self._asked = asked_for(call, is_stored)
        self._events = ResponseEvents()
        self._items = OutputItems(
            prepared.head.call_id, call.tools.called_as, partial(new_call_id, prepared.tool_style), self._events
        )
        self._num_scored = 0
        self._held: list[ScoredToken] = []  # tokens that are not yet known to be content or not
        self._num_said = 0  # complete messages so far
        self._says = False  # whether the last classified token was content
        self._finish_reason = FinishReason.STOP
        self.writes_logprobs = self._num_logprobs is not None

    def begin(self) -> bytes:
        return b"".join(
            [
                self._events.frame(f"response.{kind}", response=orjson.Fragment(self._json(status)))
                for kind, status in (_BACKGROUND_BEGINS if self._is_in_background else _BEGINS)
            ]
        )

    def frame(self, piece: Piece) -> bytes:
        deltas = [TextDelta(piece.text)] if piece.text else merged(piece.deltas)
        self._num_scored += len(piece.scored)
        told = self._items.push(deltas, self._logprobs(piece.scored))
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            told += self._items.finish(piece.finish_reason, call_is_cut=piece.call_is_cut)
        return told

    def num_logprobs(self, piece: Piece) -> int:
        """The last event repeats all of them."""
        num_told_again = 0 if piece.finish_reason is None else self._num_scored
        return (len(piece.scored) + num_told_again) * ((self._num_logprobs or 0) + 1)

    def end(self, error: RequestError | None = None) -> bytes:
        if error is not None:
            return self._failed(error)
        status = self._status()
        response = self._json(status)
        self._keep(response)
        return self._events.frame(f"response.{status}", response=orjson.Fragment(response))

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        (choice,) = choices
        self._items.push(
            [TextDelta(choice.text)] if choice.text else merged(choice.deltas), self._logprobs(choice.scored)
        )
        self._items.finish(choice.finish_reason, call_is_cut=choice.call_is_cut)
        self._finish_reason = choice.finish_reason
        return self._json(self._status()).decode()

    def failed(self, error: RequestError) -> bytes:
        """The JSON of a response that has failed with this error."""
        return self._json("failed", error)

    def stopped(self) -> bytes:
        """The last events of a response that is cancelled, deleted, or evicted from the store."""
        told = self._events.frame("error", code="response_cancelled", message="The response was cancelled.", param=None)
        return told + self._events.frame("response.failed", response=orjson.Fragment(self.unfinished("cancelled")))

    def unfinished(self, status: Literal["queued", "in_progress", "cancelled"]) -> bytes:
        """The JSON of a response without output: it has not begun, or was cancelled."""
        return self._json(status)

    def _failed(self, error: RequestError) -> bytes:
        told = self._events.frame("error", code=error.code, message=error.message, param=error.param)
        response = self.failed(error)
        self._keep(response)
        return told + self._events.frame("response.failed", response=orjson.Fragment(response))

    def _status(self) -> Status:
        return "incomplete" if self._finish_reason is FinishReason.LENGTH else "completed"

    def _json(self, status: Status, error: RequestError | None = None) -> bytes:
        has_ended = status in ("completed", "incomplete")
        usage = response_usage(self._generation.usage_fields()) if has_ended else None
        return response_json(self._asked, status, self._items.whole, usage, error)

    def _logprobs(self, scored: Sequence[ScoredToken]) -> list[MessageLogprob]:
        """Of the tokens that turn out to be content. Tokens between two runs of content end a message."""
        logprobs = []
        for token in scored:
            if token.is_content is not False:
                self._held.append(token)
            if token.is_content is not None:
                content, self._held = (self._held if token.is_content else []), []
                self._num_said += self._says and not token.is_content
                self._says = token.is_content
                entries = chat_logprobs(self._names, content)["content"]
                logprobs += [MessageLogprob(self._num_said, orjson.Fragment(orjson.dumps(each))) for each in entries]
        return logprobs


def response_json(
    asked: bytes,
    status: Status,
    output: Sequence[orjson.Fragment] = (),
    usage: dict[str, Any] | None = None,
    error: RequestError | None = None,
) -> bytes:
    """The whole response. asked: from `asked_for`."""
    fault = None
    if error is not None:
        fault = {"code": _FAULTS.get(error.status, "server_error"), "message": error.message}
    come_of_it = {
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "error": fault,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": usage,
    }
    return asked[:-1] + b"," + orjson.dumps(come_of_it)[1:]


def response_usage(fields: dict[str, Any]) -> dict[str, Any]:
    """Converts the usage fields of a finished chat."""
    return {
        "input_tokens": fields["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": _detail(fields, "prompt", "cached_tokens"), "cache_write_tokens": 0},
        "output_tokens": fields["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": _detail(fields, "completion", "reasoning_tokens")},
        "total_tokens": fields["total_tokens"],
    }


def _detail(fields: dict[str, Any], of: str, name: str) -> int:
    return int((fields.get(f"{of}_tokens_details") or {}).get(name, 0))


def asked_for(call: ResponseCall, is_stored: bool) -> bytes:
    """The part of the response that does not change: the JSON of the client's parameters, with defaults for those that
    it did not give."""
    fields, prepared = call.fields, call.prepared
    defaults, text, reasoning = prepared.model.defaults, fields.text, fields.reasoning
    return orjson.dumps(
        {
            "id": prepared.head.call_id,
            "object": "response",
            "created_at": prepared.head.created,
            "model": prepared.checked.model,
            "background": bool(fields.background),
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": fields.max_tool_calls,
            "metadata": fields.metadata or {},
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": fields.previous_response_id,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
            "safety_identifier": fields.safety_identifier,
            "service_tier": prepared.checked.answered_tier or "default",
            "store": is_stored,
            "temperature": defaults.temperature if fields.temperature is None else fields.temperature,
            "text": {
                "format": {"type": "text"}
                if text is None or text.format is None
                else text.format.model_dump(exclude_unset=True, by_alias=True),
                "verbosity": "medium",
            },
            "tool_choice": fields.tool_choice or "auto",
            "tools": call.tools.echoed,
            "top_logprobs": fields.top_logprobs or 0,
            "top_p": defaults.top_p if fields.top_p is None else fields.top_p,
            "truncation": fields.truncation or "disabled",
            "user": fields.user,
        }
    )
