import random

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from loadtest.quickstart.corpus import load_corpus, normalise
from loadtest.quickstart.dialogues import RowBuilder, encode_turns, questions_and_answers
from loadtest.quickstart.question_sets import held_back_forms
from service.settings.quickstart import QUICKSTART_MODEL


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(QUICKSTART_MODEL / "tokenizer.json"))


def test_varied_training_questions_hold_no_held_back_question() -> None:
    corpus = load_corpus()
    pairs = questions_and_answers(corpus, 5000, random.Random(3))
    assert {normalise(question) for question, _ in pairs} & held_back_forms(corpus) == set()
    answers = {answer for _, answer in pairs}
    assert answers == {topic.answer for topic in corpus.topics} | set(corpus.cannot_know.answers)


def test_a_row_reads_as_the_chat_template_writes_it(tokenizer: Tokenizer) -> None:
    corpus = load_corpus()
    turns = encode_turns(tokenizer, questions_and_answers(corpus, 20, random.Random(4)))
    builder = RowBuilder(corpus, tokenizer, turns, 0.1, random.Random(5))
    templated = AutoTokenizer.from_pretrained(QUICKSTART_MODEL)
    for row in builder.build(20, 256, 3).ids.tolist():
        text = templated.decode(row).split("<|pad|>")[0]
        assert text.count("<|bos|>") == 1
        assert text.startswith("<|bos|>")
        assert text.endswith("<|end|>")
        assert text.count("<|user|>") == text.count("<|assistant|>")


def test_answers_weigh_one_and_padding_nothing(tokenizer: Tokenizer) -> None:
    corpus = load_corpus()
    turns = encode_turns(tokenizer, questions_and_answers(corpus, 20, random.Random(4)))
    rows = RowBuilder(corpus, tokenizer, turns, 0.25, random.Random(6)).build(30, 192, 2)
    assert set(rows.weights.unique().tolist()) == {0.0, 0.25, 1.0}
    assert rows.weights[rows.ids == tokenizer.token_to_id("<|pad|>")].sum() == 0
    assert rows.weights[rows.ids == tokenizer.token_to_id("<|assistant|>")].sum() == 0
