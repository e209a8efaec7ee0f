"""A model's tokens as the grammars see them: llguidance's trie of token bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLTokenizer

from service.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

_LETTERS = [r"[a-z]{1,30}", r"[a-z ]{1,30}", r"[A-Za-z]{1,30}", r"[A-Za-z ]{1,30}"]
_SPACES, *_TEXT = LLTokenizer.general_slices()
_SLICES = [_SPACES, *_LETTERS, *_TEXT]
"""Sets of tokens that are allowed, or not, as one: llguidance's, which are the insides of JSON strings, and words.

With 131k tokens words bring a string of `^[a-z ]+$` in JSON from 410 us a mask to 40, and cost other strings nothing.
More of them cost more than they save: each is asked for at every mask.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """trie: the tokens by their bytes. size: ids that logits have. eos_token_ids: end the text where it may end.

    think, end_think: ids of `<think>` and `</think>`, if each is one token.
    """

    trie: LLTokenizer
    size: int
    eos_token_ids: frozenset[int]
    think: int | None
    end_think: int | None

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text."""
        return self.trie.decode_bytes([token_id])


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Vocabulary:
    """Takes about a second for a large vocabulary. Raises ValueError if llguidance cannot read the tokenizer."""
    if tokenizer.num_tokens > vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.num_tokens} tokens, the model's logits only {vocab_size}")
    ends = sorted(eos_token_ids)
    trie = LLTokenizer(tokenizer.to_json(), n_vocab=vocab_size, eos_token=ends or None, slices=_SLICES)
    return Vocabulary(trie, vocab_size, eos_token_ids, tokenizer.id_of("<think>"), tokenizer.id_of("</think>"))


VocabularyMaker = Callable[[], Vocabulary]
