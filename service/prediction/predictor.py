"""The one question that is asked of every predictor."""

from __future__ import annotations

from typing import Protocol, TypeVar

Work = TypeVar("Work", contravariant=True)


class Predictor(Protocol[Work]):
    """Engine thread only, as are those who teach it."""

    def predicted_s(self, work: Work) -> float | None:
        """Seconds that the work is predicted to take; None before enough was seen to tell."""
        ...
