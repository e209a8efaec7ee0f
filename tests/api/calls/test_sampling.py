from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest

from service import api
from service.api.serving_state import GenerationDefaults
from service.core.sampling_params import SamplingParams
from service.protocol.generation import SamplingFields
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of

DEFAULTS = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
BY_NAME = [*SamplingFields.model_fields]
BODIES = [(COMPLETIONS, completion()), (CHAT, chat("hi"))]
FIELDS = {
    "min_p": 0.25,
    "presence_penalty": -1.5,
    "frequency_penalty": 2,
    "repetition_penalty": 1.25,
    "min_tokens": 3,
}


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_fields_reach_the_engine(server: RunningServer, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    asked = {**FIELDS, "logit_bias": {"7": -100, "8": 5.5}, "allowed_token_ids": [9, 8, 9]}
    assert http.post(path, json=body | asked).status_code == 200
    sampling = server.executor.last_sampling
    assert {name: getattr(sampling, name) for name in FIELDS} == FIELDS
    assert sampling.logit_bias == ((7, -100.0), (8, 5.5))
    assert sampling.allowed_token_ids == (8, 9)
    assert not sampling.is_plain


def bounds_of(name: str) -> tuple[float, float]:
    bounds: Any = SamplingFields.model_fields[name].json_schema_extra
    return bounds["minimum"], bounds.get("maximum", 10)


def value_of(name: str) -> float:
    """One that asks for something."""
    low, high = bounds_of(name)
    return int(high) // 2 if "int" in str(SamplingFields.model_fields[name].annotation) else low + (high - low) / 8


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_parameter_reaches_the_engine_under_its_name_and_within_its_bounds(
    server: RunningServer, http: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    assert http.post(path, json=body | {name: value_of(name)}).status_code == 200
    assert getattr(server.executor.last_sampling, name) == value_of(name)
    refusal = error_of(http.post(path, json=body | {name: bounds_of(name)[0] - 1}))
    assert refusal["param"] == name
    assert str(bounds_of(name)[0]) in refusal["message"]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_parameter_of_the_draws_is_refused_beside_beams(http: httpx.Client, name: str) -> None:
    beams = {"use_beam_search": True, "beam_width": 2}
    assert http.post(COMPLETIONS, json=completion(**beams, **{name: DEFAULTS[name]})).status_code == 200
    assert error_of(http.post(COMPLETIONS, json=completion(**beams, **{name: value_of(name)})))["param"] == name


@pytest.mark.parametrize("name", BY_NAME)
def test_a_parameter_is_the_engines_by_type_and_within_its_bounds_by_default(name: str) -> None:
    assert get_type_hints(SamplingFields)[name] == get_type_hints(SamplingParams)[name] | None
    low, high = bounds_of(name)
    assert low <= DEFAULTS[name] <= high


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_a_parameter_without_rules_of_its_own_is_one_line_of_the_api(name: str) -> None:
    service = Path(api.__file__).parents[1]
    files = {*(service / "api").rglob("*.py"), *(service / "protocol").rglob("*.py")}
    files.remove(service / "protocol/render.py")  # an answer that tells them all
    assert sum(name in line for file in files for line in file.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_neutral_values_ask_for_nothing(
    server: RunningServer, http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    neutral = {
        "min_p": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "bad_words": [],
        "allowed_token_ids": None,
        "min_tokens": 0,
        "best_of": 1,
        "skip_special_tokens": True,
        "logprobs": None,
    }
    response = http.post(path, json=body | neutral)
    assert response.status_code == 200
    assert "x-ignored-params" not in response.headers
    assert server.executor.last_sampling.is_plain


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_who_asks_for_determinism_has_it(
    server: RunningServer, http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    for asks in (True, False, None):
        answer = http.post(path, json=body | {"deterministic": asks})
        assert server.executor.last_sampling.deterministic is bool(asks)
        assert http.get(f"/v1/requests/{answer.json()['id']}/trace").json()["deterministic"] is bool(asks)


def test_where_all_are_deterministic_nobody_need_ask() -> None:
    scene = Scene(config=dataclasses.replace(Scene().config, deterministic=True))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        http.post(COMPLETIONS, json=completion())
        assert server.executor.last_sampling.deterministic
        card = http.get("/v1/models").json()["data"][0]
        assert (card["deterministic"], card["deterministic_on_request"]) == (True, True)


def test_who_asks_for_determinism_is_told_where_it_cannot_be() -> None:
    scene = Scene(config=dataclasses.replace(Scene().config, exact_swap=False))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.get("/v1/models").json()["data"][0]["deterministic_on_request"] is False
        assert http.post(COMPLETIONS, json=completion()).status_code == 200
        refusal = error_of(http.post(COMPLETIONS, json=completion(deterministic=True)))
    assert refusal["param"] == "deterministic"
    assert "--swap-compression" in refusal["message"]


def test_who_asks_for_determinism_is_told_to_start_the_server_so_where_it_would_slow_all_others() -> None:
    with running(Scene(takes_deterministic=False)) as server, httpx.Client(base_url=server.base_url) as http:
        card = http.get("/v1/models").json()["data"][0]
        assert (card["deterministic"], card["deterministic_on_request"]) == (False, False)
        for path, body in BODIES:
            answer = http.post(path, json=body | {"deterministic": True})
            assert answer.status_code == 400
            assert error_of(answer)["param"] == "deterministic"
            assert "--deterministic" in error_of(answer)["message"]
            assert http.post(path, json=body | {"deterministic": False}).status_code == 200


def test_the_models_own_defaults() -> None:
    scene = Scene(defaults=GenerationDefaults(min_p=0.05, repetition_penalty=1.1))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        http.post(COMPLETIONS, json=completion())
        assert server.executor.last_sampling.min_p == 0.05
        assert server.executor.last_sampling.repetition_penalty == 1.1
        http.post(COMPLETIONS, json=completion(min_p=0, repetition_penalty=1))
        assert server.executor.last_sampling.is_plain
        http.post(COMPLETIONS, json=completion(temperature=0))
        assert server.executor.last_sampling.min_p == 0


def test_bad_words_are_meant_at_the_start_of_a_text_and_behind_a_space(
    server: RunningServer, http: httpx.Client
) -> None:
    http.post(COMPLETIONS, json=completion(bad_words=["hat", " q"]))
    words = server.executor.last_sampling.bad_words
    encoded = {tuple(server.tokenizer.encode(text, add_special_tokens=False)) for text in ("hat", "q")}
    assert encoded <= set(words)
    assert all(server.tokenizer.decode(word).strip() in ("hat", "q") for word in words)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1000),
        ("min_tokens", -1),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"99999": 1}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [99999]),
        ("bad_words", [" "]),
        ("bad_words", ["x" * 2000]),
        ("bad_words", ["x"] * 129),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_refusals_name_the_field(http: httpx.Client, path: str, body: dict[str, Any], name: str, value: Any) -> None:
    response = http.post(path, json=body | {name: value})
    assert response.status_code == 400
    assert error_of(response)["param"] == name


def test_something_must_be_left_to_draw(http: httpx.Client) -> None:
    """Else every answer would be a server error."""
    asked = {"allowed_token_ids": [2], "min_tokens": 1}
    assert error_of(http.post(COMPLETIONS, json=completion(**asked)))["param"] == "allowed_token_ids"
    assert http.post(COMPLETIONS, json=completion(allowed_token_ids=[2])).status_code == 200
