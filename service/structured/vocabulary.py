"""A model's tokens as the grammars see them: llguidance's trie of token bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from llguidance import LLTokenizer

from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import TokenizerWrapper

_LETTERS = [r"[a-z]{1,30}", r"[a-z ]{1,30}", r"[A-Za-z]{1,30}", r"[A-Za-z ]{1,30}"]
_SPACES, *_TEXT = LLTokenizer.general_slices()
_SLICES = [_SPACES, *_LETTERS, *_TEXT]
"""Sets of tokens that are allowed, or not, as one: llguidance's, which are the insides of JSON strings, and words.

With 131k tokens words bring a string of `^[a-z ]+$` in JSON from 410 us a mask to 40, and cost other strings nothing.
More of them cost more than they save: each is asked for at every mask.
"""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a grammar must know of a model's tokens, as plain values: they can be sent to another process.

    tokens: bytes by id, as many as there are logits; empty where an id has no token. special_ids: control tokens,
    whose bytes are a name and no text: only `<[id]>` and `<name>` in a Lark grammar stand for them. marks: ids of
    tokens that were added to the vocabulary and are text all the same (`<tool_call>`), by that text. think, end_think:
    ids of `<think>` and `</think>`, if each is one token.
    """

    tokens: tuple[bytes, ...]
    special_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    marks: Mapping[str, int]
    think: int | None
    end_think: int | None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """trie: the tokens by their bytes. size: ids that logits have. eos_token_ids: end the text where it may end.

    think, end_think, marks: see `TokenTable`.
    """

    trie: LLTokenizer
    size: int
    eos_token_ids: frozenset[int]
    think: int | None
    end_think: int | None
    marks: Mapping[str, int]


def token_table(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> TokenTable:
    """Takes about a quarter of a second for a large vocabulary, of Python that lets other threads in.

    Tokens beyond `vocab_size` were added to the tokenizer and not to the model: they have no logits. Raises ValueError
    if others have none, or if it is not known which bytes a token is.
    """
    added = tokenizer.added_tokens
    in_model = tokenizer.num_tokens - sum(token_id >= vocab_size for token_id in added)
    if in_model > vocab_size:
        raise ValueError(f"the tokenizer has {in_model} tokens, the model's logits only {vocab_size}")
    if not tokenizer.works_on_bytes:
        raise ValueError("the tokenizer's decoder is neither byte-level nor has it tokens for single bytes")
    spelled = tokenizer.spelled_bytes
    special_ids = frozenset(token_id for token_id in tokenizer.special_ids | eos_token_ids if token_id < vocab_size)
    marks = {
        text: token_id for token_id, text in added.items() if token_id < vocab_size and token_id not in special_ids
    }
    think, end_think = (
        token_id if token_id is not None and token_id < vocab_size else None
        for token_id in map(tokenizer.id_of, ("<think>", "</think>"))
    )
    tokens = tuple(spelled[token_id] for token_id in range(vocab_size))
    return TokenTable(tokens, special_ids, eos_token_ids, marks, think, end_think)


def vocabulary_of_table(table: TokenTable) -> Vocabulary:
    """Takes about a second for a large vocabulary, in which no other Python code of the process runs."""
    tokens = cast("TokenizerWrapper", _AsWrapper(table))
    trie = LLTokenizer(tokens, eos_token=sorted(table.eos_token_ids) or None, slices=_SLICES)
    return Vocabulary(trie, len(table.tokens), table.eos_token_ids, table.think, table.end_think, table.marks)


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Vocabulary:
    """Both of them."""
    return vocabulary_of_table(token_table(tokenizer, vocab_size, eos_token_ids))


class _AsWrapper:
    """A table as llguidance's `TokenizerWrapper` has it. It has no `__call__`, which would tokenize what a grammar
    forces: no grammar of ours forces tokens (grammar_source.py)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        self.tokens = list(table.tokens)
        self.special_token_ids = sorted(table.special_ids)
        self.eos_token_id = min(table.eos_token_ids, default=0)


TokenTableMaker = Callable[[], TokenTable]
