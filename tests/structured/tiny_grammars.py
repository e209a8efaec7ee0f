"""Grammars over the tiny byte-level tokenizer."""

from __future__ import annotations

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.vocabulary import TokenTable, Vocabulary, token_table, vocabulary_of
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

END_ID = 2
TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())


def table() -> TokenTable:
    return token_table(TOKENIZER, TOKENIZER.num_tokens, frozenset({END_ID}))


def vocabulary() -> Vocabulary:
    return vocabulary_of(TOKENIZER, TOKENIZER.num_tokens, frozenset({END_ID}))


VOCABULARY = vocabulary()


def regex(pattern: str) -> CompiledGrammar:
    return compile_grammar(GrammarSpec("regex", pattern, "regex"), VOCABULARY)


def schema(text: str, whitespace: str | None = None) -> CompiledGrammar:
    return compile_grammar(GrammarSpec("json_schema", text, "guided_json", whitespace), VOCABULARY)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def fits(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the whole text is one that the grammar describes."""
    matcher = grammar.start()
    return all(matcher.accept(token_id) for token_id in ids(text)) and (matcher.is_finished or matcher.accept(END_ID))
