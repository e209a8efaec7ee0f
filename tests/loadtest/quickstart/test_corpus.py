import pytest

from loadtest.quickstart.corpus import load_corpus, normalise


def test_the_corpus_covers_many_topics_with_short_answers() -> None:
    corpus = load_corpus()
    assert len(corpus.topics) >= 150
    too_long = [topic.id for topic in corpus.topics if len(topic.answer) > 330 and topic.id != "tour"]
    assert too_long == []


def test_every_topic_has_held_back_questions() -> None:
    corpus = load_corpus()
    assert [topic.id for topic in corpus.topics if len(topic.held_back) < 2] == []
    assert len(corpus.cannot_know.held_back) >= 100


def test_no_answer_starts_like_a_refusal() -> None:
    corpus = load_corpus()
    assert all(sentence.startswith("I do not know") for sentence in corpus.cannot_know.answers)
    assert not any(topic.answer.startswith("I do not know") for topic in corpus.topics)


@pytest.mark.parametrize(
    ("left", "right"),
    [("What is a Block?", "what is a block"), ("what's  that", "Whats that!"), ("--port?", "--PORT")],
)
def test_normalise_ignores_case_punctuation_and_spacing(left: str, right: str) -> None:
    assert normalise(left) == normalise(right)


def test_normalise_keeps_different_words_apart() -> None:
    assert normalise("what is a block") != normalise("what is a block table")
