"""Record of one streaming request: when its chunks came, how many tokens they had, how it ended."""

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(slots=True)
class StreamRecord:
    """Facts about one request; times in seconds on `time.perf_counter`'s clock.

    scheduled_s: when it was due; latencies count from there. sent_s: when its last byte was given to the socket.
    chunk_times: when each chunk with tokens came. end_s: when the last chunk with choices came (if the request failed:
    when it failed). output_tokens: the server's usage if it sends one, else the number of token ids, else of chunks;
    tokens_from says which. error: empty if the request succeeded, else `kind: detail`.
    """

    request_id: int
    scheduled_s: float
    sent_s: float = 0.0
    end_s: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens_from: str = "chunks"
    requested_tokens: int = 0
    finish_reason: str = ""
    error: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the request ended without an error."""
        return not self.error

    @property
    def error_kind(self) -> str:
        """The kind of error, such as `timeout`, `http_503`, `disconnected_mid_stream`; empty if there was none."""
        return self.error.partition(":")[0]

    @property
    def latency_s(self) -> float:
        """Seconds from when it was due to its end."""
        return self.end_s - self.scheduled_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from when it was due to the first chunk with tokens; None if none came."""
        return self.chunk_times[0] - self.scheduled_s if self.chunk_times else None

    @property
    def time_per_output_token_s(self) -> float | None:
        """(latency - TTFT) / (output tokens - 1), in seconds; None with fewer than two tokens."""
        first = self.time_to_first_token_s
        if first is None or self.output_tokens < 2:
            return None
        return (self.latency_s - first) / (self.output_tokens - 1)

    @property
    def inter_token_latencies_s(self) -> list[float]:
        """Gaps between chunks with tokens, in seconds. A server that coalesces tokens has fewer and longer ones."""
        return [later - earlier for earlier, later in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    @property
    def normalized_latency_s(self) -> float | None:
        """Seconds of latency / output tokens (ORCA's and vLLM's figure of merit); None without output."""
        return self.latency_s / self.output_tokens if self.output_tokens else None


class EventReader:
    """Reads the events of one completions or chat stream into a record."""

    __slots__ = ("_record", "done")

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self.done = False

    def read(self, event: bytes, now: float) -> None:
        """Read the data of one event that came at `now`. An error event sets the record's `error`."""
        if event == b"[DONE]":
            self.done = True
            return
        chunk = orjson.loads(event)
        record = self._record
        choices = chunk.get("choices")
        if choices:
            self._read_choices(choices, now)
        usage = chunk.get("usage")
        if usage:
            self._read_usage(usage)
        if "error" in chunk:
            record.error = f"stream_error: {_error_detail(chunk['error'])}"

    def finish(self) -> None:
        """Call when the stream is over: sets the token count if no usage came."""
        record = self._record
        if record.tokens_from == "chunks":
            record.output_tokens = sum(record.chunk_tokens)
            record.tokens_from = "token_ids" if record.token_ids else "chunks"

    def _read_choices(self, choices: list[dict[str, Any]], now: float) -> None:
        record = self._record
        record.end_s = now
        num_tokens = 0
        for choice in choices:
            token_ids = choice.get("token_ids")
            if token_ids:
                record.token_ids.extend(token_ids)
                num_tokens += len(token_ids)
            elif _carries_tokens(choice):
                num_tokens += 1
            if choice.get("finish_reason"):
                record.finish_reason = choice["finish_reason"]
        if num_tokens:
            record.chunk_times.append(now)
            record.chunk_tokens.append(num_tokens)

    def _read_usage(self, usage: dict[str, Any]) -> None:
        record = self._record
        record.input_tokens = usage.get("prompt_tokens", 0)
        record.output_tokens = usage.get("completion_tokens", 0)
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        record.tokens_from = "usage"


def _carries_tokens(choice: dict[str, Any]) -> bool:
    """Whether the chunk has output. An empty text counts unless it comes with the finish reason: a token's text may be
    held back or unprintable. A chat delta that is empty or has only a role does not count.
    """
    delta = choice.get("delta")
    if delta is not None:
        return any(value for name, value in delta.items() if name != "role")
    return bool(choice.get("text")) or not choice.get("finish_reason")


def _error_detail(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or error.get("message"))[:200]
    return str(error)[:200]
