"""Tokenizes a text in parts: its ids, and which of them are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile

from service.finetune.training_text import TrainingText
from service.text.tokenizer import Tokenizer

_MARKS_OF_A_SPACE = ("\u2581", "\u0120")  # of SentencePiece and GPT-2


class PartEncoder:
    """For one tokenizer. Any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Such a tokenizer would add a space at the beginning of each part.
        (first, *_) = tokenizer.encode("a", add_special_tokens=False)
        self._puts_space_first = tokenizer.token_text(first).startswith(_MARKS_OF_A_SPACE)

    def encode(self, text: TrainingText) -> tuple[list[int], list[bool]]:
        """The ids, and for each whether it is trained on; cut after the last one that is. Raises UndividedTextTooLong.

        Parts are tokenized separately, as at inference: the model's tokens start where the prompt ends, even if a
        longer token would span that border.
        """
        parts = self._by_prefixes(text) if self._puts_space_first else self._by_parts(text)
        ids: list[int] = []
        learned: list[bool] = []
        for part, part_ids in zip(text.parts, parts, strict=True):
            num_learned = self._num_learned(part_ids) if part.is_trained else 0
            ids += part_ids
            learned += [True] * num_learned + [False] * (len(part_ids) - num_learned)
        if text.end_id is not None:
            ids.append(text.end_id)
            learned.append(True)
        num_behind = len(list(takewhile(lambda is_learned: not is_learned, reversed(learned))))
        return ids[: len(ids) - num_behind], learned[: len(ids) - num_behind]

    def _by_parts(self, text: TrainingText) -> list[list[int]]:
        return [self._ids(text, part.text, is_first=at == 0) for at, part in enumerate(text.parts)]

    def _by_prefixes(self, text: TrainingText) -> list[list[int]]:
        """Tokenize the whole text, and cut it where each prefix's own ids end."""
        beginnings = list(accumulate(part.text for part in text.parts))
        whole = self._ids(text, beginnings[-1], is_first=True)
        cuts = [_num_same(self._ids(text, each, is_first=True), whole) for each in beginnings[:-1]]
        return [whole[start:end] for start, end in pairwise([0, *accumulate(cuts, max), len(whole)])]

    def _ids(self, text: TrainingText, part: str, *, is_first: bool) -> list[int]:
        if text.literals is None:
            return self._tokenizer.encode(part, add_special_tokens=is_first)
        return self._tokenizer.encode_rendered(part, text.literals)

    def _num_learned(self, part_ids: Sequence[int]) -> int:
        """How many of an assistant part's ids are trained on. What the template writes after the end-of-turn token
        (usually a newline) is not, since the model never generates it."""
        ends = [at for at, token_id in enumerate(part_ids) if token_id in self._tokenizer.special_ids]
        if ends and not self._tokenizer.decode(part_ids[ends[-1] + 1 :]).strip():
            return ends[-1] + 1
        return len(part_ids)


def _num_same(some: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common prefix."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))))
