"""Compiles a grammar for a vocabulary into an automaton."""

from __future__ import annotations

import time

from llguidance import LLMatcher, LLParserLimits

from service.core.grammar import GrammarSpec
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.grammar_source import grammar_source
from service.structured.vocabulary import Vocabulary

_PARSER_LIMITS = LLParserLimits(
    max_items_in_row=5_000,
    step_max_items=100_000,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""A mask that would take more than about 10 ms, or a lexer of more than about 40 MB, ends the request. For scale: an
object schema with 1,000 optional properties needs 4,000 items in a row and 51,000 for a mask."""
_BASE_BYTES, _BYTES_A_CHARACTER = 2**20, 400
"""Fitted to schemas of 50 bytes to 60 kB (many properties, enums, alternatives), which took 0.5 to 18 MB."""


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises ValueError with the reason if the grammar is invalid or not supported. Any thread.

    Cannot be interrupted: client input must first pass a trial in a process that can be killed (compile_trials.py).
    """
    prototype = LLMatcher(vocabulary.trie, grammar_source(spec, vocabulary.marks), log_level=0, limits=_PARSER_LIMITS)
    _check_sound(prototype)
    prototype.compute_bitmask()  # must succeed; all copies start with this mask cached
    _check_sound(prototype)
    return CompiledGrammar(prototype, _BASE_BYTES + _BYTES_A_CHARACTER * len(spec.source), spec.param)


def read_seconds(spec: GrammarSpec, vocabulary: Vocabulary) -> float:
    """Thread CPU seconds to parse the specification; meanwhile no other Python code of the process can run.

    Raises ValueError as `compile_grammar` does.
    """
    started_s = time.thread_time()
    grammar_source(spec, vocabulary.marks)
    return time.thread_time() - started_s


def _check_sound(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())
