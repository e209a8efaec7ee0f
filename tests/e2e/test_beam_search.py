"""Beam search through the real service and openai-python equals transformers on the model that comes with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from service.settings.quickstart import QUICKSTART_MODEL
from tests.e2e.server_process import ServerProcess

PROMPT = list(range(100, 120))
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    arguments = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "32MiB")
    with (
        ServerProcess(*arguments) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
        server.wait_for_gauge("headrace_kv_blocks_used", 0)


@pytest.mark.parametrize("width", [2, 4])
def test_equals_transformers(client: OpenAI, width: int):
    model = AutoModelForCausalLM.from_pretrained(QUICKSTART_MODEL, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    made = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        max_new_tokens=MAX_TOKENS,
        num_beams=width,
        num_return_sequences=2,
        do_sample=False,
        length_penalty=0.8,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answer = client.completions.create(
        model="headrace-quickstart",
        prompt=PROMPT,
        max_tokens=MAX_TOKENS,
        n=2,
        temperature=0,
        logprobs=3,
        extra_body={
            "use_beam_search": True,
            "beam_width": width,
            "length_penalty": 0.8,
            "ignore_eos": True,
            "return_token_ids": True,
        },
    )
    got = [choice.model_extra["token_ids"] for choice in answer.choices if choice.model_extra]
    assert got == made.sequences[:, len(PROMPT) :].tolist()
    scored = [choice.logprobs for choice in answer.choices if choice.logprobs]
    sums = [sum(value for value in each.token_logprobs or () if value is not None) for each in scored]
    assert [total / MAX_TOKENS**0.8 for total in sums] == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * MAX_TOKENS
