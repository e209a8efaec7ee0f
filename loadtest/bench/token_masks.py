"""What a grammar costs on the host: reading the vocabulary, compiling, a row of a mask, accepting a token.

    python -m loadtest.bench.token_masks FOLDER [--rows 1,64,256] [--rounds 3]

FOLDER holds a tokenizer.json. Each row stands somewhere else in a text that the grammar describes, as the sequences of
a batch do. A row's time is what all threads spent on their cores from `begin` to the end of `wait`, over the rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar, GrammarMatcher
from service.structured.token_bitmask import TokenBitmask
from service.structured.vocabulary import Vocabulary, vocabulary_of
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import ToolStyle
from service.text.tool_grammar import CallableTool, CallRules, call_grammar, text_before_calls

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
        GrammarSpec(
            "lark",
            call_grammar(ToolStyle.HERMES, [_WEATHER], _MAY_CALL),
            "x",
            beginning=text_before_calls(ToolStyle.HERMES, _MAY_CALL),
        ),
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


def places(grammar: CompiledGrammar, vocabulary: Vocabulary, text: str) -> tuple[list[GrammarMatcher], list[float]]:
    """A matcher before each token of the text, and the seconds that accepting each took."""
    matcher, matchers, seconds = grammar.start(), list[GrammarMatcher](), list[float]()
    for token_id in vocabulary.trie.greedy_tokenize(text):
        matchers.append(matcher.fork())
        started_s = time.perf_counter()
        assert matcher.accept(token_id), f"the text is not the grammar's at token {len(seconds)}"
        seconds.append(time.perf_counter() - started_s)
    return matchers, seconds


def row_seconds(masker: TokenBitmask, matchers: list[GrammarMatcher], num_rows: int) -> list[float]:
    """Core seconds a row of each call, over all the places, `num_rows` at a time."""
    seconds = []
    for start in range(0, len(matchers), num_rows):
        batch = [matchers[(start + index) % len(matchers)].fork() for index in range(num_rows)]
        started_s = time.process_time()
        masker.begin(batch, range(num_rows)).wait()
        seconds.append((time.process_time() - started_s) / num_rows)
    return seconds


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
    print(f"{tokenizer.num_tokens} tokens, read in {time.perf_counter() - started_s:.2f} s; microseconds, median (p95)")
    print("grammar | compile, ms | accept | " + " | ".join(f"a row of {size}" for size in sizes))
    for name, (spec, text) in CASES.items():
        print(f"{name} | " + " | ".join(_measure(spec, text, vocabulary, sizes, options.rounds)))


def _measure(spec: GrammarSpec, text: str, vocabulary: Vocabulary, sizes: list[int], rounds: int) -> list[str]:
    started_s = time.perf_counter()
    grammar = compile_grammar(spec, vocabulary)
    cells = [f"{(time.perf_counter() - started_s) * 1e3:.1f}"]
    matchers, accepts = places(grammar, vocabulary, text)
    cells.append(_microseconds(accepts))
    for size in sizes:
        masker = TokenBitmask(size, vocabulary.size, vocabulary.eos_token_ids)
        seconds = [s for _ in range(rounds) for s in row_seconds(masker, matchers, size)]
        cells.append(_microseconds(seconds))
    return cells


def _microseconds(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{statistics.median(ordered) * 1e6:.1f} ({ordered[int(len(ordered) * 0.95)] * 1e6:.1f})"


if __name__ == "__main__":
    main()
