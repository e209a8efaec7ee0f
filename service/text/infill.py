"""A text with a hole, as models that were trained to fill it (fill in the middle) are given it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from service.text.any_of import AnyOf
from service.text.tokenizer import Tokenizer

_PREFIX, _SUFFIX = 0, 1
_FORMS: tuple[tuple[str | int, ...], ...] = (
    ("<|fim_prefix|>", _PREFIX, "<|fim_suffix|>", _SUFFIX, "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", _PREFIX, "<fim_suffix>", _SUFFIX, "<fim_middle>"),  # StarCoder 1 and 2, Granite Code
    ("<｜fim▁begin｜>", _PREFIX, "<｜fim▁hole｜>", _SUFFIX, "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek-Coder spells so
    ("[SUFFIX]", _SUFFIX, "[PREFIX]", _PREFIX),  # Codestral
)
_CUT = "\udfff"
"""In no text that came as UTF-8."""


class Infill:
    """Made by `infill_of`. Any thread."""

    def __init__(self, tokenizer: Tokenizer, form: tuple[str | int, ...]) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._marks = AnyOf(
            [
                *(tokenizer.added_tokens[i] for i in tokenizer.special_ids),
                *(each for each in form if isinstance(each, str)),
            ]
        )

    def encode(self, prefix: str, suffix: str, *, add_special_tokens: bool, check: Callable[[int], None]) -> list[int]:
        """Ids of what stands before and behind the hole, each plain text whatever it looks like, and the model's marks.

        add_special_tokens, check and what is raised: as of `Tokenizer.encode`.
        """
        ids = self._tokenizer.encode("", add_special_tokens=add_special_tokens)
        for part in self._form:
            if isinstance(part, str):
                mark = self._tokenizer.id_of(part)
                assert mark is not None
                ids.append(mark)
                continue
            for piece in self._pieces(prefix if part == _PREFIX else suffix):
                check(len(ids))
                so_far = partial(_check_all, check, len(ids))
                ids += self._tokenizer.encode(piece, add_special_tokens=False, check=so_far)
        check(len(ids))
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        """The text in pieces of which none holds a mark: what looks like one comes a character at a time."""
        cut = self._marks.replace(text, lambda mark: _CUT.join(("", *mark, "")))
        return filter(None, cut.split(_CUT))


def _check_all(check: Callable[[int], None], num_before: int, num_tokens: int) -> None:
    check(num_before + num_tokens)


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """None where the vocabulary has no marks for a hole that we know, or where a text cannot be tokenized in pieces:
    SentencePiece puts a space before each."""
    if tokenizer.token_bytes is None:
        return None
    for form in _FORMS:
        if all(tokenizer.id_of(mark) is not None for mark in form if isinstance(mark, str)):
            return Infill(tokenizer, form)
    return None
