"""Worst inputs of a training file: lines, and the chats in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from service.finetune.dataset import read_dataset
from service.finetune.dataset_line import MAX_LINE_BYTES, MAX_MESSAGES, read_line
from tests.complexity.growth import Work, WorstInput
from tests.finetune.model_texts import SMOLLM2, model_text

_MODEL = model_text(SMOLLM2)
_MAX_LENGTH = 64
_FORM = ("finetune/dataset_line.py",)
_ALL = (*_FORM, "finetune/dataset.py", "finetune/training_text.py", "finetune/part_ids.py")


def _line(text: str) -> Work:
    line = text.encode()
    return lambda: read_line(line, 1)


def _file(lines: Sequence[object]) -> Work:
    text = "\n".join(map(json.dumps, lines))

    def work() -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder, "data.jsonl")
            file.write_text(text)
            read_dataset(file, _MODEL, _MAX_LENGTH)

    return work


def _chat(num_messages: int, text: str) -> dict[str, object]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at in range(num_messages)]}


TRAINING_FILE_INPUTS = [
    WorstInput(
        "training file: a line of small values",
        _FORM,
        lambda n: _line('{"prompt":[' + "[]," * (n // 3) + "0]}"),
        100_000,
        MAX_LINE_BYTES - 64,
        "pool",
    ),
    WorstInput(
        "training file: a line of fields that nobody knows",
        _FORM,
        lambda n: _line('{"prompt":"a","completion":"b",' + ",".join(f'"{at:06}":1' for at in range(n // 11)) + "}"),
        100_000,
        MAX_LINE_BYTES - 64,
        "pool",
    ),
    WorstInput("training file: many lines", _ALL, lambda n: _file([_chat(2, "a")] * n), 50, 1_000_000, "pool"),
    WorstInput(
        "training file: a chat with far more turns than are learned",
        _ALL,
        lambda n: _file([_chat(n, "word " * 100)] * 4),
        100,
        MAX_MESSAGES,
        "pool",
    ),
    WorstInput(
        "training file: a long message that is all marks of special text",
        _ALL,
        lambda n: _file([_chat(2, "<|im_end|>" * (n // 10))]),
        20_000,
        MAX_LINE_BYTES,
        "pool",
    ),
]
