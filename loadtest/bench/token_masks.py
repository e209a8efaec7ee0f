"""Cost of a grammar on the host: reading the vocabulary, compiling, one row of a mask, accepting a token.

    python -m loadtest.bench.token_masks FOLDER [--rows 1,64,256] [--rounds 3]

FOLDER holds a tokenizer.json. The rows are sequences under one grammar. They are at different tokens of a text, write
it to its end, and start again. `a row`: CPU time of all threads from `begin` to the end of `wait`, per row. `a step`:
elapsed time of the same; it is hidden if the forward pass takes longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.token_bitmask import TokenBitmask
from service.structured.vocabulary import Vocabulary, vocabulary_of
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import ToolStyle
from service.text.tool_grammar import CallableTool, CallRules, call_grammar

_WORDS = 'A tall tower, made of iron; it is 330 metres high -- and was \\"finished\\" in 1889.\\n'
_PLACE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["city", "tower", "river"]},
        "height": {"type": ["number", "null"]},
        "about": {"type": "string"},
        "near": {"type": "array", "items": {"$ref": "#/$defs/near"}},
    },
    "required": ["name", "kind", "height", "about", "near"],
    "additionalProperties": False,
    "$defs": {
        "near": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "metres": {"type": "integer", "minimum": 0}},
            "required": ["name", "metres"],
            "additionalProperties": False,
        }
    },
}
_TEXT = (
    f'{{"name": "Eiffel Tower", "kind": "tower", "height": 330.5, "about": "{_WORDS * 4}",'
    f' "near": [{{"name": "Seine", "metres": 180}}, {{"name": "{_WORDS}", "metres": 12}}]}}'
)
_WEATHER = CallableTool(
    "weather",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    is_strict=True,
)
_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris, Texas"}}\n</tool_call>'
_SELECT = r"""
start: "SELECT"i columns "FROM"i NAME join* ["WHERE"i condition] ["ORDER"i "BY"i NAME ("ASC"i | "DESC"i)?] ";"
columns: "*" | column ("," column)*
column: (NAME ".")? NAME ["AS"i NAME] | ("COUNT" | "SUM" | "MAX") "(" NAME ")"
join: "JOIN"i NAME "ON"i NAME "." NAME "=" NAME "." NAME
condition: test (("AND"i | "OR"i) test)*
test: NAME ("=" | "<" | ">" | "<=" | ">=") value | "(" condition ")"
value: NUMBER | STRING | NAME
NAME: /[a-z_][a-z0-9_]*/
STRING: /'[^'\n]*'/
%import common.NUMBER
%import common.WS
%ignore WS
"""
_QUERY = (
    "SELECT name, t.height, COUNT(visitors) FROM towers JOIN cities ON towers.city = cities.name WHERE height >= 330"
    " AND (city = 'Paris, Texas' OR year < finished_in AND kind = 'tower') AND height > 12 ORDER BY height DESC;"
)
_MAY_CALL = CallRules(must_call=False, parallel=True)
CASES = {
    "json_object": (GrammarSpec("json_schema", '{"type":"object"}', "x"), _TEXT),
    "json_schema": (GrammarSpec("json_schema", json.dumps(_PLACE), "x"), _TEXT),
    "words in JSON": (
        GrammarSpec("json_schema", '{"type":"array","items":{"type":"string","pattern":"^[a-z ]+$"}}', "x"),
        json.dumps(["so many words and more of them"] * 20),
    ),
    "regex": (GrammarSpec("regex", r"(\d{3}-)+[a-z ]*", "x"), "123-456-" * 20 + "so many words " * 20),
    "sentences": (GrammarSpec("regex", r"([A-Z][\w, ]+\. )+", "x"), "So many words, and 17 more of them. " * 20),
    "lines": (GrammarSpec("regex", r"(.*\n)+", "x"), 'So many "words", and 17 more of them.\n' * 20),
    "text or a call": (
        GrammarSpec("lark", call_grammar(ToolStyle.HERMES, [_WEATHER], _MAY_CALL), "x"),
        _WORDS * 4 + _CALL,
    ),
    "names": (
        GrammarSpec("grammar", 'start: NAME ("+" NAME)*\nNAME: /[a-z_][a-z0-9_]*/\n%ignore / /', "x"),
        "the_height + the_number_of_towers + " * 12 + "one",
    ),
    "queries": (GrammarSpec("grammar", _SELECT, "x"), _QUERY),
    "sums": (
        GrammarSpec("grammar", 'root ::= term (" "? [-+*/] " "? term)*\nterm ::= [0-9]+ | [a-z]+ | "(" root ")"', "x"),
        "(the + 12) * (of - (a * 330 + many)) + " * 8 + "words",
    ),
}


class Writer:
    """A sequence that writes a text to its end, again and again."""

    def __init__(self, grammar: CompiledGrammar, token_ids: Sequence[int], num_written: int) -> None:
        self._grammar = grammar
        self._token_ids = token_ids
        self.accept_s = list[float]()
        self._begin()
        for _ in range(num_written):
            self.write()

    def _begin(self) -> None:
        self.matcher = self._grammar.start()
        self._num_written = 0

    def write(self) -> None:
        """Write the next token. AssertionError if the grammar does not allow the text."""
        if self._num_written == len(self._token_ids):
            self._begin()
        started_s = time.perf_counter()
        fits = self.matcher.accept(self._token_ids[self._num_written])
        self.accept_s.append(time.perf_counter() - started_s)
        assert fits, f"the text is not the grammar's at token {self._num_written}"
        self._num_written += 1


class StepSeconds(NamedTuple):
    row: float
    step: float


def step_seconds(masker: TokenBitmask, writers: Sequence[Writer], num_steps: int) -> list[StepSeconds]:
    """Times of every step but the first, whose mask could not have been prepared."""
    seconds = []
    for _ in range(num_steps + 1):
        matchers = [writer.matcher for writer in writers]
        cores_s, started_s = time.process_time(), time.perf_counter()
        masker.begin(matchers, range(len(matchers))).wait()
        step_s = time.perf_counter() - started_s
        seconds.append(StepSeconds((time.process_time() - cores_s) / len(matchers), step_s))
        for writer in writers:
            writer.write()
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="1,64,256")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [int(size) for size in options.rows.split(",")]
    tokenizer = Tokenizer.from_folder(options.folder)
    started_s = time.perf_counter()
    vocabulary = vocabulary_of(tokenizer, tokenizer.num_tokens, frozenset())
    print(f"{tokenizer.num_tokens} tokens, read in {time.perf_counter() - started_s:.2f} s; microseconds, mean (p95)")
    print("grammar | compile, ms | accept | " + " | ".join(f"a row of {size} | a step of {size}" for size in sizes))
    for name, (spec, text) in CASES.items():
        print(f"{name} | " + " | ".join(_measure(spec, text, vocabulary, sizes, options.rounds)))


def _measure(spec: GrammarSpec, text: str, vocabulary: Vocabulary, sizes: list[int], rounds: int) -> list[str]:
    started_s = time.perf_counter()
    grammar = compile_grammar(spec, vocabulary)
    compile_s = time.perf_counter() - started_s
    token_ids = vocabulary.trie.greedy_tokenize(text)
    accept_s, cells = list[float](), list[str]()
    for size in sizes:
        writers = [Writer(grammar, token_ids, len(token_ids) * index // size) for index in range(size)]
        masker = TokenBitmask(size, vocabulary.size, vocabulary.eos_token_ids)
        seconds = step_seconds(masker, writers, rounds * len(token_ids))
        cells += [_microseconds(each.row for each in seconds), _microseconds(each.step for each in seconds)]
        accept_s += [each for writer in writers for each in writer.accept_s]
    return [f"{compile_s * 1e3:.1f}", _microseconds(accept_s), *cells]


def _microseconds(seconds: Iterable[float]) -> str:
    ordered = sorted(seconds)
    return f"{statistics.mean(ordered) * 1e6:.1f} ({ordered[int(len(ordered) * 0.95)] * 1e6:.1f})"


if __name__ == "__main__":
    main()
