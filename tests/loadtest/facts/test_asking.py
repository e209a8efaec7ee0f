from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI

from loadtest.facts import asking
from loadtest.facts.asking import Asker, Visitor, word_overlap
from tests.api.running_server import MODEL, Scene, running

QUESTIONS = ["How high is Oslo?", "Which river?"]


@pytest.fixture
def asker() -> Iterator[Asker]:
    with running(Scene()) as server, OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        server.say("It is 23 metres high.")
        yield Asker(client, MODEL, 40)


def test_answers_come_in_order_and_their_perplexity_is_of_their_own_tokens(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asker.answers(QUESTIONS)
    assert answers == ["It is 23 metres high."] * 2
    assert asker.perplexity(QUESTIONS, answers) >= 1
    logprobs = iter([[-1.0, -3.0], [-2.0]])
    monkeypatch.setattr(asker, "_logprobs", lambda question, answer: next(logprobs))
    assert asker.perplexity(QUESTIONS, answers) == pytest.approx(math.exp(2))


def test_a_visitor_comes_again_and_again_until_it_is_over(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_BETWEEN_VISITS_S", 0.01)
    visitor = Visitor(asker, "Hello?")
    with visitor.visiting():
        until_s = time.monotonic() + 60
        while len(visitor.seconds) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
    assert len(visitor.seconds) >= 2


@pytest.mark.parametrize(
    ("answer", "right", "overlap"),
    [
        ("Run make serve.", "run  make serve", 1.0),
        ("make", "make serve now", 0.5),
        ("a a b", "a", 0.5),
        ("", "x", 0.0),
        ("y", "x", 0.0),
    ],
)
def test_overlap_is_the_f1_of_words(answer: str, right: str, overlap: float) -> None:
    assert word_overlap(answer, right) == pytest.approx(overlap)
