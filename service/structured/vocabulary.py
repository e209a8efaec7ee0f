"""A model's tokens as the grammars see them: llguidance's trie of token bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLTokenizer

from service.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)


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


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Vocabulary:
    """Takes about a second for a large vocabulary. Raises ValueError if llguidance cannot read the tokenizer."""
    if tokenizer.num_tokens > vocab_size:
        raise ValueError(f"the tokenizer has {tokenizer.num_tokens} tokens, the model's logits only {vocab_size}")
    ends = sorted(eos_token_ids)
    trie = LLTokenizer(tokenizer.to_json(), n_vocab=vocab_size, eos_token=ends or None)
    return Vocabulary(trie, vocab_size, eos_token_ids, tokenizer.id_of("<think>"), tokenizer.id_of("</think>"))


VocabularyMaker = Callable[[], Vocabulary]
