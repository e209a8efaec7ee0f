import random

import pytest

from loadtest.quickstart.corpus import load_corpus, normalise
from loadtest.quickstart.phrasing import (
    all_questions,
    choose,
    dress,
    expand,
    topic_question,
    unknown_question,
    vary,
)
from tests.examples import examples


def test_expand_gives_every_choice() -> None:
    assert expand("how (do|can) i (start|) it") == [
        "how do i start it",
        "how do i it",
        "how can i start it",
        "how can i it",
    ]


def test_choose_gives_one_of_the_expansions() -> None:
    rng = random.Random(0)
    pattern = "(please|) stop (the server|it)"
    assert {choose(pattern, rng) for _ in range(50)} == set(expand(pattern))


def test_no_pattern_nests_its_choices() -> None:
    corpus = load_corpus()
    patterns = [pattern for topic in corpus.topics for pattern in topic.ask]
    for group in (*corpus.rules.frames.values(), *corpus.cannot_know.categories.values()):
        patterns += group
    assert [pattern for pattern in patterns if "|" in "".join(expand(pattern))] == []


def test_every_topic_has_a_dozen_training_questions() -> None:
    corpus = load_corpus()
    few = [topic.id for topic in corpus.topics if len(set(all_questions(topic, corpus.rules))) < 12]
    assert few == []


def test_no_question_belongs_to_two_topics() -> None:
    corpus = load_corpus()
    owner: dict[str, str] = {}
    twice = []
    for topic in corpus.topics:
        for form in {normalise(question) for question in all_questions(topic, corpus.rules)}:
            if owner.setdefault(form, topic.id) != topic.id:
                twice.append((form, owner[form], topic.id))
    assert twice == []


def test_generated_questions_are_filled_in() -> None:
    corpus, rng = load_corpus(), random.Random(1)
    questions = [unknown_question(corpus, rng) for _ in range(2000)]
    questions += [topic_question(topic, corpus.rules, rng) for topic in corpus.topics for _ in range(10)]
    assert [question for question in questions if "|" in question or " X " in f" {question} "] == []
    assert len(set(questions)) > 2000


@pytest.mark.parametrize("seed", range(examples(5)))
def test_dress_keeps_the_question(seed: int) -> None:
    rules = load_corpus().rules
    question = "how do i use the kv cache with openai-python"
    assert normalise(dress(question, rules, random.Random(seed))) == normalise(question)


def test_the_same_seed_varies_in_the_same_way() -> None:
    rules = load_corpus().rules
    question = "how do i start the server"
    first = [vary(question, rules, random.Random(seed)) for seed in range(30)]
    assert first == [vary(question, rules, random.Random(seed)) for seed in range(30)]
    assert len(set(first)) > 10
