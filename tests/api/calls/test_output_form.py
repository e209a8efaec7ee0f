"""Constrained outputs over HTTP; the scripted model proposes, the grammar decides."""

from __future__ import annotations

import json
import re
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.structured import grammar_matcher
from tests.api.running_server import RunningServer
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PATTERNS = {f"p{n}": {"type": "string", "pattern": f".*{n}.*"} for n in range(13)}
GRAMMAR = 'start: "SELECT " column ("," column)* " FROM t"\ncolumn: "a" | "b"'


TAGS = [{"begin": "<n>", "content": {"type": "json_schema", "json_schema": {"const": 7}}, "end": "</n>"}]
TAGGED = {"type": "triggered_tags", "triggers": ["<n"], "tags": TAGS, "at_least_one": True, "stop_after_first": True}
TAG = {"type": "structural_tag", "format": TAGGED}
OLD_TAG = {"structures": [{"begin": "<n>", "schema": {"type": "boolean"}, "end": "</n>"}], "triggers": ["<n"]}


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def wander(server: RunningServer) -> None:
    """A model that draws at random, by its seed."""
    server.play(lambda prompt, so_far, seed: hash((seed, len(so_far), *so_far[-3:])) % server.tokenizer.num_tokens)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]+z"}, r"[0-9]{3}-[a-f]+z"),
        ({"guided_regex": "(yes|no)!"}, "(yes|no)!"),
        ({"choice": ["red", "green \\d"]}, r"red|green \\d"),
        ({"guided_choice": ["red"]}, "red"),
        ({"grammar": GRAMMAR}, r"SELECT [ab](,[ab])* FROM t"),
        ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
        ({"structured_outputs": {"regex": "a{2,4}b"}}, "a{2,4}b"),
        ({"structured_outputs": {"choice": ["u", "v"]}}, "[uv]"),
        ({"structured_outputs": {"grammar": GRAMMAR}}, r"SELECT [ab](,[ab])* FROM t"),
        ({"response_format": json_schema({"enum": [1, "x", None]}, strict=True)}, r'1|"x"|null'),
        ({"guided_json": {"const": [1]}, "structured_outputs": None}, r"\[ ?\s*1\s*\]"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
        ({"json_schema": '{"type": "boolean"}'}, "true|false"),
        ({"json_schema": {"const": 7}}, "7"),
        ({"ebnf": 'root ::= "a" | "b"'}, "a|b"),
        ({"response_format": {"type": "json_object", "schema": {"const": 7}}}, "7"),
        ({"response_format": TAG}, "<n>7</n>"),
        ({"structured_outputs": {"structural_tag": {"format": TAGGED}}}, "<n>7</n>"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "<n>7</n>"),
        ({"structured_outputs": {"json": {"const": [1, 2]}, "disable_any_whitespace": True}}, r"\[1,2\]"),
        ({"structured_outputs": {"json": {"const": [1]}, "whitespace_pattern": " "}}, r"\[ ?1 ?\]"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_the_output_matches(server: RunningServer, http: httpx.Client, fields: dict[str, Any], pattern: str) -> None:
    wander(server)
    body = completion(prompt="go", max_tokens=400, n=3, seed=1, **fields)
    for choice in http.post(COMPLETIONS, json=body).raise_for_status().json()["choices"]:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"], re.DOTALL)


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_json_that_ends_by_itself_parses(server: RunningServer, http: httpx.Client, route: str) -> None:
    wander(server)
    fields = {"n": 8, "seed": 3, "max_tokens": 300, "response_format": json_schema(PERSON)}
    body = completion(**fields) if route == COMPLETIONS else chat(**fields)
    choices = http.post(route, json=body).raise_for_status().json()["choices"]
    texts = [choice["text"] if route == COMPLETIONS else choice["message"]["content"] for choice in choices]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * 8
    for text in texts:
        person = json.loads(text)
        assert set(person) == {"name", "age"}
        assert len(person["name"]) <= 8 and person["age"] <= 150
    assert len(set(texts)) > 1


@pytest.mark.parametrize("form", ["old", "new"])
def test_a_structural_tag_leaves_text_free_and_holds_what_stands_in_a_tag(
    server: RunningServer, http: httpx.Client, form: str
) -> None:
    free = {"format": TAGGED | {"at_least_one": False, "stop_after_first": False}}
    tag = {"type": "structural_tag", **(OLD_TAG if form == "old" else free)}
    server.say("First 7 < 8, then <no more")
    body = chat(response_format=tag, max_tokens=60)
    whole = http.post(CHAT, json=body).raise_for_status().json()["choices"][0]["message"]["content"]
    value = "true|false" if form == "old" else "7"
    assert re.match(rf"First 7 < 8, then <n>({value})</n>", whole)
    chunks = events_of(http.post(CHAT, json=body | {"stream": True}).text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
    server.say("Plain text.")
    assert http.post(CHAT, json=body).json()["choices"][0]["message"]["content"] == "Plain text."


def test_json_object(server: RunningServer, http: httpx.Client) -> None:
    server.say('{"a": [1, {"b": null}]} and some more')
    body = chat(response_format={"type": "json_object"})
    choice = http.post(CHAT, json=body).json()["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"a": [1, {"b": None}]}
    assert choice["finish_reason"] == "stop"


def test_a_schema_may_be_true(server: RunningServer, http: httpx.Client) -> None:
    server.say('[1, {"b": null}]')
    for fields in ({"guided_json": True}, {"response_format": json_schema(True)}):
        choice = http.post(CHAT, json=chat(**fields)).json()["choices"][0]
        assert json.loads(choice["message"]["content"]) == [1, {"b": None}]


def test_what_is_cut_says_length(server: RunningServer, http: httpx.Client) -> None:
    wander(server)
    body = completion(max_tokens=3, response_format=json_schema(PERSON))
    assert http.post(COMPLETIONS, json=body).json()["choices"][0]["finish_reason"] == "length"


def test_streamed(server: RunningServer, http: httpx.Client) -> None:
    wander(server)
    body = chat(response_format=json_schema(PERSON), seed=5, max_tokens=300)
    whole = http.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
    events = events_of(http.post(CHAT, json=body | {"stream": True}).text)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_end_of_the_text_is_the_grammars(server: RunningServer, http: httpx.Client) -> None:
    """A model that wants to stop at once cannot; one that is told to go on for ever ends with its grammar."""
    body = completion(regex="ab|abcd", max_tokens=50)
    server.say("")
    assert http.post(COMPLETIONS, json=body).json()["choices"][0]["text"] in ("ab", "abcd")
    server.say("abcdefg")
    answer = http.post(COMPLETIONS, json=body | {"ignore_eos": True}).json()
    assert answer["choices"][0]["text"] == "abcd"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_cuts_before_the_grammar_ends(server: RunningServer, http: httpx.Client) -> None:
    """The client's own wish: then the output is a beginning of what the grammar describes."""
    server.say('{"a": "stop here"}')
    body = completion(response_format={"type": "json_object"}, stop=" here", max_tokens=50)
    choice = http.post(COMPLETIONS, json=body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ('{"a": "stop', "stop")


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": json_schema({"not": {}})}, "response_format.json_schema.schema", '"not"'),
        ({"response_format": json_schema({"type": "array", "uniqueItems": True})}, None, "uniqueItems"),
        ({"response_format": json_schema({"format": "nope", "type": "string"})}, None, "format"),
        ({"response_format": json_schema({"$ref": "#/nowhere"})}, None, "$ref: Pointer '/nowhere'"),
        ({"response_format": json_schema({"$ref": "http://a.example/b"})}, None, "$ref"),
        (
            {"response_format": json_schema({"type": "string", "pattern": "a(?=b)"})},
            None,
            "pattern a(?=b): look-around",
        ),
        (
            {"response_format": json_schema({"patternProperties": {"(a": {}}, "type": "object"})},
            None,
            "pattern (a: unclosed",
        ),
        ({"guided_json": {"patternProperties": {"a" * 5000: {}}, "type": "object"}}, None, "4096"),
        ({"guided_json": {"enum": []}}, "guided_json", "at least one value"),
        ({"response_format": json_schema({"type": "number", "minimum": 3, "maximum": 2})}, None, "minimum"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        (
            {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
            "response_format.schema",
            "put the schema in response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object", "properties": {}}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"regex": "a(?=b)"}, "regex", "regex"),
        ({"regex": "a["}, "regex", "regex"),
        ({"regex": "a" * 5000}, "regex", "4096"),
        ({"grammar": "start: nowhere"}, "grammar", "nowhere"),
        ({"grammar": "no grammar at all"}, "grammar", ""),
        ({"choice": []}, "choice", "at least one"),
        ({"choice": ["a", ""]}, "choice", "empty"),
        ({"regex": "a", "choice": ["a"]}, "choice", "cannot be combined"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "cannot be combined"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "structures must be"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "not JSON"),
        ({"structured_outputs": {"structural_tag": "[]"}}, "structured_outputs.structural_tag", "an object"),
        (
            {"structured_outputs": {"structural_tag": {"format": {"type": "regex", "pattern": "a"}}}},
            "structured_outputs.structural_tag",
            "format.type must be one of",
        ),
        (
            {"response_format": TAG | {"format": {"type": "json_schema", "json_schema": {"not": {}}}}},
            "response_format",
            '"not"',
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structures must be"),
        ({"response_format": TAG | {"format": {"value": "x" * 66_000}}}, "response_format", "65536"),
        (
            {"response_format": {"type": "text", "triggers": ["a"]}},
            "response_format.triggers",
            "only allowed with",
        ),
        ({"guided_json": {"allOf": [{"pattern": f".*{n}.*"} for n in range(13)]}}, "guided_json", "allOf"),
        (
            {"guided_json": {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"properties": PATTERNS}}}},
            "guided_json",
            "allOf",
        ),
        ({"grammar": "start: A\nA: " + " & ".join(f"/.*{n}.*/" for n in range(14))}, "grammar", "&"),
        ({"regex": "a+", "min_tokens": 3}, "min_tokens", "form"),
        ({"regex": "a+", "use_beam_search": True, "n": 2}, "regex", "beam"),
        ({"guided_json": False}, "guided_json", "false"),
        ({"guided_json": {"enum": list(range(5001))}}, "guided_json", "5000"),
        ({"guided_json": {"enum": ["x" * 66_000]}}, "guided_json", "65536"),
        ({"guided_json": json.loads('{"items":' * 64 + "{}" + "}" * 64)}, "guided_json", "64"),
        ({"guided_json": {"const": -(2**63)}}, "guided_json", "const must be at least"),
        ({"grammar": 'start: "a" %json {"enum": [-9223372036854775808]}'}, "grammar", "enum must be at least"),
        ({"guided_json": '{"items":' * 300 + "{}" + "}" * 300}, "guided_json", "64 levels deep"),
        ({"guided_json": json.loads('{"items":' * 100 + "{}" + "}" * 100)}, "guided_json", "64 levels deep"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], param: str | None, word: str
) -> None:
    response = http.post(COMPLETIONS, json=completion(**fields))
    error = error_of(response)
    assert response.status_code == 400
    assert param is None or error["param"] == param
    assert word in error["message"]
    assert len(error["message"]) < 400


def test_text_is_no_constraint(server: RunningServer, http: httpx.Client) -> None:
    server.say("plain")
    body = completion(response_format={"type": "text"}, structured_outputs={})
    assert http.post(COMPLETIONS, json=body).json()["choices"][0]["text"] == "plain"


def test_many_patterns_apart_are_no_trouble(server: RunningServer, http: httpx.Client) -> None:
    wander(server)
    schema = {"type": "object", "properties": PATTERNS, "allOf": [{"required": []}], "additionalProperties": False}
    answer = http.post(COMPLETIONS, json=completion(guided_json=schema, max_tokens=1))
    assert answer.status_code == 200, answer.text


OUTGROWING = {"regex": "((a{1,40}){1,40}){1,40}"}
"""It compiles; after some tokens its automaton is larger than any may be."""


def endless(server: RunningServer) -> None:
    """A model that goes on for as long as it may."""
    server.play(lambda prompt, so_far, seed: 3)


def test_a_grammar_that_outgrows_the_limits_is_the_clients_fault(server: RunningServer, http: httpx.Client) -> None:
    """And what was written is not passed off as whole: llguidance allows the end where it has given up."""
    endless(server)
    answer = http.post(COMPLETIONS, json=completion(**OUTGROWING, max_tokens=400))
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == "regex"
    assert error["message"].startswith("regex: the grammar exceeds the limits of this server: ")
    assert "too many expressions" in error["message"]


def test_a_stream_is_told_of_it_too(server: RunningServer, http: httpx.Client) -> None:
    endless(server)
    answer = http.post(COMPLETIONS, json=completion(**OUTGROWING, max_tokens=400, stream=True))
    *_, last, done = answer.text.strip().split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "regex")
    assert done == "data: [DONE]"


def test_a_grammar_that_takes_too_long_to_follow_ends_its_request(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is the engine's thread's, which no other request gets meanwhile."""
    monkeypatch.setattr(grammar_matcher, "_SLOW_ACCEPT_S", -1.0)
    endless(server)
    answer = http.post(COMPLETIONS, json=completion(grammar='start: s\ns: s s | "a"', max_tokens=10))
    assert answer.status_code == 400
    assert "grammar: reading the output by this grammar takes too long" in error_of(answer)["message"]


def test_a_multiple_of_many_digits_is_refused_by_name(server: RunningServer, http: httpx.Client) -> None:
    schema = {"type": "integer", "multipleOf": 9_999_991}
    answer = http.post(CHAT, json=chat(response_format=json_schema(schema)))
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == "response_format.json_schema.schema"
    assert "multipleOf may have at most 5 significant digits" in error["message"]


def test_bombs_hold_up_nobody(server: RunningServer, http: httpx.Client) -> None:
    """Two whose numbers look harmless, and a third client's grammar beside them. The work of a bomb is stopped."""
    bombs = [
        {"properties": {f"k{n}": {"type": "integer", "multipleOf": each - 2 * n} for n in range(60)}}
        for each in (99_991, 99_867)
    ]
    http.post(COMPLETIONS, json=completion(regex="ab"))  # starts the process
    before_mib = resident_mib()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(http.post, COMPLETIONS, json=completion(guided_json=bomb), timeout=60) for bomb in bombs]
        time.sleep(0.1)
        started_s = time.monotonic()
        ordinary = http.post(COMPLETIONS, json=completion(regex="[0-9]{3}x"), timeout=30)
        took_s = time.monotonic() - started_s
        refused = [each.result() for each in asked]
    assert ordinary.status_code == 200
    assert took_s < 5
    assert all(each.status_code in (400, 503) for each in refused)
    assert resident_mib() - before_mib < 100


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
