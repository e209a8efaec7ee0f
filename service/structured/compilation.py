"""Grammar and vocabulary -> automaton."""

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
"""A mask that needs more than about 10 ms, and a lexer of more than about 40 MB, end the request that asks for it. An
object of 1,000 properties, none of them required, has 4,000 items in a row and 51,000 in a mask."""
_BASE_BYTES, _BYTES_A_CHARACTER = 2**20, 400
"""Measured with schemas of 50 bytes to 60 kB (many properties, enums, alternatives): 0.5 to 18 MB."""


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises ValueError with the reason if it cannot be honoured. Any thread.

    There is no way to stop it: what a client sends is tried first where it can be stopped (compile_trials.py).
    """
    prototype = LLMatcher(vocabulary.trie, grammar_source(spec, vocabulary.marks), log_level=0, limits=_PARSER_LIMITS)
    _check_sound(prototype)
    prototype.compute_bitmask()  # must be possible; and every copy begins with this mask
    _check_sound(prototype)
    return CompiledGrammar(prototype, _BASE_BYTES + _BYTES_A_CHARACTER * len(spec.source), spec.param)


def read_seconds(spec: GrammarSpec, vocabulary: Vocabulary) -> float:
    """What reading it takes of one thread's time, in which no other Python code of the process may run.

    Raises ValueError as `compile_grammar` does.
    """
    started_s = time.thread_time()
    grammar_source(spec, vocabulary.marks)
    return time.thread_time() - started_s


def _check_sound(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())
