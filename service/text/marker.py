"""Finds one fixed text in text that arrives in pieces."""

from __future__ import annotations


class Marker:
    """Holds back only the longest suffix of the text that is a prefix of the marker."""

    def __init__(self, text: str) -> None:
        assert text
        self._text = text
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text before the marker that is safe to use, and the text after the marker; None: it has not come yet."""
        text = self._held + text
        before, found, after = text.partition(self._text)
        if found:
            self._held = ""
            return before, after
        safe = len(text) - self._beginning_at_end(text)
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """The text that was held back, when no more can come."""
        held, self._held = self._held, ""
        return held

    def _beginning_at_end(self, text: str) -> int:
        for length in range(min(len(self._text) - 1, len(text)), 0, -1):
            if text.endswith(self._text[:length]):
                return length
        return 0
