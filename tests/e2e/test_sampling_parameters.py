"""Sampling parameters and log probabilities against the real service and its own model, through openai-python.

Strict validation wherever OpenAI's own types allow what OpenAI sends (they know no null among echoed logprobs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from transformers import AutoModelForCausalLM

from service.settings.quickstart import QUICKSTART_MODEL
from service.text.tokenizer import Tokenizer
from tests.e2e.server_process import ServerProcess
from tests.e2e.strict_client import strict_client

MODEL = "headrace-quickstart"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Headrace?"}]
PROMPT = "Headrace is an inference service. It"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "32MiB") as server:
        yield server


@pytest.fixture
def strict(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client
    server.wait_for_gauge("headrace_kv_blocks_used", 0)


@pytest.fixture
def lenient(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(QUICKSTART_MODEL)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return AutoModelForCausalLM.from_pretrained(QUICKSTART_MODEL, dtype=torch.float32).eval()


@torch.inference_mode()
def logprobs_of(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """[len(token_ids) - 1, vocab_size]: row i predicts token i + 1."""
    return oracle(torch.tensor([token_ids])).logits[0, :-1].log_softmax(-1)


def test_chat_logprobs_are_the_models(strict: OpenAI, oracle: Any, tokenizer: Tokenizer) -> None:
    answer = strict.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=1.3,
        seed=3,
        max_tokens=12,
        logprobs=True,
        top_logprobs=5,
        extra_body={"return_token_ids": True, "repetition_penalty": 1.3, "prompt_logprobs": 1},
    )
    choice = answer.choices[0]
    assert answer.model_extra is not None and choice.model_extra is not None
    prompt, output = answer.model_extra["prompt_token_ids"], choice.model_extra["token_ids"]
    reference = logprobs_of(oracle, prompt + output)
    assert choice.logprobs is not None
    entries = choice.logprobs.content
    assert entries is not None
    assert len(entries) == len(output)
    for entry, token, row in zip(entries, output, reference[len(prompt) - 1 :], strict=True):
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
        assert bytes(entry.bytes or []) == tokenizer.spelled_bytes[token]
    assert answer.model_extra is not None
    first, *scored = answer.model_extra["prompt_logprobs"]
    assert first is None
    for place, token, row in zip(scored, prompt[1:], reference, strict=False):
        assert place[str(token)]["logprob"] == pytest.approx(float(row[token]), abs=1e-3)
        assert place[str(int(row.argmax()))]["rank"] == 1


def test_the_logprobs_of_given_tokens(strict: OpenAI, lenient: OpenAI, oracle: Any) -> None:
    """At each step, in the order in which they were asked for, whatever a neighbour in the batch wants."""
    given = [700, 3, 44]
    extra: Any = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprob_token_ids": given}
    common: Any = {"model": MODEL, "temperature": 1.2, "seed": 5, "max_tokens": 8, "n": 2}
    chat = strict.chat.completions.create(messages=QUESTION, logprobs=True, extra_body=extra, **common)
    prompt = (chat.model_extra or {})["prompt_token_ids"]
    text = strict.completions.create(prompt=prompt, logprobs=1, extra_body=extra, **common)
    chunks = lenient.completions.create(prompt=prompt, logprobs=1, extra_body=extra, stream=True, **common)
    streamed: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.logprobs.top_logprobs if choice.logprobs else []
    for choice, same in zip(chat.choices, text.choices, strict=True):
        output = (choice.model_extra or {})["token_ids"]
        rows = logprobs_of(oracle, prompt + output)[len(prompt) - 1 :]
        assert choice.logprobs is not None and choice.logprobs.content is not None and same.logprobs is not None
        for entry, token, row in zip(choice.logprobs.content, output, rows, strict=True):
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
            told_ids = given if token in given else [token, *given]  # what was drawn is told in any case
            assert [top.token for top in entry.top_logprobs] == [f"token_id:{each}" for each in told_ids]
            assert [top.logprob for top in entry.top_logprobs] == pytest.approx(row[told_ids].tolist(), abs=1e-3)
        told = [
            {**{top.token: top.logprob for top in entry.top_logprobs}, entry.token: entry.logprob}
            for entry in choice.logprobs.content
        ]
        assert same.logprobs.top_logprobs == told == streamed[choice.index]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprob_token_ids": [3]}, "logprob_token_ids"),
        ({"logprob_token_ids": [10**6], "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": [-1], "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": [3] * 129, "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": [3], "logprobs": 0, "echo": True}, "echo"),
        ({"logprob_token_ids": [3], "logprobs": 0, "use_beam_search": True, "n": 2}, "logprob_token_ids"),
    ],
    ids=["no logprobs", "no token", "negative", "too many", "echo", "beams"],
)
def test_given_tokens_are_refused_where_they_mean_nothing(lenient: OpenAI, asked: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refusal:
        lenient.completions.create(model=MODEL, prompt="Hello", extra_body=asked)
    assert refusal.value.param == param


@pytest.mark.parametrize("max_tokens", [0, 6])
def test_echo_with_logprobs_scores_a_prompt(lenient: OpenAI, oracle: Any, max_tokens: int) -> None:
    answer = lenient.completions.create(
        model=MODEL,
        prompt=PROMPT,
        echo=True,
        logprobs=2,
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    choice = answer.choices[0]
    assert choice.model_extra is not None
    ids = choice.model_extra["prompt_token_ids"] + choice.model_extra["token_ids"]
    reference = logprobs_of(oracle, ids)
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    expected = reference.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-3)
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.text_offset is not None
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert token.startswith("<|") or choice.text[offset:].startswith(token)


def test_completion_logprobs_in_strict_validation(strict: OpenAI) -> None:
    answer = strict.completions.create(model=MODEL, prompt=PROMPT, logprobs=0, max_tokens=5, n=2, seed=1)
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert len(choice.logprobs.token_logprobs or []) == 5
        assert [len(top) for top in choice.logprobs.top_logprobs or []] == [1] * 5


def test_streamed_is_unstreamed_with_everything(strict: OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "n": 3,
        "seed": 11,
        "max_tokens": 20,
        "temperature": 2.0,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "logit_bias": {"300": 3, "301": -100},
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"min_p": 0.0001, "repetition_penalty": 1.1, "min_tokens": 8, "bad_words": ["the"]},
    }
    whole = strict.chat.completions.create(**arguments)
    chunks = list(strict.chat.completions.create(**arguments, stream=True))
    texts = {choice.message.content for choice in whole.choices}
    assert len(texts) == 3
    for choice in whole.choices:
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        streamed = [entry for part in parts if part.logprobs for entry in part.logprobs.content or []]
        assert choice.logprobs is not None
        assert streamed == choice.logprobs.content
        assert len(streamed) >= 8
        assert " the" not in (choice.message.content or "")


def test_bias_and_allowed_ids_decide(strict: OpenAI, tokenizer: Tokenizer) -> None:
    forced = strict.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, logit_bias={"500": 100}, temperature=0)
    assert forced.choices[0].text == tokenizer.decode([500] * 4)
    allowed = strict.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=8, extra_body={"allowed_token_ids": [400, 401], "return_token_ids": True}
    )
    assert allowed.choices[0].model_extra is not None
    assert set(allowed.choices[0].model_extra["token_ids"]) <= {400, 401}


def test_the_best_of_five_is_the_likeliest(strict: OpenAI) -> None:
    arguments: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 1.5, "seed": 4}
    every = strict.completions.create(**arguments, n=5, logprobs=0)
    best = strict.completions.create(**arguments, best_of=5, n=2)

    def mean(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))

    ranked = sorted(every.choices, key=mean, reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert best.usage is not None
    assert every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_refusals_name_field_and_limit(strict: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="between -2 and 2") as refusal:
        strict.chat.completions.create(model=MODEL, messages=QUESTION, presence_penalty=3)
    assert refusal.value.param == "presence_penalty"
    with pytest.raises(BadRequestError, match="outside the vocabulary"):
        strict.completions.create(model=MODEL, prompt="x", logit_bias={"2000000": 1})
