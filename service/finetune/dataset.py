"""Reads a training file into examples: token ids, and which of them are trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from service.finetune.dataset_line import MAX_LINE_BYTES, DatasetError, TrainingChat, read_line
from service.finetune.part_ids import PartEncoder
from service.finetune.training_text import ModelText, UntrainableText, completion_text, training_texts
from service.text.long_text import UndividedTextTooLong


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One training text. token_ids: [n] int32, n >= 2. is_trained: [n] bool: whether predicting token i counts in the
    loss; False for the first token, True for the last one."""

    token_ids: npt.NDArray[np.int32]
    is_trained: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """max_tokens: in all examples together; each token takes 5 bytes. max_s: CPU seconds of the reading thread, so
    sleep and waits do not count."""

    max_lines: int = 1_000_000
    max_tokens: int = 50_000_000
    max_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Dataset:
    """examples: in file order. A chat gives several if some of its turns need texts of their own (training_text.py).

    num_truncated: examples cut at max_length. num_left_out: examples dropped because nothing trained was left.
    """

    examples: Sequence[Example]
    num_truncated: int
    num_left_out: int


def read_dataset(
    path: Path,
    model: ModelText,
    max_length: int,
    check: Callable[[], None] = lambda: None,
    limits: DatasetLimits | None = None,
) -> Dataset:
    """Read all examples of a file, cut at `max_length` tokens.

    Any thread. check: called between lines and within long ones; an exception from it ends the reading. Raises OSError,
    and DatasetError naming line and reason.
    """
    limits = limits or DatasetLimits()
    reader = _Reader(model, max_length, check, limits)
    with path.open("rb") as file:
        for number, line in _lines(file, limits.max_lines):
            reader.read(line, number)
    return reader.dataset()


def _lines(file: BinaryIO, max_lines: int) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of all non-blank lines. A line over MAX_LINE_BYTES is cut, but still over that limit."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        if number > max_lines:
            raise DatasetError(None, f"the file has more than {max_lines} lines")
        if line.strip():
            yield number, line.removesuffix(b"\n")


class _Reader:
    def __init__(self, model: ModelText, max_length: int, check: Callable[[], None], limits: DatasetLimits) -> None:
        self._model = model
        self._max_length = max_length
        self._check_caller = check
        self._limits = limits
        self._deadline_s = time.thread_time() + limits.max_s
        self._encoder = PartEncoder(model.tokenizer)
        self._examples: list[Example] = []
        self._num_tokens = self._num_truncated = self._num_left_out = 0

    def read(self, line: bytes, number: int) -> None:
        def check() -> None:
            self._check(number)

        check()
        form = read_line(line, number)
        try:
            texts = (
                training_texts(form, self._model, self._max_length, check)
                if isinstance(form, TrainingChat)
                else [completion_text(form, self._model)]
            )
            for text in texts:
                self._add(*self._encoder.encode(text), number)
        except (UntrainableText, UndividedTextTooLong) as error:
            raise DatasetError(number, str(error)) from error

    def dataset(self) -> Dataset:
        if self._examples:
            return Dataset(self._examples, self._num_truncated, self._num_left_out)
        if self._num_left_out:
            most = self._max_length
            raise DatasetError(None, f"no example has anything to train on within its first {most} tokens (max_length)")
        raise DatasetError(None, "the file has no lines")

    def _check(self, number: int) -> None:
        self._check_caller()
        if time.thread_time() > self._deadline_s:
            raise DatasetError(number, f"reading the file takes more than {self._limits.max_s:g} s of CPU time")

    def _add(self, ids: list[int], learned: list[bool], number: int) -> None:
        self._check_ids(ids, number)
        if len(ids) > self._max_length:
            ids, learned = ids[: self._max_length], learned[: self._max_length]
            num_learned = len(learned) - next((at for at, each in enumerate(reversed(learned)) if each), len(learned))
            ids, learned = ids[:num_learned], learned[:num_learned]
            self._num_truncated += bool(num_learned)
        if not any(learned[1:]):
            self._num_left_out += 1
            return
        self._num_tokens += len(ids)
        if self._num_tokens > self._limits.max_tokens:
            raise DatasetError(number, f"the examples up to this line have more than {self._limits.max_tokens} tokens")
        self._examples.append(Example(np.array(ids, np.int32), np.array([False, *learned[1:]])))

    def _check_ids(self, ids: list[int], number: int) -> None:
        """A tokenizer may have tokens that its model does not have."""
        if ids and max(ids) >= self._model.vocab_size:
            raise DatasetError(number, f"token {max(ids)} is outside the model's vocabulary")
