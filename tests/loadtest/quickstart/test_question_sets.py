from loadtest.quickstart.corpus import load_corpus, normalise
from loadtest.quickstart.phrasing import all_questions
from loadtest.quickstart.question_sets import held_back_forms, question_sets


def test_training_and_held_back_questions_are_disjoint() -> None:
    corpus = load_corpus()
    trained = {normalise(question) for topic in corpus.topics for question in all_questions(topic, corpus.rules)}
    assert trained & held_back_forms(corpus) == set()


def test_the_trained_sample_holds_no_held_back_question() -> None:
    corpus = load_corpus()
    sampled = {normalise(item.text) for group in question_sets(corpus)[:2] for item in group.questions}
    assert sampled & held_back_forms(corpus) == set()


def test_held_back_questions_are_different_from_each_other() -> None:
    corpus = load_corpus()
    asked = [normalise(item.text) for group in question_sets(corpus)[2:] for item in group.questions]
    assert len(asked) == len(set(asked))


def test_the_sets_are_the_same_in_every_run() -> None:
    corpus = load_corpus()
    assert question_sets(corpus) == question_sets(corpus)
