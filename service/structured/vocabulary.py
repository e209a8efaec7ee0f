"""A model's tokens for the grammars: llguidance's trie of token bytes."""

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
"""Sets of tokens that llguidance allows or forbids as a whole: its own, for the insides of JSON strings, and words.

With 131k tokens, the word sets bring a mask inside a string of `^[a-z ]+$` in JSON from 410 us to 40, and cost other
strings nothing. More sets would cost more than they save, since every mask checks each of them.
"""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a grammar must know of a model's tokens, as plain values that can be sent to another process.

    tokens: bytes by id, one entry per logit; empty if an id has no token. special_ids: control tokens, whose bytes are
    a name, not text; in a Lark grammar they match only `<[id]>` and `<name>`. marks: added tokens that are text
    nevertheless (`<tool_call>`): text -> id. think, end_think: ids of `<think>` and `</think>`; None: no such token.
    """

    tokens: tuple[bytes, ...]
    special_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    marks: Mapping[str, int]
    think: int | None
    end_think: int | None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """trie: the tokens by their bytes. size: number of logits. eos_token_ids: ids that may end a complete text.

    think, end_think, marks: see `TokenTable`.
    """

    trie: LLTokenizer
    size: int
    eos_token_ids: frozenset[int]
    think: int | None
    end_think: int | None
    marks: Mapping[str, int]


def token_table(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> TokenTable:
    """Takes about a quarter of a second for a large vocabulary, during which other Python threads can run.

    Tokens at or beyond `vocab_size` were added to the tokenizer but not to the model; they have no logits and are left
    out. Raises ValueError if other tokens have no logits, or if the bytes of tokens are unknown.
    """
    added = tokenizer.added_tokens
    in_model = tokenizer.num_tokens - sum(token_id >= vocab_size for token_id in added)
    if in_model > vocab_size:
        raise ValueError(f"the tokenizer has {in_model} tokens, the model's logits only {vocab_size}")
    if not tokenizer.works_on_bytes:
        raise ValueError("the tokenizer is neither byte-level nor has byte-fallback tokens")
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
    """Takes about a second for a large vocabulary, during which no other Python code of the process can run."""
    tokens = cast("TokenizerWrapper", _AsWrapper(table))
    trie = LLTokenizer(tokens, eos_token=sorted(table.eos_token_ids) or None, slices=_SLICES)
    return Vocabulary(trie, len(table.tokens), table.eos_token_ids, table.think, table.end_think, table.marks)


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Vocabulary:
    """`token_table`, then `vocabulary_of_table`."""
    return vocabulary_of_table(token_table(tokenizer, vocab_size, eos_token_ids))


class _AsWrapper:
    """A table in the shape of llguidance's `TokenizerWrapper`. It has no `__call__` to tokenize forced text, since our
    grammars force no tokens (grammar_source.py)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        self.tokens = list(table.tokens)
        self.special_token_ids = sorted(table.special_ids)
        self.eos_token_id = min(table.eos_token_ids, default=0)


TokenTableMaker = Callable[[], TokenTable]
