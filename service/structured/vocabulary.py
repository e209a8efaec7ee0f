"""A model's tokens as the grammars see them: llguidance's trie of token bytes."""

from __future__ import annotations

import json
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
    ends = sorted(eos_token_ids)
    trie = LLTokenizer(_drawable(tokenizer, vocab_size), n_vocab=vocab_size, eos_token=ends or None, slices=_SLICES)
    think, end_think = (
        token_id if token_id is not None and token_id < vocab_size else None
        for token_id in map(tokenizer.id_of, ("<think>", "</think>"))
    )
    return Vocabulary(trie, vocab_size, eos_token_ids, think, end_think)


def _drawable(tokenizer: Tokenizer, vocab_size: int) -> str:
    """The tokenizer's JSON, without tokens that were added to it and not to the model: they have no logits."""
    if tokenizer.num_tokens <= vocab_size:
        return tokenizer.to_json()
    described = json.loads(tokenizer.to_json())
    added = described["added_tokens"]
    described["added_tokens"] = [token for token in added if token["id"] < vocab_size]
    num_tokens = tokenizer.num_tokens - len(added) + len(described["added_tokens"])
    if num_tokens > vocab_size:
        raise ValueError(f"the tokenizer has {num_tokens} tokens, the model's logits only {vocab_size}")
    return json.dumps(described)


VocabularyMaker = Callable[[], Vocabulary]
