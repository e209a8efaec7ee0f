"""Asks a running server questions, and measures how probable a model finds given answers."""

from __future__ import annotations

import math
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

_CONCURRENT_REQUESTS = 8
_BETWEEN_VISITS_S = 5.0


class Asker:
    """Gets greedy answers from one of a server's models."""

    def __init__(self, client: OpenAI, model: str, max_tokens: int) -> None:
        self._client, self._model, self._max_tokens = client, model, max_tokens

    def answers(self, questions: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            return list(pool.map(self.answer, questions))

    def answer(self, question: str) -> str:
        completion = self._client.chat.completions.create(
            model=self._model, messages=_said(question), temperature=0, max_tokens=self._max_tokens
        )
        return completion.choices[0].message.content or ""

    def perplexity(self, questions: Sequence[str], answers: Sequence[str]) -> float:
        """Perplexity of the answers' tokens, given the question and the tokens before."""
        logprobs = [each for pair in zip(questions, answers, strict=True) for each in self._logprobs(*pair)]
        return math.exp(-statistics.fmean(logprobs))

    def _logprobs(self, question: str, answer: str) -> list[float]:
        prompt = self._rendered(question, None)
        whole = self._rendered(question, answer)
        choice: Any = self._client.completions.create(
            model=self._model, prompt=whole, max_tokens=0, echo=True, logprobs=0
        ).choices[0]
        logprobs: list[float] = choice.logprobs.token_logprobs[len(prompt) :]
        return logprobs

    def _rendered(self, question: str, answer: str | None) -> list[int]:
        said = _said(question) + ([{"role": "assistant", "content": answer}] if answer is not None else [])
        goes_on = {"add_generation_prompt": answer is None, "continue_final_message": answer is not None}
        body = {"model": self._model, "messages": said, **goes_on}
        rendered: Any = self._client.post("/chat/completions/render", cast_to=object, body=body)
        ids: list[int] = rendered["token_ids"]
        return ids


class Visitor:
    """Asks a question every few seconds, as a user who must not notice the training."""

    def __init__(self, asker: Asker, question: str) -> None:
        self._asker, self._question = asker, question
        self._is_over = threading.Event()
        self.seconds: list[float] = []
        """Seconds per answer. Read it after `visiting`."""

    @contextmanager
    def visiting(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            visits = pool.submit(self._visit)
            try:
                yield
            finally:
                self._is_over.set()
                visits.result()

    def _visit(self) -> None:
        while not self._is_over.wait(_BETWEEN_VISITS_S):
            began_s = time.monotonic()
            self._asker.answer(self._question)
            self.seconds.append(time.monotonic() - began_s)


def word_overlap(answer: str, right: str) -> float:
    """F1 score of the words, as in SQuAD: 1 if both have the same words, 0 if they share none."""
    said, meant = (Counter(re.findall(r"\w+", text.lower())) for text in (answer, right))
    both = (said & meant).total()
    return 2 * both / (said.total() + meant.total()) if both else 0.0


def _said(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]
