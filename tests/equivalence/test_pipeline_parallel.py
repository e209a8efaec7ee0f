"""A model in pipeline stages answers as one process does: the same tokens in fp32, and close log probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from service.config import ParallelConfig
from service.layers.tensor_parallel import ALONE
from tests.equivalence.rank_work import BLOCK_SIZE, Asked, answer
from tests.equivalence.stage_work import Counted, answer_in_stages, choices_in_stages
from tests.equivalence.test_tensor_parallel import (
    ALL_KINDS,
    FAMILIES,
    GREEDY,
    SAMPLED,
    check_same,
    prompts,
    requests_of,
)
from tests.models.checkpoints import gemma3, gpt_oss, llama
from tests.ranks import Ranks, Where

MAX_TOKENS = 4
NUM_LAYERS = 4
TWO_STAGES, TWO_BY_TWO, FOUR_STAGES = ParallelConfig(1, 2), ParallelConfig(2, 2), ParallelConfig(1, 4)


INT8 = ["llama, int8 by channel", "llama, int8 in groups", "llama, int8 of gptq"]
STAGED = ["llama", "llama, tied", "llama, bitsandbytes", *INT8, "gpt-oss", "qwen2-moe", "opt, norms last", "gpt2"]


@pytest.fixture(scope="module", params=STAGED)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("model"))


def check_hand_overs(counted: list[Counted], config: ParallelConfig, num_layers: int) -> None:
    """ORCA, figure 7: each plan that computes is handed over P - 1 times and costs only its layers' all-reduces; no
    control messages are exchanged between ranks."""
    num_plans = {each.num_plans for each in counted}
    assert len(num_plans) == 1
    (num,) = num_plans
    for rank, each in enumerate(counted):
        stage = config.stage_of(rank)
        is_first, is_last = stage == 0, stage == config.num_stages - 1
        assert each.calls["recv"] == (0 if is_first else num)
        assert each.calls["isend"] == (0 if is_last else num)
        assert each.calls["all_reduce"] == 0
        if config.tensor_size == 1:
            assert each.calls["all_gather_into_tensor"] == 0
        elif not is_last:  # the last one also draws
            sums = 2 * num_layers // config.num_stages + int(is_first)
            assert each.calls["all_gather_into_tensor"] == sums * num
    sent = sum(each.calls["isend"] for each in counted)
    assert sent == (config.num_stages - 1) * config.tensor_size * num


def check(
    ranks: Ranks,
    folder: Path,
    control_path: Path,
    kinds: tuple,
    config: ParallelConfig,
    num_layers: int,
    device: str = "cpu",
) -> None:
    asked = requests_of(kinds)
    how = asked, MAX_TOKENS, config, control_path, *(None,) * 5, device
    counted = ranks.run(answer_in_stages, folder, *how)
    assert counted[0].answered is not None
    check_same(answer(ALONE, folder, asked, MAX_TOKENS, None, device), [counted[0].answered])
    check_hand_overs(counted, config, num_layers)


def test_two_stages_answer_as_one_process(two_somewhere: Where, folder: Path, tmp_path: Path):
    """The differences of families at both ends: tied heads, learned positions, projected embeddings, norms last,
    experts in only one stage."""
    ranks, device = two_somewhere
    check(ranks, folder, tmp_path / "control", ALL_KINDS, TWO_STAGES, 2, device)


@pytest.fixture(scope="module")
def some_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"), num_hidden_layers=NUM_LAYERS)


def test_preempted_swapped_and_resumed_in_stages_they_answer_as_one(
    two_somewhere: Where, some_llama: Path, tmp_path: Path
):
    (ranks, device), asked = two_somewhere, requests_of((GREEDY, SAMPLED))
    alone = answer(ALONE, some_llama, asked, 12, None, device)
    how = TWO_STAGES, tmp_path / "control", 12, *(None,) * 4, device
    last, _ = ranks.run(answer_in_stages, some_llama, asked, 12, *how)
    assert last.answered.num_preemptions > 0
    assert last.answered.tokens == alone.tokens


WINDOW = 21
SLIDING, FULL = "sliding_attention", "full_attention"
GROUPED = {
    "gpt-oss": (partial(gpt_oss, num_hidden_layers=NUM_LAYERS), (1, 1), 26),
    "gemma 3, in one stage a layer that sees all": (
        partial(gemma3, num_hidden_layers=NUM_LAYERS, layer_types=[SLIDING, FULL, SLIDING, SLIDING]),
        (1, 2),
        33,
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_stages_give_back_what_windows_have_left_behind(two_somewhere: Where, tmp_path: Path, name: str):
    """Every stage has the block tables' groups of layers, even if it has no layer of a group."""
    ranks, device = two_somewhere
    make, (num_full, num_windowed), few = GROUPED[name]
    folder, long = make(tmp_path / "model"), [Asked(prompt, GREEDY) for prompt in prompts(3)[1:]]
    long = [each._replace(prompt=each.prompt * 3) for each in long]
    where = WINDOW, device
    last, _ = ranks.run(answer_in_stages, folder, long, 6, TWO_STAGES, tmp_path / "a", *(None,) * 4, *where)
    assert last.answered.tokens == answer(ALONE, folder, long, 6, None, device).tokens
    num_units = sum(-(-(len(each.prompt) + 5) // BLOCK_SIZE) for each in long)
    assert last.most_blocks < num_units * (num_full + num_windowed), "less than all tokens of all groups"
    asked = requests_of((GREEDY, SAMPLED))
    last, _ = ranks.run(answer_in_stages, folder, asked, 12, TWO_STAGES, tmp_path / "b", few, *(None,) * 3, *where)
    assert last.answered.num_preemptions > 0
    assert last.answered.tokens == answer(ALONE, folder, asked, 12, None, device).tokens


@pytest.mark.parametrize("num_lanes", [2, 1], ids=["overlapped", "one batch"])
def test_drafts_in_stages_are_accepted_and_change_no_token(
    two_somewhere: Where, some_llama: Path, tmp_path: Path, num_lanes: int
):
    (ranks, device), asked = two_somewhere, requests_of((GREEDY, SAMPLED))
    alone = answer(ALONE, some_llama, asked, 12, None, device)
    known = {each.prompt: alone.tokens[f"request-{number}", 0] for number, each in enumerate(asked)}
    how = (TWO_STAGES, tmp_path / "control", None, None, num_lanes, known, None, device)
    last, _ = ranks.run(answer_in_stages, some_llama, asked, 12, *how)
    assert last.answered.tokens == alone.tokens
    assert last.num_drafts > 10


def test_each_stage_keeps_its_own_choices_and_a_later_start_times_nothing(
    two_somewhere: Where, some_llama: Path, tmp_path: Path
):
    ranks, device = two_somewhere
    of_ranks = ranks.run(choices_in_stages, some_llama, tmp_path / "choices.json", 2, device)
    assert {each.name for each in tmp_path.iterdir()} == {"choices.json", "choices.json.stage-0"}
    for first, second in of_ranks:
        assert first == second
    assert of_ranks[0][0].made_for.weights != of_ranks[1][0].made_for.weights, "the last stage has the head"


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.mark.each_once
@pytest.mark.load
@pytest.mark.parametrize("config", [TWO_BY_TWO, FOUR_STAGES], ids=["2 x 2", "4 stages"])
@pytest.mark.parametrize("family", ["llama", "llama, int8 of gptq", "gpt2", "mixtral"])
def test_four_ranks_answer_as_one_process(four_ranks: Ranks, tmp_path: Path, config: ParallelConfig, family: str):
    folder = partial(FAMILIES[family], num_hidden_layers=NUM_LAYERS)(tmp_path)
    check(four_ranks, folder, tmp_path / "control", ALL_KINDS, config, NUM_LAYERS)
