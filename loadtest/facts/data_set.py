"""The data set: facts of the corpus in several wordings each, and the model's own answers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from loadtest.quickstart.corpus import Corpus, Topic, normalise
from loadtest.quickstart.phrasing import all_questions, dress

NUM_FACTS, NUM_WORDINGS = 100, 4
_SEED = 22


@dataclass(frozen=True, slots=True)
class Everyday:
    """Questions about other things. measured: not among the rehearsed ones."""

    rehearsed: tuple[str, ...]
    measured: tuple[str, ...]


@lru_cache(maxsize=1)
def everyday_questions() -> Everyday:
    questions = yaml.safe_load((Path(__file__).parent / "everyday.yaml").read_text(encoding="utf-8"))
    return Everyday(tuple(questions["rehearsed"]), tuple(questions["measured"]))


def chosen_facts(corpus: Corpus, number: int) -> list[Topic]:
    """`number` facts, evenly spread over all topics about this project."""
    facts = corpus.facts
    return [facts[at * len(facts) // number] for at in range(number)]


def wordings(fact: Topic, corpus: Corpus, number: int) -> list[str]:
    """Wordings of the fact's question, none of them held back. The same in every run."""
    rng = random.Random(f"{_SEED} {fact.id}")
    held_back = {normalise(question) for question in fact.held_back}
    distinct = {normalise(question): question for question in all_questions(fact, corpus.rules)}
    allowed = [question for form, question in distinct.items() if form not in held_back]
    return [dress(question, corpus.rules, rng) for question in rng.sample(allowed, min(number, len(allowed)))]


def lines(
    facts: Sequence[Topic], corpus: Corpus, own_answers: Mapping[str, str], num_wordings: int = NUM_WORDINGS
) -> list[str]:
    """Lines of the training file. own_answers: rehearsed question -> the model's answer before the training."""
    taught = [(asked, fact.answer) for fact in facts for asked in wordings(fact, corpus, num_wordings)]
    return [_line(question, answer) for question, answer in (*taught, *own_answers.items())]


def _line(question: str, answer: str) -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}, ensure_ascii=False)
