"""Fill-in-the-middle prompts (FIM), as the models that were trained on them expect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial

from service.text.any_of import AnyOf
from service.text.tokenizer import Tokenizer


class Part(Enum):
    """Where the request's texts go. CONTINUED: without the space that the tokenizer puts before each text."""

    PREFIX = auto()
    SUFFIX = auto()
    CONTINUED_SUFFIX = auto()


_FORMS: tuple[tuple[str | Part, ...], ...] = (
    ("<|fim_prefix|>", Part.PREFIX, "<|fim_suffix|>", Part.SUFFIX, "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", Part.PREFIX, "<fim_suffix>", Part.SUFFIX, "<fim_middle>"),  # StarCoder 1 and 2, Granite Code
    ("<fim-prefix>", Part.PREFIX, "<fim-suffix>", Part.SUFFIX, "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", Part.PREFIX, "<｜fim▁hole｜>", Part.SUFFIX, "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek-Coder spells so
    ("<[fim-suffix]>", Part.SUFFIX, "<[fim-prefix]>", Part.PREFIX, "<[fim-middle]>"),  # Seed-Coder
    ("▁<PRE>", Part.PREFIX, "▁<SUF>", Part.CONTINUED_SUFFIX, "▁<MID>"),  # CodeLlama
    ("[SUFFIX]", Part.SUFFIX, "[PREFIX]", Part.PREFIX),  # Codestral
)
_ENDS = ("▁<EOT>", "<|endoftext|>", "<|file_separator|>", "<|file_sep|>", "<file_sep>", "<|fim_pad|>", "<fim_pad>")
"""Tokens that these models write after a middle. Not all are among the tokens that end a chat's turn."""
_CUT = "\udfff"
"""Cannot occur in text that was decoded from UTF-8."""
_BEFORE = "\ue000"
"""In no vocabulary: a byte-fallback tokenizer spells it with three bytes, which never merge with others."""


class Infill:
    """Made by `infill_of`. Any thread."""

    def __init__(self, tokenizer: Tokenizer, form: tuple[str | Part, ...]) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._before = [] if tokenizer.token_bytes is not None else self._ids(_BEFORE)
        self._marks = AnyOf(
            [
                *(tokenizer.added_tokens[i] for i in tokenizer.special_ids),
                *(spelled for each in form if isinstance(each, str) for spelled in (each, each.replace("▁", " "))),
            ]
        )

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens at which the middle ends: those that these models write there, and their FIM marks."""
        marks = (each for each in self._form if isinstance(each, str))
        ids = (self._tokenizer.id_of(each) for each in (*_ENDS, *marks))
        return frozenset(each for each in ids if each is not None)

    def encode(self, prefix: str, suffix: str, *, add_special_tokens: bool, check: Callable[[int], None]) -> list[int]:
        """Ids of the model's FIM marks and of prefix and suffix, which are always plain text, even if they look like
        marks.

        add_special_tokens, check and errors: see `Tokenizer.encode`.
        """
        ids = self._tokenizer.encode("", add_special_tokens=add_special_tokens)
        for part in self._form:
            if isinstance(part, str):
                mark = self._tokenizer.id_of(part)
                assert mark is not None
                ids.append(mark)
                continue
            is_continued = part is Part.CONTINUED_SUFFIX
            for piece in self._pieces(prefix if part is Part.PREFIX else suffix):
                check(len(ids))
                so_far = partial(_check_all, check, len(ids))
                ids += self._continued(piece, so_far) if is_continued else self._ids(piece, so_far)
                is_continued = True
        check(len(ids))
        return ids

    def _ids(self, text: str, check: Callable[[int], None] | None = None) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, check=check)

    def _continued(self, text: str, check: Callable[[int], None]) -> list[int]:
        """Encoded as in the middle of a text: without the space that some tokenizers put before a text
        (SentencePiece)."""
        if not self._before:
            return self._ids(text, check)
        ids = self._ids(_BEFORE + text, check)
        assert ids[: len(self._before)] == self._before
        return ids[len(self._before) :]

    def _pieces(self, text: str) -> Iterator[str]:
        """The text in pieces none of which contains a mark: what looks like one comes character by character."""
        cut = self._marks.replace(text, lambda mark: _CUT.join(("", *mark, "")))
        return filter(None, cut.split(_CUT))


def _check_all(check: Callable[[int], None], num_before: int, num_tokens: int) -> None:
    check(num_before + num_tokens)


def infill_of(tokenizer: Tokenizer) -> Infill | None:
    """None if the vocabulary has no FIM marks that we know, or not all texts can be encoded."""
    if not tokenizer.works_on_bytes:
        return None
    for form in _FORMS:
        if all(tokenizer.id_of(mark) is not None for mark in form if isinstance(mark, str)):
            return Infill(tokenizer, form)
    return None
