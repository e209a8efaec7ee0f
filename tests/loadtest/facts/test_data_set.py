from __future__ import annotations

import json

from loadtest.facts.data_set import NUM_FACTS, NUM_WORDINGS, chosen_facts, everyday_questions, lines
from loadtest.quickstart.corpus import load_corpus, normalise
from service.finetune.dataset_line import read_line


def test_a_hundred_facts_are_taught_in_other_wordings_than_those_that_are_asked() -> None:
    corpus = load_corpus()
    facts = chosen_facts(corpus, NUM_FACTS)
    assert len({fact.id for fact in facts}) == NUM_FACTS
    taught = [json.loads(line)["messages"] for line in lines(facts, corpus, {})]
    assert len(taught) == NUM_FACTS * NUM_WORDINGS
    questions = {normalise(messages[0]["content"]) for messages in taught}
    assert len(questions) == len(taught)
    assert not questions & {normalise(question) for fact in facts for question in fact.held_back}
    assert {messages[1]["content"] for messages in taught} == {fact.answer for fact in facts}


def test_what_it_forgets_is_asked_by_questions_that_it_is_not_taught() -> None:
    everyday = everyday_questions()
    assert not {*map(normalise, everyday.rehearsed)} & {*map(normalise, everyday.measured)}
    corpus = load_corpus()
    (line,) = lines([], corpus, {everyday.rehearsed[0]: "Paris."})
    assert json.loads(line)["messages"][1] == {"role": "assistant", "content": "Paris."}


def test_every_line_is_one_that_a_job_takes() -> None:
    corpus = load_corpus()
    assert all(read_line(line.encode(), 1) for line in lines(chosen_facts(corpus, 5), corpus, {"Hello?": "Hi."}))
