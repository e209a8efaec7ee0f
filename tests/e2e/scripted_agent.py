"""The real app for an agent that runs in a process of its own. The model is scripted: it calls a tool that looks at a
file, and when the prompt holds the file's word it tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.api.running_server import END_ID, SCHEDULER, RunningServer, Scene
from tests.text import tiny_tokenizers

MODEL = "local-model"
_CONTEXT = 250_000
"""An agent's prompt has up to 20,000 tokens of a real model, and three times as many of the tests' tokenizer."""


def agent_scene() -> Scene:
    return Scene(
        chat_template=tiny_tokenizers.TOOL_TEMPLATE,
        max_model_len=_CONTEXT,
        num_blocks=_CONTEXT // 2,
        config=replace(Scene().config, served_model_names=(MODEL,)),
        scheduler=replace(SCHEDULER, max_num_batched_tokens=8192, max_waiting_tokens=2 * _CONTEXT),
    )


def call_and_tell(server: RunningServer, tool: str, arguments: dict[str, Any], word: str, thought: str = "") -> None:
    """From now on a prompt without the word is answered with a call of the tool, any other with the word. thought:
    stands before either, as the model's reasoning does."""

    def ids_of(text: str) -> list[int]:
        return [*server.tokenizer.encode(text, add_special_tokens=False), END_ID]

    call = json.dumps({"name": tool, "arguments": arguments})
    asks = ids_of(f"{thought}I read it.<tool_call>{call}</tool_call>")
    tells = ids_of(f"{thought}The word is {word}.")
    answers: dict[int, list[int]] = {}

    def answer(prompt: Sequence[int], so_far: Sequence[int], seed: int) -> int:
        if len(prompt) not in answers:
            answers[len(prompt)] = tells if word in server.tokenizer.decode(list(prompt)) else asks
        ids = answers[len(prompt)]
        return ids[min(len(so_far), len(ids) - 1)]

    server.play(answer)
