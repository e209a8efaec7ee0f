"""What was checked, the result, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from service.settings.settings import Settings


class Verdict(StrEnum):
    """fault: the service would not start, or not serve; warning: it would, but not as intended."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """mend: what to do, as a sentence; empty if there is nothing to do."""

    subject: str
    verdict: Verdict
    found: str
    mend: str = ""

    def __post_init__(self) -> None:
        assert (self.verdict is Verdict.OK) == (not self.mend), "who complains says what to do"


Check = Callable[[Settings], Iterator[Finding]]


def ok(subject: str, found: str) -> Finding:
    return Finding(subject, Verdict.OK, found)


def warning(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.WARNING, found, mend)


def fault(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.FAULT, found, mend)
