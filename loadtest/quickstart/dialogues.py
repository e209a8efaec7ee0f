"""Training rows: conversations and plain text as token ids, with the weight of each token in the loss."""

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from loadtest.quickstart.chat_format import ASSISTANT, BOS, END, PAD, SYSTEM, USER, token_id
from loadtest.quickstart.corpus import Corpus, normalise
from loadtest.quickstart.phrasing import choose, dress, topic_question, unknown_question, vary
from loadtest.quickstart.question_sets import held_back_forms

SHARE_UNKNOWN = 0.25
SHARE_SYSTEM_PROMPT = 0.2
SHARE_PLAIN_TEXT = 0.06
BPE_DROPOUT = 0.08
ANSWER_WEIGHT = 1.0


@dataclass(frozen=True)
class Turn:
    """One question with its answer, as token ids without the tokens that frame them."""

    question: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Rows:
    """ids, weights: [row, position]. A token's weight is its weight in the loss. Rows are padded on the right, with
    weight 0."""

    ids: torch.Tensor
    weights: torch.Tensor


def tokenizer_texts(corpus: Corpus, count: int, rng: random.Random) -> list[str]:
    """Text to learn a vocabulary from: questions without typing errors, every answer several times, plain text."""
    questions = [topic_question(rng.choice(corpus.topics), corpus.rules, rng) for _ in range(count * 2 // 3)]
    questions += [unknown_question(corpus, rng) for _ in range(count // 3)]
    answers = [topic.answer for topic in corpus.topics for _ in range(20)]
    return [*(dress(question, corpus.rules, rng) for question in questions), *answers, *corpus.plain_text]


def questions_and_answers(corpus: Corpus, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Varied training questions with their answers; none has the normal form of a held-back question."""
    forbidden = held_back_forms(corpus)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        if rng.random() < SHARE_UNKNOWN:
            plain, answer = unknown_question(corpus, rng), rng.choice(corpus.cannot_know.answers)
        else:
            topic = rng.choice(corpus.topics)
            plain, answer = topic_question(topic, corpus.rules, rng), topic.answer
        question = vary(plain, corpus.rules, rng)
        if normalise(question) not in forbidden:
            pairs.append((question, answer))
    return pairs


def encode_turns(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> list[Turn]:
    """The pairs as ids. The first half of the questions is split into tokens as usual, the second half with some
    merges left out at random, so that unknown and mistyped words look familiar."""
    half = len(pairs) // 2
    questions = [question for question, _ in pairs]
    encoded = tokenizer.encode_batch(questions[:half], add_special_tokens=False)
    tokenizer.model.dropout = BPE_DROPOUT
    encoded += tokenizer.encode_batch(questions[half:], add_special_tokens=False)
    tokenizer.model.dropout = None
    answers = {answer: tokenizer.encode(answer, add_special_tokens=False).ids for _, answer in pairs}
    return [Turn(item.ids, answers[answer]) for item, (_, answer) in zip(encoded, pairs, strict=True)]


class RowBuilder:
    """Packs turns into rows of one length. Each row is one conversation, or one piece of plain text. A token of an
    answer weighs 1 in the loss, a token of a question or a system prompt `read_weight`."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, turns: list[Turn], read_weight: float, rng: random.Random
    ) -> None:
        self._turns = turns
        self._read_weight = read_weight
        self._rng = rng
        self._ids = {token: token_id(tokenizer, token) for token in (BOS, END, PAD, SYSTEM, USER, ASSISTANT)}
        self._systems = [
            tokenizer.encode(choose(pattern, rng), add_special_tokens=False).ids
            for pattern in corpus.rules.system_prompts
            for _ in range(20)
        ]
        texts = [
            *(topic.answer for topic in corpus.topics),
            *(text for text in corpus.plain_text for _ in range(8)),
        ]
        self._texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def build(self, count: int, length: int, turns_per_row: int) -> Rows:
        """`count` rows of `length` tokens with at most `turns_per_row` turns each, as many as fit."""
        ids = torch.full((count, length), self._ids[PAD], dtype=torch.int32)
        weights = torch.zeros((count, length), dtype=torch.float16)
        for row in range(count):
            row_ids, row_weights = self._row(length, turns_per_row)
            ids[row, : len(row_ids)] = torch.tensor(row_ids, dtype=torch.int32)
            weights[row, : len(row_ids)] = torch.tensor(row_weights, dtype=torch.float16)
        return Rows(ids, weights)

    def _row(self, length: int, turns_per_row: int) -> tuple[list[int], list[float]]:
        if self._rng.random() < SHARE_PLAIN_TEXT:
            text = self._rng.choice(self._texts)[: length - 2]
            return [self._ids[BOS], *text, self._ids[END]], [0.0] + [ANSWER_WEIGHT] * (len(text) + 1)
        ids, weights = [self._ids[BOS]], [0.0]
        if self._rng.random() < SHARE_SYSTEM_PROMPT:
            self._add(ids, weights, SYSTEM, self._rng.choice(self._systems), self._read_weight)
        for _ in range(turns_per_row):
            turn = self._rng.choice(self._turns)
            if len(ids) + len(turn.question) + len(turn.answer) + 4 > length:
                break
            self._add(ids, weights, USER, turn.question, self._read_weight)
            self._add(ids, weights, ASSISTANT, turn.answer, ANSWER_WEIGHT)
        return ids, weights

    def _add(self, ids: list[int], weights: list[float], role: str, text: list[int], weight: float) -> None:
        ids += [self._ids[role], *text, self._ids[END]]
        weights += [0.0] + [weight] * (len(text) + 1)
