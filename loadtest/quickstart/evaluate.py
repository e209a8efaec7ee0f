"""Asks the quickstart model its evaluation questions and counts the right replies.

    python -m loadtest.quickstart.evaluate [--model DIR] [--url http://127.0.0.1:8000/v1]

A greedy reply is right if it equals the canonical answer of the question's topic exactly, up to white space. If the
question is about anything else, it must equal one of the sentences that decline. A reply that is nearly right, cut off,
or another topic's answer is wrong. The exit code is 1 if a question set stays below its target.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtest.quickstart.corpus import load_corpus
from loadtest.quickstart.question_sets import Question, QuestionSet, question_sets
from service.settings.quickstart import QUICKSTART_MODEL

_MAX_NEW_TOKENS = 256
_BATCH = 128
_CONCURRENT_REQUESTS = 8

Asker = Callable[[Sequence[str]], list[str]]
"""Takes questions, each a conversation of its own, and returns the greedy replies in the same order."""


@dataclass(frozen=True)
class Wrong:
    """A question whose reply was not right."""

    question: Question
    reply: str


@dataclass(frozen=True)
class Score:
    """The result of one question set."""

    name: str
    target: float
    asked: int
    wrong: tuple[Wrong, ...]

    @property
    def share_right(self) -> float:
        return 1 - len(self.wrong) / self.asked

    @property
    def passed(self) -> bool:
        return self.share_right >= self.target


def is_right(reply: str, accepted: frozenset[str]) -> bool:
    """Whether the reply is right, by the rule in this module's docstring."""
    return " ".join(reply.split()) in accepted


def evaluate(ask: Asker, sets: Sequence[QuestionSet]) -> list[Score]:
    """Asks every question of every set once."""
    scores = []
    for questions in sets:
        replies = ask([question.text for question in questions.questions])
        wrong = tuple(
            Wrong(question, reply)
            for question, reply in zip(questions.questions, replies, strict=True)
            if not is_right(reply, question.accepted)
        )
        scores.append(Score(questions.name, questions.target, len(questions.questions), wrong))
    return scores


class FolderAsker:
    """Replies from transformers' greedy `generate` on a model folder, in float32, by default on the CPU.

    adapter: a PEFT folder; the adapter is merged into the model.
    """

    def __init__(self, folder: Path, device: str = "cpu", adapter: Path | None = None) -> None:
        self._device = device
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if adapter is not None:
            from peft import PeftModel  # a machine that trains the model needs it not

            model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
        self._model = model.to(device).eval()

    def __call__(self, questions: Sequence[str]) -> list[str]:
        order = sorted(range(len(questions)), key=lambda index: len(questions[index]))
        replies = [""] * len(questions)
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            for index, reply in zip(batch, self._ask([questions[i] for i in batch]), strict=True):
                replies[index] = reply
        return replies

    def _ask(self, questions: list[str]) -> list[str]:
        inputs = self._tokenizer.apply_chat_template(
            [[{"role": "user", "content": question}] for question in questions],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        ).to(self._device)
        with torch.inference_mode():
            output = self._model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False)
        new_tokens = output[:, inputs["input_ids"].shape[1] :]
        replies: list[str] = self._tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
        return replies


class ServerAsker:
    """Replies from a running OpenAI-compatible server: its first model, at temperature 0."""

    def __init__(self, url: str, api_key: str) -> None:
        from openai import OpenAI  # a training machine needs neither the package nor this asker

        self._client = OpenAI(base_url=url, api_key=api_key)
        self._model = next(iter(self._client.models.list())).id

    def __call__(self, questions: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            return list(pool.map(self._ask, questions))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _ask(self, question: str) -> str:
        completion = self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=_MAX_NEW_TOKENS,
        )
        return completion.choices[0].message.content or ""


def report(scores: Sequence[Score]) -> str:
    """One line per wrong reply, then one line per set."""
    lines = [
        f"wrong [{score.name}] ({wrong.question.topic}) {wrong.question.text!r} -> {wrong.reply!r}"
        for score in scores
        for wrong in score.wrong
    ]
    for score in scores:
        verdict = "ok" if score.passed else "BELOW TARGET"
        right = score.asked - len(score.wrong)
        lines.append(
            f"{score.name}: {right}/{score.asked} = {score.share_right:.1%} (target {score.target:.0%}) {verdict}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="evaluate the quickstart model")
    parser.add_argument("--model", type=Path, default=QUICKSTART_MODEL, help="model folder")
    parser.add_argument("--url", help="base URL of a running server, instead of a folder")
    options = parser.parse_args(arguments)
    sets = question_sets(load_corpus())
    if options.url:
        with ServerAsker(options.url, os.environ.get("OPENAI_API_KEY", "none")) as ask:
            scores = evaluate(ask, sets)
    else:
        scores = evaluate(FolderAsker(options.model), sets)
    print(report(scores))
    return 0 if all(score.passed for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
