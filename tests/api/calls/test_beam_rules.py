from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.calls.beam_rules import num_top_logprobs
from service.core.sampling_params import BeamParams
from service.errors import InvalidRequest
from tests.api.running_server import RunningServer
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, post, stream

BEAMS: dict[str, Any] = {"use_beam_search": True, "beam_width": 3, "temperature": 0}


def test_the_n_best_beams_are_the_choices(http: httpx.Client) -> None:
    """To the scripted model token i has logprob -i / 100: the best beam says 0 always, the next have one 1."""
    body = post(http, prompt=["x", "y"], n=2, max_tokens=3, ignore_eos=True, return_token_ids=True, **BEAMS)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    tokens = [choice["token_ids"] for choice in body["choices"]]
    assert tokens[0] == tokens[2] == [0, 0, 0]
    assert sorted(tokens[1]) == sorted(tokens[3]) == [0, 0, 1]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 4 * 3


def test_the_width_is_n_where_nothing_else_is_said(server: RunningServer, http: httpx.Client) -> None:
    post(http, n=4, use_beam_search=True, max_tokens=2, length_penalty=0.5, early_stopping="never")
    assert server.executor.last_sampling.beam == BeamParams(4, 0.5, "never")


def test_chat_has_beams_too(http: httpx.Client) -> None:
    response = http.post(CHAT, json=chat("hi", n=2, max_completion_tokens=3, ignore_eos=True, **BEAMS))
    assert response.status_code == 200, response.text
    assert [choice["finish_reason"] for choice in response.json()["choices"]] == ["length"] * 2
    assert response.json()["usage"]["completion_tokens"] == 6


def test_logprobs_are_those_of_the_beams_that_are_shown(http: httpx.Client) -> None:
    fields = BEAMS | {"n": 2, "max_tokens": 3, "ignore_eos": True, "logprobs": 6, "return_token_ids": True}
    for choice in post(http, **fields)["choices"]:
        scores = choice["logprobs"]
        assert scores["token_logprobs"] == pytest.approx([-token_id / 100 for token_id in choice["token_ids"]])
        assert all(len(top) == 6 for top in scores["top_logprobs"]), "more than the search itself needs"


def test_chat_has_logprobs_of_beams(http: httpx.Client) -> None:
    asked = BEAMS | {"max_completion_tokens": 3, "ignore_eos": True, "logprobs": True, "top_logprobs": 0}
    response = http.post(CHAT, json=chat("hi", **asked))
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [0.0, 0.0, 0.0]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], [], []]


def test_a_stream_brings_the_text_at_its_end(server: RunningServer, http: httpx.Client) -> None:
    whole = post(http, n=2, max_tokens=5, ignore_eos=True, **BEAMS)
    chunks = stream(http, n=2, max_tokens=5, ignore_eos=True, **BEAMS)
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert server.executor.last_sampling.beam is not None


def test_stop_strings_cut_the_beams_that_are_shown(http: httpx.Client) -> None:
    fields = BEAMS | {"max_tokens": 6, "ignore_eos": True, "skip_special_tokens": False}
    whole = post(http, **fields)["choices"][0]["text"]
    assert len(whole) > 3
    choice = post(http, stop=whole[2], **fields)["choices"][0]
    assert choice["text"] == whole[:2]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", whole[2])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 1}, "beam_width"),
        ({"beam_width": 21}, "beam_width"),
        ({"beam_width": None}, "beam_width"),
        ({"n": 4}, "n"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"regex": "a+"}, "regex"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": False}, "beam_width"),
        ({"use_beam_search": None, "beam_width": None, "length_penalty": 2.0}, "length_penalty"),
        ({"stop_token_ids": list(range(128))}, "stop_token_ids"),
    ],
    ids=str,
)
def test_refusals_name_the_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = http.post(COMPLETIONS, json=completion(**(BEAMS | fields)))
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


def test_what_asks_for_nothing_is_accepted(http: httpx.Client) -> None:
    post(http, use_beam_search=False, beam_width=1, length_penalty=1.0, early_stopping=False)
    post(http, **(BEAMS | {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "presence_penalty": 0, "seed": 5}))


def test_each_beam_asks_for_enough_that_do_not_end_it() -> None:
    def params(stops: int, vocab_size: int = 1000, num_logprobs: int | None = None) -> int | None:
        return num_top_logprobs(BeamParams(4, num_logprobs=num_logprobs), range(stops), vocab_size)

    assert params(2) == 6
    assert params(2, num_logprobs=9) == 9
    assert params(2, vocab_size=7, num_logprobs=9) == 7
    assert params(124) == 128
    for stops, vocab_size in ((125, 1000), (3, 6)):
        with pytest.raises(InvalidRequest):
            params(stops, vocab_size)
