"""Models that transformers' modules compute, on several ranks: they answer as one process does, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config import ParallelConfig
from service.layers.tensor_parallel import ALONE
from service.models.registry import ARCHITECTURES
from tests.equivalence.family_list import FAMILIES
from tests.equivalence.rank_work import answer
from tests.equivalence.stage_work import answer_in_stages
from tests.equivalence.test_tensor_parallel import ALL_KINDS, check_same, requests_of
from tests.ranks import Ranks

MAX_TOKENS = 6
SERVED = {
    family.name: family
    for family in FAMILIES
    if family.refusal is None and family.model not in ARCHITECTURES and family.text is None
}
SOME = ("SmolLM3", "OLMo 3", "Pythia, GPT-NeoX", "DeepSeek V2")
"""A plan for all that is divided, tied; queries and keys that are gathered, and windows; three in one matrix, biases;
latent keys, experts, and a linear that is whole beside one that is divided."""

IN_STAGES_ALONE = ("StableLM 2",)
"""Its attention counts all heads: refused by name (tests/models/transformers_backend/test_division.py)."""

ONE_BY_ONE = [
    pytest.param(name, marks=() if name in SOME else pytest.mark.load) for name in sorted(SERVED, key=SOME.__contains__)
]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_two_ranks_and_two_stages_answer_as_one_process(two_ranks: Ranks, tmp_path: Path, name: str):
    folder = SERVED[name].save(tmp_path / "model")
    asked = requests_of(ALL_KINDS)
    alone = answer(ALONE, folder, asked, MAX_TOKENS)
    if name not in IN_STAGES_ALONE:
        check_same(alone, two_ranks.run(answer, folder, asked, MAX_TOKENS))
    how = (MAX_TOKENS, ParallelConfig(1, 2), tmp_path / "control")
    last, _ = two_ranks.run(answer_in_stages, folder, asked, *how)
    check_same(alone, [last.answered])


@pytest.mark.load
@pytest.mark.parametrize("name", SOME)
def test_two_stages_of_two_ranks_answer_as_one_process(tmp_path: Path, name: str):
    folder = SERVED[name].save(tmp_path / "model")
    asked = requests_of(ALL_KINDS)
    ranks = Ranks(4)
    try:
        how = (MAX_TOKENS, ParallelConfig(2, 2), tmp_path / "control")
        last, *_ = ranks.run(answer_in_stages, folder, asked, *how)
    finally:
        ranks.stop()
    check_same(answer(ALONE, folder, asked, MAX_TOKENS), [last.answered])
