"""Tokenizes a long text piece by piece: memory does not grow with the text, and it can stop between pieces.

As a whole a text takes up to 300 bytes of memory per character: 8 MB of digits took 3 GB, which malloc then kept. A
text may be cut where the tokenizer's own pre-tokenizer splits it, since no token spans such a place. It is cut after a
letter or digit and before white space or punctuation, so that no match of the pre-tokenizer can run on over the cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from service.errors import HeadraceError

PIECE_CHARACTERS = 128 * 1024
MOST_UNDIVIDED = 512 * 1024
"""The most characters without a place to cut that are tokenized at once: a second, and 200 MB if each is a word of its
own."""
MOST_WHOLE = 1024 * 1024
"""The same for tokenizers whose texts cannot be cut: they take less memory, and a prompt of 250,000 tokens must fit."""
_CUT_BEFORE = ' \t\r\n,;:"(){}\u3001\u3002\uff0c\uff1a\uff1b\uff01\uff1f'
_MARGIN = 64
"""Characters after a cut that must have been seen: how far a pre-tokenizer may look ahead."""
_MAX_TRIES = 16
_PARTS_TEXT = frozenset({"ByteLevel", "Digits", "Punctuation", "Split"})


def encode_unlocked(tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Ids of `text`. The library's `encode` would hold the interpreter's lock: 1.6 s for 2 MB of text, during which
    neither the event loop nor the engine could run. This call does not, and takes half as long."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoding.ids)


class UndividedTextTooLong(HeadraceError):
    """The text is too long to be tokenized at once, and cannot be cut."""


class PieceEncoder:
    """Encodes long texts with `tokenizer`, which must not change any more. May be used from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._last_cut = _last_cut(tokenizer)
        self._most_undivided = MOST_WHOLE if self._last_cut is None else MOST_UNDIVIDED

    def encode(self, text: str, *, add_special_tokens: bool, check: Callable[[int], None] | None = None) -> list[int]:
        """The ids that the tokenizer gives for the whole text.

        check: called between the pieces of a long text with the number of ids so far; may raise. Raises
        UndividedTextTooLong.
        """
        if len(text) <= PIECE_CHARACTERS:
            return encode_unlocked(self._tokenizer, text, add_special_tokens=add_special_tokens)
        around = self._around() if add_special_tokens else ([], [])
        if self._last_cut is None or around is None:
            return self._encode_whole(text, add_special_tokens=add_special_tokens)
        return [*around[0], *self._encode_pieces(text, check), *around[1]]

    def _encode_whole(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > self._most_undivided:
            raise UndividedTextTooLong(
                f"a text of {len(text)} characters in which there is no place to cut it cannot be tokenized; the limit "
                f"is {self._most_undivided}"
            )
        return encode_unlocked(self._tokenizer, text, add_special_tokens=add_special_tokens)

    def _encode_pieces(self, text: str, check: Callable[[int], None] | None) -> list[int]:
        ids: list[int] = []
        start, length = 0, PIECE_CHARACTERS
        while start + length < len(text):
            first = self._first_piece(text[start : start + length])
            if first is None and length < MOST_UNDIVIDED:
                length *= 2
                continue
            if first is None:
                break
            ids += first[0]
            start, length = start + first[1], PIECE_CHARACTERS
            if check is not None:
                check(len(ids))
        return ids + self._encode_whole(text[start:], add_special_tokens=False)

    def _first_piece(self, text: str) -> tuple[list[int], int] | None:
        """The ids of the longest prefix that can be cut off, and its number of characters; None if there is none."""
        assert self._last_cut is not None
        found = self._last_cut.match(text, 0, len(text) - _MARGIN)
        if found is None:
            return None
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        for _ in range(_MAX_TRIES):
            if found is None:
                return None
            end = found.end()
            num_ids = _num_ids_before(encoding, end)
            if num_ids is not None:
                return encoding.ids[:num_ids], end
            found = self._last_cut.match(text, 0, end - 1)
        return None

    def _around(self) -> tuple[list[int], list[int]] | None:
        """The special tokens before and after a text; None if they cannot be told from the text's own."""
        bare = encode_unlocked(self._tokenizer, "a", add_special_tokens=False)
        whole = encode_unlocked(self._tokenizer, "a", add_special_tokens=True)
        starts = [at for at in range(len(whole)) if whole[at : at + len(bare)] == bare]
        return (whole[: starts[0]], whole[starts[0] + len(bare) :]) if bare and len(starts) == 1 else None


def _num_ids_before(encoding: tokenizers.Encoding, cut: int) -> int | None:
    """The number of ids of the characters before `cut`; None if the pre-tokenizer does not split the text there."""
    num_ids = encoding.char_to_token(cut - 1)
    if num_ids is None:
        return None
    while num_ids < len(encoding) and (place := encoding.token_to_chars(num_ids)) and place[0] < cut:
        num_ids += 1
    if num_ids == len(encoding) or encoding.token_to_word(num_ids - 1) == encoding.token_to_word(num_ids):
        return None
    return num_ids


def _last_cut(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Matches a text up to the last place where it may be cut; None for a tokenizer whose texts cannot be cut.

    They can be cut if nothing but the pre-tokenizer's pattern looks beyond a piece: a normalizer that prepends text, or
    a token that swallows the white space beside it, would act on each piece. Added tokens are never cut.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    normalizer = _parts(tokenizer.normalizer)
    pre_tokenizer = _parts(tokenizer.pre_tokenizer)
    is_plain = all(part["type"] in {"NFC", "NFD", "NFKC", "NFKD"} for part in normalizer) and all(
        part["type"] in _PARTS_TEXT and not part.get("add_prefix_space") for part in pre_tokenizer
    )
    if not is_plain or not pre_tokenizer or any(token.lstrip or token.rstrip for token in added):
        return None
    inside = {behind for token in added for behind in re.findall(r"[^\W_](?=(\W))", token.content)}
    before = "".join(character for character in _CUT_BEFORE if character not in inside)
    return re.compile(rf"(?s:.*)(?<=[^\W_])(?=[{re.escape(before)}])") if before else None


def _parts(component: Normalizer | PreTokenizer | None) -> list[dict[str, object]]:
    """A normalizer or pre-tokenizer as `tokenizer.json` describes it, a sequence as its members."""
    if component is None:
        return []
    described = json.loads(component.__getstate__())  # the library's own description
    members = described.get("pretokenizers") or described.get("normalizers")
    return list(members) if members is not None else [described]
