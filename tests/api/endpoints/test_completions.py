from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from service.api.calls import completion_call
from service.api.calls.prompt_ids import prompt_token_ids
from service.api.serving_state import GenerationDefaults
from tests.api.running_server import END_ID, MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of, post, stream
from tests.text import tiny_tokenizers

NOT_ASKED_FOR = dict.fromkeys(("logprobs", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"))


def test_answers(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("a short answer, ünd 你好")
    body = post(http, max_tokens=100)
    assert body["choices"] == [
        {"index": 0, "text": "a short answer, ünd 你好", "finish_reason": "stop", **NOT_ASKED_FOR}
    ]
    assert body["object"] == "text_completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("cmpl-")
    prompt_tokens = len(server.tokenizer.encode("hello", add_special_tokens=True))
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),  # the token that ends it is counted
        "total_tokens": prompt_tokens + len(ids),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_max_tokens_is_16_by_default(server: RunningServer, http: httpx.Client) -> None:
    server.say("x" * 100)
    body = post(http)
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(server: RunningServer, http: httpx.Client, name: str) -> None:
    server.say("x" * 100)
    assert post(http, **{name: 3})["choices"][0]["text"] == "xxx"


@pytest.mark.parametrize(
    "prompt", ["hello", ["hello"], [75, 76], [[75, 76]]], ids=["text", "texts", "ids", "lists of ids"]
)
def test_prompt_may_be_text_or_ids_one_or_many(server: RunningServer, http: httpx.Client, prompt: Any) -> None:
    server.say("ok")
    choice = post(http, prompt=prompt, return_token_ids=True)["choices"][0]
    expected = [75, 76] if "hello" not in prompt else server.tokenizer.encode("hello", add_special_tokens=True)
    assert choice["prompt_token_ids"] == expected


def test_several_prompts_and_choices(server: RunningServer, http: httpx.Client) -> None:
    """Choice index = prompt index * n + i; choice i draws with seed + i; prompts are counted once."""
    first_byte = server.tokenizer.encode("a", add_special_tokens=False)[0]
    server.play(lambda prompt, so_far, seed: [prompt[-1], first_byte + seed, END_ID][len(so_far)])
    body = post(http, prompt=["x", "y", "z"], n=2, seed=3, max_tokens=10)
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"] for choice in body["choices"]] == ["xd", "xe", "yd", "ye", "zd", "ze"]
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 18


def test_without_a_seed_the_seeds_differ(server: RunningServer, http: httpx.Client) -> None:
    seeds = set()
    server.play(lambda prompt, so_far, seed: seeds.add(seed) or END_ID)
    for _ in range(4):
        post(http)
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_sampling_fields_reach_the_engine(server: RunningServer, http: httpx.Client) -> None:
    post(http, temperature=0.5, top_p=0.9, top_k=7, seed=-5, n=2)
    sampling = server.executor.last_sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed, sampling.n) == (0.5, 0.9, 7, -5, 2)
    assert sampling.stop_token_ids == {END_ID}


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 1e-9}, {"top_p": 0}, {"top_p": 1e-300}, {"temperature": 1e-320}]
)
def test_greedy(server: RunningServer, http: httpx.Client, fields: dict[str, float]) -> None:
    post(http, **fields)
    assert server.executor.last_sampling.is_greedy


def test_the_models_own_defaults() -> None:
    scene = Scene(defaults=GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        post(http)
        sampling = server.executor.last_sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)
        post(http, temperature=1, top_k=-1)
        sampling = server.executor.last_sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.95, 0)


def test_ignore_eos(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: END_ID)
    body = post(http, ignore_eos=True, max_tokens=7)
    assert body["choices"][0] == {
        "index": 0,
        "text": "",
        "finish_reason": "length",
        **NOT_ASKED_FOR,
    }
    assert body["usage"]["completion_tokens"] == 7


