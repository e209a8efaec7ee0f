"""The state of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson


class BatchStatus(StrEnum):
    """OpenAI's names."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OVER = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class InputError:
    """Why a batch cannot be run. line: from 1; None if no single line is at fault."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """client: name of the API key that owns it. Times are Unix seconds. output_file_id, error_file_id: chosen at
    creation; the files exist once the batch is over, and the id is then None if its file would be empty. becomes: the
    final status, set once no more lines will run; is_written: all results are on disk. num_failed: lines that were
    answered with an error."""

    batch_id: str
    client: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_file_id: str | None
    error_file_id: str | None
    output_expires_after_s: int | None = None
    metadata: Mapping[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    becomes: BatchStatus | None = None
    is_written: bool = False
    reached_at: Mapping[str, int] = field(default_factory=dict)
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0
    errors: tuple[InputError, ...] = ()

    @property
    def hex_id(self) -> str:
        """The id without its prefix."""
        return self.batch_id.rpartition("_")[2]

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def is_ending(self) -> bool:
        """Whether it runs no more lines, but is not over."""
        return self.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING)

    @property
    def num_lines_left(self) -> int:
        """Lines without an answer; 0 until the lines are counted."""
        return max(0, self.num_lines - self.num_completed - self.num_failed)

    def reaching(self, status: BatchStatus, now_s: int, **changes: Any) -> Batch:
        """The batch with this status, reached at `now_s` unless it was reached before."""
        return replace(self, status=status, reached_at={str(status): now_s, **self.reached_at}, **changes)

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @staticmethod
    def from_json(text: bytes | str) -> Batch:
        facts = orjson.loads(text)
        facts["status"] = BatchStatus(facts["status"])
        facts["becomes"] = None if facts["becomes"] is None else BatchStatus(facts["becomes"])
        facts["errors"] = tuple(InputError(**error) for error in facts["errors"])
        return Batch(**facts)
