"""A trace: the requests of a run with their arrival times and lengths, and the file formats for it.

Our format is JSONL, one `TraceRequest` per line without default values. Prompts of random token ids are not stored:
they follow from `prompt_seed`, so a trace is short and fits every vocabulary (see `prompts.py`).
"""

import csv
import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request to send.

    arrival_s: seconds after the start of the run. Not used in a later turn of a conversation: that turn is due
    `think_time_s` after the previous one has ended. prompt_len: new prompt tokens (in a conversation: of this turn).
    prefix_len: tokens before those that all requests of `prefix_group` share.
    """

    request_id: int
    arrival_s: float = 0.0
    prompt_len: int = 0
    output_len: int = 16
    prompt_seed: int = 0
    prefix_len: int = 0
    prefix_group: int = 0
    conversation_id: int | None = None
    turn: int = 0
    think_time_s: float = 0.0
    priority: int | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    prompt_text: str | None = None
    tools: bool = False

    @property
    def stream_id(self) -> tuple[bool, int]:
        """What must stay in one client process: the conversation, or the single request."""
        if self.conversation_id is None:
            return (False, self.request_id)
        return (True, self.conversation_id)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write our JSONL format. Floats keep every digit, so `read_trace` returns equal requests."""
    with path.open("w", encoding="utf-8") as file:
        for request in requests:
            file.write(json.dumps(_without_defaults(request)) + "\n")


def read_trace(path: Path, num_requests: int | None = None) -> list[TraceRequest]:
    """Read the first `num_requests` (default: all) of a trace file. Suffix and content decide the format.

    `.csv`: columns named in `_COLUMN_NAMES` (including BurstGPT's and the Azure LLM traces'). `.jsonl`: our format, or
    objects with those column names or a `prompt`. `.json`: a ShareGPT dump, of which the first exchange of each
    conversation is used, with lengths estimated at four characters per token, since there is no tokenizer here.
    Rows without a usable length are skipped. Raises ValueError if nothing is left, or for another suffix.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".json": _read_sharegpt}
    if path.suffix not in readers:
        raise ValueError(f"trace {path.name}: suffix must be one of {', '.join(readers)}")
    requests: list[TraceRequest] = []
    for request in readers[path.suffix](path):
        if num_requests is not None and len(requests) >= num_requests:
            break
        requests.append(request)
    if not requests:
        raise ValueError(f"trace {path.name} holds no usable request")
    return from_zero(requests)


def from_zero(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The requests, shifted so that the first arrives at 0."""
    first = min(request.arrival_s for request in requests)
    return [dataclasses.replace(request, arrival_s=request.arrival_s - first) for request in requests]


def with_arrivals(requests: Sequence[TraceRequest], arrival_times: Sequence[float]) -> list[TraceRequest]:
    """The requests with arrival times, in order: one per single request or first turn of a conversation."""
    times = iter(arrival_times)
    return [
        request if request.turn else dataclasses.replace(request, arrival_s=float(next(times))) for request in requests
    ]


def faster(requests: Sequence[TraceRequest], speed: float) -> list[TraceRequest]:
    """The requests with their arrival times divided by `speed` (2 is twice the rate)."""
    if speed <= 0:
        raise ValueError(f"trace speed must be above 0, not {speed}")
    return [dataclasses.replace(request, arrival_s=request.arrival_s / speed) for request in requests]


class _ColumnNames(NamedTuple):
    arrival: tuple[str, ...]
    prompt_len: tuple[str, ...]
    output_len: tuple[str, ...]


_COLUMN_NAMES = _ColumnNames(
    arrival=("arrival_s", "arrival", "timestamp", "time"),
    prompt_len=(
        "prompt_len",
        "request tokens",
        "contexttokens",
        "input_length",
        "input_tokens",
        "prompt_tokens",
    ),
    output_len=("output_len", "response tokens", "generatedtokens", "output_length", "output_tokens"),
)
_MILLISECOND_FIELD = "hash_ids"


def _without_defaults(request: TraceRequest) -> dict[str, Any]:
    values = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    defaults = {field.name: field.default for field in dataclasses.fields(request)}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _read_csv(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = (row for row in csv.DictReader(file))
        for request_id, row in enumerate(_usable(rows)):
            yield _from_columns(request_id, row)


def _read_jsonl(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        rows = (json.loads(line) for line in file if line.strip())
        for request_id, row in enumerate(_usable(rows)):
            yield _from_own_form(row) if "request_id" in row else _from_columns(request_id, row)


def _read_sharegpt(path: Path) -> Iterator[TraceRequest]:
    conversations = json.loads(path.read_text(encoding="utf-8"))
    exchanges = (entry.get("conversations") or entry.get("conversation") or [] for entry in conversations)
    texts = ((turns[0].get("value", ""), turns[1].get("value", "")) for turns in exchanges if len(turns) >= 2)
    usable = ((prompt, answer) for prompt, answer in texts if prompt and answer)
    for request_id, (prompt, answer) in enumerate(usable):
        yield TraceRequest(
            request_id,
            prompt_len=_estimated_tokens(prompt),
            output_len=_estimated_tokens(answer),
            prompt_text=prompt,
        )


def _estimated_tokens(text: str) -> int:
    return max(1, round(len(text) / 4))


def _usable(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        lowered = {name.strip().lower(): value for name, value in row.items() if name is not None}
        own_form = "request_id" in lowered
        if own_form or "prompt" in lowered or int(_column(lowered, _COLUMN_NAMES.output_len) or 0) > 0:
            yield lowered


def _from_own_form(row: Mapping[str, Any]) -> TraceRequest:
    ids = row.get("prompt_token_ids")
    return TraceRequest(**{**row, "prompt_token_ids": None if ids is None else tuple(ids)})


def _from_columns(request_id: int, row: Mapping[str, Any]) -> TraceRequest:
    prompt = row.get("prompt")
    token_ids = tuple(int(token) for token in prompt) if isinstance(prompt, list) else None
    text = prompt if isinstance(prompt, str) else None
    stated = _column(row, _COLUMN_NAMES.prompt_len)
    known_len = len(token_ids) if token_ids is not None else _estimated_tokens(text or "")
    return TraceRequest(
        request_id,
        arrival_s=_seconds(_column(row, _COLUMN_NAMES.arrival)) / (1000 if _MILLISECOND_FIELD in row else 1),
        prompt_len=max(1, int(stated)) if stated else known_len,
        output_len=int(_column(row, _COLUMN_NAMES.output_len) or 16),
        prompt_token_ids=token_ids,
        prompt_text=text,
    )


def _column(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _seconds(value: Any) -> float:
    if value is None:
        return 0.0
    try:
        return float(value)
    except ValueError:
        return datetime.datetime.fromisoformat(str(value)[:26]).timestamp()
