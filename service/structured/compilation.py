"""Grammar and vocabulary -> automaton."""

from __future__ import annotations

import time
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits

from service.core.grammar import GrammarSpec
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.grammar_source import as_lark, grammar_source
from service.structured.lark_places import lark_places
from service.structured.places import MAX_BYTES, AnyPlaces
from service.structured.regex_places import regex_places
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


class ReadSeconds(NamedTuple):
    """What reading a grammar takes of one thread's time, in which no other Python code of the process may run."""

    source: float
    places: float


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary, *, follow_places: bool = True) -> CompiledGrammar:
    """Raises ValueError with the reason if it cannot be honoured. Any thread.

    There is no way to stop it: what a client sends is tried first where it can be stopped (compile_trials.py).
    follow_places: whether to look for places (places.py), which save masks.
    """
    prototype = LLMatcher(vocabulary.trie, grammar_source(spec, vocabulary.marks), log_level=0, limits=_PARSER_LIMITS)
    _check_sound(prototype)
    first = prototype.deep_copy()
    first.compute_bitmask()  # fills the lexer's tables, which all copies share; and it must be possible
    _check_sound(first)
    places = _places(spec, vocabulary) if follow_places else None
    num_bytes = _BASE_BYTES + _BYTES_A_CHARACTER * len(spec.source) + (0 if places is None else MAX_BYTES)
    return CompiledGrammar(prototype, num_bytes, places, spec.param)


def read_seconds(spec: GrammarSpec, vocabulary: Vocabulary) -> ReadSeconds:
    """Raises ValueError as `compile_grammar` does."""
    started_s = time.thread_time()
    grammar_source(spec, vocabulary.marks)
    read_s = time.thread_time()
    _places(spec, vocabulary)
    return ReadSeconds(read_s - started_s, time.thread_time() - read_s)


def _check_sound(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())


def _places(spec: GrammarSpec, vocabulary: Vocabulary) -> AnyPlaces | None:
    if spec.kind == "regex":
        return regex_places(spec.source, vocabulary.token_bytes)
    if spec.beginning is not None:
        return regex_places(spec.beginning, vocabulary.token_bytes, ends_at_match=True)
    if spec.kind == "grammar":
        return lark_places(as_lark(spec.source), vocabulary.token_bytes)
    return None
