"""Claude Code itself, where it is installed (`npm install -g @anthropic-ai/claude-code`), against the real app.

The model is scripted: it asks for a file, and then tells what is in it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.api.running_server import END_ID, SCHEDULER, RunningServer, Scene, running
from tests.text import tiny_tokenizers

MODEL = "local-model"
CONTEXT = 250_000
"""A prompt of it has some 20,000 tokens of a real model, and three times as many of the tests' tokenizer."""

needs_claude = pytest.mark.skipif(shutil.which("claude") is None, reason="there is no Claude Code")


def scene() -> Scene:
    return Scene(
        chat_template=tiny_tokenizers.TOOL_TEMPLATE,
        max_model_len=CONTEXT,
        num_blocks=CONTEXT // 2,
        config=replace(Scene().config, served_model_names=(MODEL,)),
        scheduler=replace(SCHEDULER, max_num_batched_tokens=8192, max_waiting_tokens=2 * CONTEXT),
    )


def read_and_tell(server: RunningServer, file: Path, word: str) -> None:
    """From now on a prompt without the word is answered with a call that reads the file, any other with the word."""

    def ids_of(text: str) -> list[int]:
        return [*server.tokenizer.encode(text, add_special_tokens=False), END_ID]

    call = json.dumps({"name": "Read", "arguments": {"file_path": str(file)}})
    asks = ids_of(f"I must look.</think>I read it.<tool_call>{call}</tool_call>")
    tells = ids_of(f"It is read.</think>The word is {word}.")
    answers: dict[int, list[int]] = {}

    def answer(prompt: Sequence[int], so_far: Sequence[int], seed: int) -> int:
        if len(prompt) not in answers:
            answers[len(prompt)] = tells if word in server.tokenizer.decode(list(prompt)) else asks
        ids = answers[len(prompt)]
        return ids[min(len(so_far), len(ids) - 1)]

    server.play(answer)


@needs_claude
def test_it_reads_a_file_and_tells_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("the word is xylophone\n")
    with running(scene()) as server:
        read_and_tell(server, file, "xylophone")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "ANTHROPIC_BASE_URL": server.base_url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = ["claude", "-p", "What is the word in secret.txt?", "--output-format", "json"]
        done = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
    result = json.loads(done.stdout)
    assert (result["is_error"], result["num_turns"], result["result"]) == (False, 2, "The word is xylophone.")
    assert result["usage"]["input_tokens"] > 10_000
