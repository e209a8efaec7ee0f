"""The questions of the evaluation: a sample of what was trained on, and what was held back."""

import random
from dataclasses import dataclass

from loadtest.quickstart.corpus import Corpus, Topic, normalise
from loadtest.quickstart.phrasing import dress, topic_question, unknown_question

_SEED = 20
_TRAINED_PER_TOPIC = 4
_TRAINED_CANNOT_KNOW = 200


@dataclass(frozen=True)
class Question:
    """A question with every reply that is right for it."""

    topic: str
    text: str
    accepted: frozenset[str]


@dataclass(frozen=True)
class QuestionSet:
    """A named set with the share of right replies that it must reach."""

    name: str
    target: float
    questions: tuple[Question, ...]


def question_sets(corpus: Corpus) -> tuple[QuestionSet, ...]:
    """The four sets, the same in every run: trained and held back, topics and cannot-know."""
    return (
        QuestionSet("trained topics", 0.95, _trained_topics(corpus)),
        QuestionSet("trained cannot-know", 0.95, _trained_cannot_know(corpus)),
        QuestionSet("held-back topics", 0.85, _held_back_topics(corpus)),
        QuestionSet("held-back cannot-know", 0.80, _held_back_cannot_know(corpus)),
    )


def held_back_forms(corpus: Corpus) -> frozenset[str]:
    """The normal forms of all held-back questions; training must not contain any of them."""
    topics = (text for topic in corpus.topics for text in topic.held_back)
    return frozenset(normalise(text) for text in (*topics, *corpus.cannot_know.held_back))


def _trained_topics(corpus: Corpus) -> tuple[Question, ...]:
    rng = random.Random(_SEED)
    return tuple(
        Question(topic.id, _trained_text(topic, corpus, rng), frozenset({topic.answer}))
        for topic in corpus.topics
        for _ in range(_TRAINED_PER_TOPIC)
    )


def _trained_text(topic: Topic, corpus: Corpus, rng: random.Random) -> str:
    return dress(topic_question(topic, corpus.rules, rng), corpus.rules, rng)


def _trained_cannot_know(corpus: Corpus) -> tuple[Question, ...]:
    rng = random.Random(_SEED)
    accepted = frozenset(corpus.cannot_know.answers)
    texts = (dress(unknown_question(corpus, rng), corpus.rules, rng) for _ in range(_TRAINED_CANNOT_KNOW))
    return tuple(Question("cannot know", text, accepted) for text in texts)


def _held_back_topics(corpus: Corpus) -> tuple[Question, ...]:
    return tuple(
        Question(topic.id, text, frozenset({topic.answer})) for topic in corpus.topics for text in topic.held_back
    )


def _held_back_cannot_know(corpus: Corpus) -> tuple[Question, ...]:
    accepted = frozenset(corpus.cannot_know.answers)
    return tuple(Question("cannot know", text, accepted) for text in corpus.cannot_know.held_back)
