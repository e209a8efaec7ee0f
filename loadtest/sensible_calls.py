"""Narrows our own OpenAPI description to requests that a server can serve, so that schemathesis gets few 400s.

    python -m loadtest.sensible_calls narrow http://127.0.0.1:8000 KEY > narrowed.json
    python -m loadtest.sensible_calls count results.har

The description allows far more than makes sense together (beams with temperatures, grammars of noise). Nearly all
requests drawn from it end with 400, and generation itself is hardly tested. `narrow` keeps of each request the fields
listed here, with values that a model can serve; it fails if the server does not describe such a field. Endpoints that
need more than a body (the id of something that exists, a file, an operator's key, another kind of model) are removed.
`count` prints the statuses of a run's POSTs and exits with 1 if less than half were 200. run_schemathesis.sh runs both.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

LEAST_ACCEPTED = 0.5
_LEAST_VOCABULARY = 256
"""Every model has at least this many ids."""

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": _LEAST_VOCABULARY - 1}, "maxItems": 8}
_SOME_IDS = {**_IDS, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 20}
_STRETCH = {"type": "integer", "minimum": 1, "maximum": 8}
_FLAG = {"type": "boolean"}
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": _TEXT},
    "required": ["role", "content"],
    "additionalProperties": False,
}
_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": 3}
_TURNS = {
    **_MESSAGES,
    "items": {**_MESSAGE, "properties": {"role": {"enum": ["user", "assistant"]}, "content": _TEXT}},
}

_SAMPLING: dict[str, Any] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0.01, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1, "maximum": 50},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "repetition_penalty": {"type": "number", "minimum": 0.1, "maximum": 2},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**31},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 4}]},
    "stop_token_ids": _IDS,
    "allowed_token_ids": _SOME_IDS,
    "bad_words": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 4},
    "ignore_eos": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "skip_special_tokens": _FLAG,
    "stream": _FLAG,
    "user": _TEXT,
    "cache_salt": _TEXT,
}
_FORM = {
    "enum": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "weather", "schema": _WEATHER}},
    ]
}
_GENERATION = {
    **_SAMPLING,
    "n": {"type": "integer", "minimum": 1, "maximum": 3},
    "return_token_ids": _FLAG,
    "prompt_logprobs": {"type": "integer", "minimum": 0, "maximum": 3},
}
SENSIBLE: dict[str, dict[str, Any]] = {
    "CompletionRequest": {
        **_GENERATION,
        "prompt": {"anyOf": [_TEXT, _SOME_IDS, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3}]},
        "max_tokens": _STRETCH,
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 5},
        "echo": _FLAG,
        "add_special_tokens": _FLAG,
    },
    "ChatRequest": {
        **_GENERATION,
        "messages": _MESSAGES,
        "max_tokens": _STRETCH,
        "logprobs": _FLAG,
        "response_format": _FORM,
        "tools": {"enum": [[{"type": "function", "function": {"name": "weather", "parameters": _WEATHER}}]]},
        "tool_choice": {"enum": ["auto", "none"]},
        "parallel_tool_calls": _FLAG,
    },
    "ChatBatchRequest": {
        **{name: values for name, values in _SAMPLING.items() if name != "stream"},
        "messages": {"type": "array", "items": _MESSAGES, "minItems": 1, "maxItems": 3},
        "max_tokens": _STRETCH,
        "logprobs": _FLAG,
        "return_token_ids": _FLAG,
        "response_format": _FORM,
    },
    "ResponsesRequest": {
        "input": {"anyOf": [_TEXT, _MESSAGES]},
        "instructions": _TEXT,
        "max_output_tokens": {"type": "integer", "minimum": 16, "maximum": 24},
        "temperature": _SAMPLING["temperature"],
        "top_p": _SAMPLING["top_p"],
        "stream": _FLAG,
        "store": {"const": False},
    },
    "MessagesRequest": {
        "messages": _TURNS,
        "max_tokens": _STRETCH,
        "system": _TEXT,
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        "top_p": _SAMPLING["top_p"],
        "stop_sequences": {"type": "array", "items": _TEXT, "maxItems": 4},
        "stream": _FLAG,
    },
    "CompactRequest": {"input": {"anyOf": [_TEXT, _MESSAGES]}, "instructions": _TEXT},
    "CountTokensRequest": {"messages": _TURNS, "system": _TEXT},
    "TokenizeRequest": {"prompt": {"type": "string", "maxLength": 100}, "return_token_strs": _FLAG},
    "TokenizeChatRequest": {"messages": _MESSAGES, "return_token_strs": _FLAG},
    "DetokenizeRequest": {"tokens": _IDS},
}
"""Request schema -> its fields and their allowed values. `model` keeps its description."""

_NEEDED = {"input", "max_tokens", "max_output_tokens"}
"""Required here: without them, answers fill the whole context."""


def narrowed(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description with only the requests of `SENSIBLE`, and without other POSTs. Raises KeyError if a field of
    `SENSIBLE` or a required one is missing."""
    result: dict[str, Any] = json.loads(json.dumps(description))
    shapes = result["components"]["schemas"]
    for name, fields in SENSIBLE.items():
        if name not in shapes:
            continue  # this server's version has no such request
        shape = shapes[name]
        for each in fields:
            if each not in shape["properties"]:
                raise KeyError(f"{name} has no field {each}")
        model = {"model": shape["properties"]["model"]}
        required = {"model", *shape.get("required", ()), *(_NEEDED & fields.keys())}
        shapes[name] = {
            "type": "object",
            "properties": {**model, **fields},
            "required": sorted(required),
            "additionalProperties": False,
        }
    for operations in result["paths"].values():
        if "post" in operations and not _shapes(operations["post"]) <= SENSIBLE.keys():
            del operations["post"]
    return result


def _shapes(operation: Mapping[str, Any]) -> set[str]:
    """Names of the schemas that the body may have. An inline schema has no name, so it is never in `SENSIBLE`."""
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    return {each.get("$ref", "").rpartition("/")[2] for each in schema.get("oneOf", [schema])}


def count(har: Mapping[str, Any]) -> dict[str, Counter[int]]:
    """Statuses of a run's POSTs: path -> status -> count."""
    answers: dict[str, Counter[int]] = {}
    for entry in har["log"]["entries"]:
        if entry["request"]["method"] == "POST":
            path = urlsplit(entry["request"]["url"]).path
            answers.setdefault(path, Counter())[entry["response"]["status"]] += 1
    return answers


def accepted(answers: Iterable[Counter[int]]) -> float:
    """Share of the answers with status 200."""
    total = sum(answers, Counter[int]())
    return total[200] / total.total() if total else 0.0


def _describe(url: str, key: str) -> Any:
    request = urllib.request.Request(f"{url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["narrow", url, key]:
            json.dump(narrowed(_describe(url, key)), sys.stdout)
            return 0
        case ["count", file]:
            with open(file, encoding="utf-8") as har:
                answers = count(json.load(har))
            for path, of_path in sorted(answers.items()):
                told = ", ".join(f"{number} times {status}" for status, number in sorted(of_path.items()))
                print(f"{path}: {told}")
            share = accepted(answers.values())
            print(f"{share:.0%} of the POSTs were answered 200")
            return 0 if share >= LEAST_ACCEPTED else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