def test_the_stop_token_is_in_the_ids_but_not_in_the_text(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("hi")
    choice = post(http, return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == ids
    assert choice["text"] == "hi"


@pytest.mark.parametrize(
    ("said", "stop", "text", "reason"),
    [
        ("one two three", "two", "one ", "stop"),
        ("one two three", ["three", "two"], "one ", "stop"),
        ("say 你好吗 now", "好", "say 你", "stop"),
        ("héllo", "él", "h", "stop"),
        ("almost sto", "stop", "almost sto", "stop"),  # ends by itself; what was held back comes out
        ("abc", ["bc", "abc"], "", "stop"),
    ],
)
def test_stop_strings(server: RunningServer, http: httpx.Client, said: str, stop: Any, text: str, reason: str) -> None:
    server.say(said)
    whole = post(http, stop=stop, max_tokens=100)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (text, reason)
    chunks = stream(http, stop=stop, max_tokens=100)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert chunks[-1]["choices"][0]["finish_reason"] == reason


def test_a_stop_string_ends_the_choice_in_the_engine(server: RunningServer, http: httpx.Client) -> None:
    server.say("go STOP " + "x" * 1000)
    server.executor.delay_s = 0.001
    body = post(http, stop="STOP", max_tokens=1500)
    said_until_then = len(server.tokenizer.encode("go STOP", add_special_tokens=False))
    assert body["usage"]["completion_tokens"] == said_until_then
    assert server.executor.num_iterations < 100


def test_one_choice_may_stop_while_others_go_on(server: RunningServer, http: httpx.Client) -> None:
    ids = [server.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcdefgh"]
    server.play(lambda prompt, so_far, seed: ids[len(so_far)] if seed == 1 else ids[0])
    body = post(http, stop="cd", n=3, seed=0, max_tokens=8)
    texts = [(choice["text"], choice["finish_reason"]) for choice in body["choices"]]
    assert texts == [("aaaaaaaa", "length"), ("ab", "stop"), ("aaaaaaaa", "length")]
    assert body["usage"]["completion_tokens"] == 8 + 4 + 8


def test_streams(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("some text, 你好")
    chunks = stream(http, max_tokens=100, return_token_ids=True)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "some text, 你好"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all(choice["text"] for choice in choices[:-1])
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == ids
    assert [("prompt_token_ids" in choice) for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert all("usage" not in chunk for chunk in chunks)


def test_streamed_choices_of_several_prompts(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: [prompt[-1], prompt[-1], END_ID][len(so_far)])
    chunks = stream(http, prompt=["x", "y"], n=2, stream_options={"include_usage": True})
    texts = ["", "", "", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ["xx", "xx", "yy", "yy"]
    assert chunks[-1]["usage"]["completion_tokens"] == 12


def test_stream_usage(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("one two")
    chunks = stream(http, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(ids)
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    both = {"include_usage": True, "continuous_usage_stats": True}
    running_usage = [chunk["usage"]["completion_tokens"] for chunk in stream(http, stream_options=both)]
    assert not any("usage" in chunk for chunk in stream(http, stream_options={"continuous_usage_stats": True}))
    assert running_usage == sorted(running_usage)
    assert running_usage[-1] == len(ids)


def test_explicit_max_tokens_must_fit_the_context(server: RunningServer, http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=completion(prompt=[5] * 10, max_tokens=2039))
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "max_tokens"
    assert "2048" in error["message"] and "2049" in error["message"]
    assert http.post(COMPLETIONS, json=completion(prompt=[5] * 10, max_tokens=2038)).status_code == 200


def test_implicit_max_tokens_is_cut_to_the_context(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    assert post(http, prompt=[5] * 2040)["usage"]["completion_tokens"] == 8


def test_the_prompt_must_fit_the_context(server: RunningServer, http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=completion(prompt=[5] * 2048))
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert error_of(response)["param"] == "prompt"


def test_what_can_never_fit_the_kv_cache_is_refused() -> None:
    with running(Scene(num_blocks=16)) as server, httpx.Client(base_url=server.base_url) as http:
        response = http.post(COMPLETIONS, json=completion(prompt=[5] * 10, max_tokens=100))
        assert response.status_code == 400
        assert error_of(response)["code"] == "context_length_exceeded"
        server.play(lambda prompt, so_far, seed: 75)
        body = post(http, prompt=[5] * 50, n=2)  # the default is cut to the cache
        assert body["usage"]["completion_tokens"] == 2 * 7


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["ok", ""], [[5], []]])
def test_an_empty_prompt_is_refused(http: httpx.Client, prompt: Any) -> None:
    response = http.post(COMPLETIONS, json=completion(prompt=prompt))
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[-1], [5, 10**6], [[5], [10**6]], [2**63]])
def test_ids_outside_the_vocabulary_are_refused(http: httpx.Client, prompt: Any) -> None:
    response = http.post(COMPLETIONS, json=completion(prompt=prompt))
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"
    assert "vocabulary" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("prompt", "status"),
    [("hello lazy dog <|im_end|> " * 200, 200), (list(range(3, 300)) * 400, 400)],
    ids=["text", "ids"],
)
def test_a_long_prompt_does_not_hold_up_others(
    server: RunningServer, http: httpx.Client, prompt: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered, and generate, from the moment that its reading begins until long after."""
    begun, gate = threading.Event(), threading.Event()

    def held(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert gate.wait(10)
        return read(*args, **kwargs)

    others = completion(prompt=[5], max_tokens=3)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(completion_call, "prompt_token_ids", partial(held, prompt_token_ids))
        posting = pool.submit(httpx.post, server.base_url + COMPLETIONS, json=completion(prompt=prompt))
        assert begun.wait(10)
        patch.undo()
        for _ in range(3):
            assert http.get("/health").status_code == 200
            assert http.post(COMPLETIONS, json=others).status_code == 200
        assert not posting.done()
        gate.set()
        assert posting.result().status_code == status  # 400: too long for the context


def test_bounds_of_prompts_and_sequences(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=completion(prompt=["a"] * 129))
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")
    for param, asked in (
        ("n", {"n": 5}),
        ("best_of", {"n": 2, "best_of": 5}),
        ("beam_width", {"use_beam_search": True, "beam_width": 5}),
    ):
        response = http.post(COMPLETIONS, json=completion(prompt=["a"] * 60, **asked))
        assert (response.status_code, error_of(response)["param"]) == (400, param)
        assert f"60 prompts with {param} 5 are 300 sequences" in error_of(response)["message"]


def test_one_refused_prompt_refuses_the_call(server: RunningServer, http: httpx.Client) -> None:
    server.executor.delay_s = 0.01
    response = http.post(COMPLETIONS, json=completion(prompt=[[5], [5] * 3000]))
    assert response.status_code == 400
    server.check_idle()
    assert server.executor.num_iterations <= 2


@pytest.mark.parametrize("stream", [False, True])
def test_stop_token_ids(server: RunningServer, http: httpx.Client, stream: bool) -> None:
    server.play(lambda prompt, so_far, seed: 70 + len(so_far))
    body = completion(stop_token_ids=[73, 200], max_tokens=10, return_token_ids=True, stream=stream)
    response = http.post(COMPLETIONS, json=body)
    choices = [event["choices"][0] for event in events_of(response.text)] if stream else response.json()["choices"]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == [70, 71, 72, 73]
    assert "".join(choice["text"] for choice in choices) == server.tokenizer.decode([70, 71, 72])
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", 73)


def test_ignore_eos_leaves_stop_token_ids_alone(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: [2, 2, 73][min(len(so_far), 2)])
    answer = http.post(COMPLETIONS, json=completion(stop_token_ids=[73], ignore_eos=True)).json()
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("ids", [[420_000], [-1], ["x"], 5, [1.5], list(range(1025))])
def test_stop_token_ids_that_cannot_be(http: httpx.Client, ids: object) -> None:
    response = http.post(COMPLETIONS, json=completion(stop_token_ids=ids))
    assert response.status_code == 400
    assert str(error_of(response)["param"]).startswith("stop_token_ids")


@pytest.mark.parametrize("stream", [False, True])
def test_include_stop_str_in_output(server: RunningServer, http: httpx.Client, stream: bool) -> None:
    server.say("one two three")
    body = completion(stop="two", include_stop_str_in_output=True, max_tokens=50, stream=stream)
    response = http.post(COMPLETIONS, json=body)
    choices = [event["choices"][0] for event in events_of(response.text)] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "one two"
    assert choices[-1]["stop_reason"] == "two"


def test_the_stop_reason_of_the_end_is_null(server: RunningServer, http: httpx.Client) -> None:
    choice = http.post(COMPLETIONS, json=completion()).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


def test_the_best_of_many_by_mean_logprob(server: RunningServer, http: httpx.Client) -> None:
    """To the scripted model token i has logprob -i / 100: low ids are better, and length does not count."""
    server.play(lambda prompt, so_far, seed: [90 - seed, 90 - seed, END_ID][len(so_far)] if seed % 2 else END_ID + 40)
    body = post(http, prompt=["x", "y"], n=2, best_of=5, seed=0, max_tokens=3, return_token_ids=True)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["token_ids"] for choice in body["choices"]] == [[42, 42, 42], [42, 42, 42]] * 2
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 2 * 5 * 3


@pytest.mark.parametrize(
    "fields", [{"best_of": 21}, {"best_of": 0}, {"best_of": 2, "n": 3}, {"best_of": 2, "stream": True}], ids=str
)
def test_best_of_limits(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert error_of(http.post(COMPLETIONS, json=completion(**fields)))["param"] == "best_of"


def test_min_tokens_hold_off_stop_strings(server: RunningServer, http: httpx.Client) -> None:
    server.say("abcabcabc")
    choice = post(http, stop="b", min_tokens=4, max_tokens=50)["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("abca", "b")
    assert server.executor.last_sampling.min_tokens == 4


def test_tokens_that_the_tokenizer_has_and_the_model_has_not(server: RunningServer) -> None:
    """Added to a tokenizer and not to the weights; in an iteration they would be read outside the embedding."""
    last = server.tokenizer.num_tokens - 1
    text = server.tokenizer.decode([last], skip_special_tokens=False)
    assert last in server.tokenizer.encode(text, add_special_tokens=False)
    with running(Scene(vocab_size=last)) as smaller, httpx.Client(base_url=smaller.base_url) as http:
        for response, param in (
            (http.post(COMPLETIONS, json=completion(prompt=["a", text])), "prompt"),
            (http.post(CHAT, json=chat(text)), "messages"),
        ):
            assert response.status_code == 400
            assert error_of(response)["param"] == param
            assert f"token id {last} is outside the vocabulary" in error_of(response)["message"]
        smaller.say("b")
        assert http.post(COMPLETIONS, json=completion(bad_words=[text])).json()["choices"][0]["text"] == "b"


def test_special_tokens_can_be_shown(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: [1, 75, END_ID][len(so_far)])
    name, shown = tiny_tokenizers.START, server.tokenizer.decode([75])
    assert post(http, max_tokens=5)["choices"][0]["text"] == shown
    assert post(http, max_tokens=5, skip_special_tokens=False)["choices"][0]["text"] == name + shown


@pytest.mark.parametrize(("keep", "kept"), [(2, 2), (100, 9), (-1, 9)])
def test_truncate_prompt_tokens(server: RunningServer, http: httpx.Client, keep: int, kept: int) -> None:
    prompt = list(range(70, 79))
    server.say("x")
    choice = post(http, prompt=prompt, truncate_prompt_tokens=keep, return_token_ids=True, echo=True)["choices"][0]
    assert choice["prompt_token_ids"] == prompt[-kept:]
    assert choice["text"] == server.tokenizer.decode(prompt[-kept:]) + "x"
    long = [75] * 3000
    body = post(http, prompt=long, truncate_prompt_tokens=-1, max_tokens=48)
    assert body["usage"]["prompt_tokens"] == server.scene.max_model_len - 48


@pytest.mark.parametrize("keep", [0, -2, 10**6])
def test_truncate_prompt_tokens_that_cannot_be(http: httpx.Client, keep: int) -> None:
    error = error_of(http.post(COMPLETIONS, json=completion(truncate_prompt_tokens=keep)))
    assert error["param"] == "truncate_prompt_tokens"


def test_system_fingerprint(server: RunningServer, http: httpx.Client) -> None:
    whole = http.post(COMPLETIONS, json=completion()).json()["system_fingerprint"]
    chunks = events_of(http.post(COMPLETIONS, json=completion(stream=True)).text)
    assert whole.startswith("fp_")
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole}


@pytest.mark.parametrize(("name", "value"), [("priority", 3), ("service_tier", "flex"), ("service_tier", "priority")])
def test_a_priority_that_nothing_heeds_is_refused(http: httpx.Client, name: str, value: object) -> None:
    error = error_of(http.post(COMPLETIONS, json=completion(**{name: value})))
    assert (error["code"], error["param"]) == ("unsupported_parameter", name)
    assert http.post(COMPLETIONS, json=completion(priority=0, service_tier="auto")).json()["service_tier"] == "default"
    assert http.post(COMPLETIONS, json=completion()).json()["service_tier"] is None


@pytest.mark.parametrize("salt", ["", "x" * 1025, 5])
def test_a_cache_salt_that_cannot_be(http: httpx.Client, salt: object) -> None:
    assert error_of(http.post(COMPLETIONS, json=completion(cache_salt=salt)))["param"] == "cache_salt"
    assert http.post(COMPLETIONS, json=completion(cache_salt="tenant")).status_code == 200


def test_a_text_that_can_never_fit_is_refused_without_reading_it(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    encode = server.tokenizer.encode
    monkeypatch.setattr(server.tokenizer, "encode", lambda *args, **kw: (read.append(1), encode(*args, **kw))[1])
    long = "x " * 2_000_000
    response = http.post(COMPLETIONS, json=completion(prompt=["short", long]))
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert re.search(r"maximum context length is 2048 tokens, but the prompt has at least \d+ tokens", error["message"])
    assert read == []
    cut = http.post(COMPLETIONS, json=completion(prompt="x " * 50_000, truncate_prompt_tokens=5, max_tokens=1))
    assert cut.json()["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(("side", "kept"), [("left", [7, 8]), ("right", [5, 6]), (None, [7, 8])])
def test_truncation_side(http: httpx.Client, side: str | None, kept: list[int]) -> None:
    body = completion(prompt=[5, 6, 7, 8], truncate_prompt_tokens=2, truncation_side=side, return_token_ids=True)
    assert http.post(COMPLETIONS, json=body).json()["choices"][0]["prompt_token_ids"] == kept


def test_the_model_need_not_be_named(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=completion(model=None))
    assert (response.status_code, response.json()["model"]) == (200, MODEL)


def test_sglangs_no_stop_trim_shows_the_stop_string(server: RunningServer, http: httpx.Client) -> None:
    server.say("one stop two")
    assert post(http, stop="stop", no_stop_trim=True)["choices"][0]["text"] == "one stop"
    assert post(http, stop="stop", no_stop_trim=False)["choices"][0]["text"] == "one "


def test_as_many_stop_strings_as_the_server_takes(server: RunningServer, http: httpx.Client) -> None:
    server.say("abcdefghijklmnopq")
    assert post(http, stop=list("zyxwvutsr!?0123p"))["choices"][0]["text"] == "abcdefghijklmno"
    config = replace(Scene().config, max_stops=2, max_logprobs=128)
    with running(Scene(config=config)) as other, httpx.Client(base_url=other.base_url) as its:
        assert "at most 2" in error_of(its.post(COMPLETIONS, json=completion(stop=["a", "b", "c"])))["message"]
        other.say("a")
        choice = post(its, logprobs=128)["choices"][0]
        assert len(choice["logprobs"]["top_logprobs"][0]) >= 120  # some of the 128 have the same text
        maximum = its.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]
        assert maximum["logprobs"]["maximum"] == 128
