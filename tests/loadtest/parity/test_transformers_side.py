from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadtest.parity.comparison import ROUNDING, Answer, compare
from loadtest.parity.transformers_side import TransformersSide
from tests.equivalence.hf_model import generate_alone, random_prompts, save_random_model

MAX_TOKENS = 6
PROMPTS = random_prompts(3, 400, longest=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def side(folder: Path) -> TransformersSide:
    return TransformersSide(folder, torch.float32, "cpu", MAX_TOKENS)


def test_its_answers_are_those_of_generate(side: TransformersSide, folder: Path):
    expected = generate_alone(folder, PROMPTS, MAX_TOKENS)
    (judged,) = side.judged(PROMPTS, [[Answer(tuple(ids), (0.0,) * MAX_TOKENS) for ids in expected]])
    assert [list(each.theirs.token_ids) for each in judged] == expected
    assert all(each.expected == each.theirs.logprobs for each in judged), "the same tokens have the same logprobs"
    assert [list(answer) for answer in side.at_once(PROMPTS)] == expected
    assert side.beams(PROMPTS[0], 1) == [tuple(expected[0])]
    assert side.total_logprob(PROMPTS[0], expected[0]) == pytest.approx(sum(judged[0].theirs.logprobs), rel=1e-4)


def test_a_wrong_token_is_found_where_it_is_and_is_no_near_tie(side: TransformersSide, folder: Path):
    right = [tuple(ids) for ids in generate_alone(folder, PROMPTS, MAX_TOKENS)]
    (first,) = side.judged(PROMPTS, [[Answer(ids, (0.0,) * MAX_TOKENS) for ids in right]])
    answers = [each.theirs for each in first]
    wrong = (*right[1][:2], (right[1][2] + 1) % 400, *right[1][3:])
    answers[1] = Answer(wrong, answers[1].logprobs)
    (judged,) = side.judged(PROMPTS, [answers])
    answers[1] = Answer(wrong, (*answers[1].logprobs[:2], judged[1].expected[2], *answers[1].logprobs[3:]))
    found = compare(answers, judged, ROUNDING["float32"])
    (difference,) = found.differences
    assert found.num_equal == len(PROMPTS) - 1
    assert (difference.prompt, difference.place) == (1, 2)
    assert difference.gap > 0.0
    assert not difference.is_near_tie
