"""Finds any of many texts in a long one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby, takewhile

_PIECE = 64 * 1024
"""Characters that are searched per call: the regex engine holds the interpreter's lock for some milliseconds."""


class AnyOf:
    """A set of texts. Immutable; any thread.

    The texts form one prefix tree, so that each position is compared with few characters however many texts there are:
    a model may have a thousand special tokens that begin alike.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        distinct = sorted(set(filter(None, texts)))
        self._pattern = re.compile(_tree(distinct) if distinct else r"(?!)")
        self._longest = max(map(len, distinct), default=1)

    def replace(self, text: str, replacement: Callable[[str], str]) -> str:
        """`text` with the longest match at the leftmost position replaced, and so on after it."""
        parts: list[str] = []
        copied, start = 0, 0
        while start < len(text):
            match = self._pattern.search(text, start, start + _PIECE + self._longest - 1)
            if match is None or match.start() >= start + _PIECE:  # beyond, the piece's end may cut a longer match
                start += _PIECE
                continue
            parts += (text[copied : match.start()], replacement(match[0]))
            copied = start = match.end()
        return "".join((*parts, text[copied:])) if parts else text


def _tree(texts: list[str]) -> str:
    """A regex that matches the longest of the texts, which are sorted and distinct; the first may be empty."""
    first, last = texts[0], texts[-1]
    prefix = "".join([a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))])
    rests = [text[len(prefix) :] for text in texts]
    branches = [_tree(list(group)) for _, group in groupby(filter(None, rests), key=lambda rest: rest[0])]
    if not branches:
        return re.escape(prefix)
    return f"{re.escape(prefix)}(?:{'|'.join(branches)}){'' if rests[0] else '?'}"
