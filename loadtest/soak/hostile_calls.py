"""Random calls from a seed, valid and invalid: what malicious or careless clients may send."""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

MODEL = "headrace-quickstart"

WORDS = 'What is Headrace? metrics 你好 🙂 naïve {} \\ " <|end|> </think> <tool_call> \n \t 0123 \ufeff'.split(" ")
REGEXES = [
    "(a|aa)+b", "(x+x+)+y", "[\\s\\S]{1,3000}", "(.*a){20}", "(a?){60}a{60}", "\\d{4}-\\d\\d", "", "(", "(?=a)b",
    "((((a*)*)*)*)*", "[🙂-🙃]+", "x" * 5000,
]  # fmt: skip
GRAMMARS = [
    'root ::= "a" root | "b"', 'root ::= root "a" | "b"', 'root ::= root root | "a" | ""', 'start: start start | "a"',
    'start: /(a|aa)+/ "!"', "root ::= missing", "%%%", 'root ::= ""', 'start: ("a" | "b" | "ab")* "c"',
]  # fmt: skip
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False},
    {"$ref": "#"},
    {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
    {"enum": [f"value {i}" for i in range(2000)]},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "minLength": 1000, "maxLength": 2000},
    {"type": "array", "items": {"type": "number"}, "minItems": 50, "maxItems": 5000},
    {"allOf": [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(60)]},
    {"type": "integer", "minimum": 10, "maximum": 5},
    {"not": {}}, {"anyOf": []}, True, False, {}, {"$ref": "http://example.com/x"},
]  # fmt: skip
JUNK: list[Any] = [
    None, True, 0, -1, 1.5, 2**63, 2**64, 1e308, "", "x", "\0", [], {}, [[]], [None], {"a": {}}, ["x"] * 200,
    "A" * 20000, [-1], {"1": 1e9}, {"-1": 0},
]  # fmt: skip
OPTIONS: dict[str, list[Any]] = {
    "temperature": [0, 1e-6, 1, 2],
    "top_p": [0, 0.5, 1],
    "top_k": [-1, 1, 100_000],
    "presence_penalty": [-2, 2],
    "repetition_penalty": [0.01, 100],
    "logit_bias": [{str(i): -100 for i in range(1000)}, {"7": 100}],
    "allowed_token_ids": [[300], list(range(300, 400))],
    "stop": ["e", ["a", "b", "c", "d"], "🙂", ["x" * 1000] * 4],
    "min_tokens": [1, 10],
    "ignore_eos": [True],
    "seed": [0, -1, -(2**63)],
    "n": [2, 16, 128],
    "best_of": [2, 20],
    "use_beam_search": [True],
    "prompt_logprobs": [0, 20],
    "return_token_ids": [True],
    "logprobs": [0, 5, True],
    "top_logprobs": [0, 20],
    "echo": [True],
    "truncate_prompt_tokens": [-1, 1, 2048],
    "cache_salt": ["a"],
    "regex": REGEXES,
    "grammar": GRAMMARS,
    "guided_json": SCHEMAS,
    "choice": [["yes", "no"], [""], [str(i) for i in range(900)]],
    "response_format": [{"type": "json_object"}]
    + [{"type": "json_schema", "json_schema": {"name": "x", "schema": schema}} for schema in SCHEMAS],
    "tools": [
        [{"type": "function", "function": {"name": f"f{i}", "parameters": SCHEMAS[0]}} for i in range(20)],
        [{"type": "function", "function": {"name": "f", "description": "d" * 1_000_000}}],
    ],
    "tool_choice": ["auto", "none", "required"],
    "chat_template_kwargs": [{"enable_thinking": True}, {"messages": []}, {"date_string": "{{ 7*7 }}"}],
    "stream_options": [{"include_usage": True, "continuous_usage_stats": True}],
}


class Call(NamedTuple):
    path: str
    body: dict[str, Any]


def draw_call(chance: random.Random) -> Call:
    """Draw a call. Some are refused: their options exclude each other or exceed a limit."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": chance.choice([1, 2, 20, 60, 200])}
    is_chat = chance.random() < 0.6
    if is_chat:
        body["messages"] = [{"role": "user", "content": _text(chance)} for _ in range(chance.choice([1, 1, 3]))]
    else:
        ids = [chance.randrange(300) for _ in range(chance.choice([1, 30, 900]))]
        body["prompt"] = chance.choice([_text(chance), [_text(chance), "x"], ids, [[1, 2, 3], [4, 5]]])
    for name in chance.sample(sorted(OPTIONS), chance.choice([0, 1, 1, 2, 4])):
        body[name] = copy.deepcopy(chance.choice(OPTIONS[name]))
    if chance.random() < 0.1:
        body |= _new_form(chance)
    body["stream"] = chance.random() < 0.6
    if chance.random() < 0.35:
        _spoil(body, chance)
    return Call("/v1/chat/completions" if is_chat else "/v1/completions", body)


def _new_form(chance: random.Random) -> dict[str, Any]:
    """A new output format each time: what the server keeps for each must not accumulate."""
    name = f"p{chance.getrandbits(40):x}"
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    return chance.choice(
        [
            {"regex": f"{name}-[a-f]{{{chance.randrange(1, 40)}}}"},
            {"guided_json": schema},
            {"grammar": f'root ::= "{name}" | "{name}" root'},
            {"choice": [name, name[::-1]]},
        ]
    )


def _text(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.choice([1, 5, 20, 200])))


def _spoil(body: dict[str, Any], chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 3])):
        message = (
            chance.choice(body["messages"]) if isinstance(body.get("messages"), list) and body["messages"] else None
        )
        if isinstance(message, dict) and chance.random() < 0.3:
            message[chance.choice(["role", "content", "name", "tool_calls"])] = chance.choice(JUNK)
        else:
            body[chance.choice([*body, *OPTIONS, "suffix", "unknown"])] = chance.choice(JUNK)
