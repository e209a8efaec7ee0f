from __future__ import annotations

import pytest

from service.config import ParallelConfig
from service.layers.pipeline_stage import WHOLE, PlannedStage, RankPlace, is_first, is_last, layers_of


@pytest.mark.parametrize(("num_layers", "size"), [(6, 1), (6, 2), (6, 6), (32, 4)])
def test_stages_have_equal_layers_in_their_order_and_together_all(num_layers: int, size: int):
    parts = [layers_of(PlannedStage(size, index), num_layers) for index in range(size)]
    assert [layer for part in parts for layer in part] == list(range(num_layers))
    assert {len(part) for part in parts} == {num_layers // size}


def test_the_one_stage_is_first_and_last_and_hands_nothing_over():
    assert is_first(WHOLE)
    assert is_last(WHOLE)
    assert RankPlace().num_ranks == 1
    assert (WHOLE.least(3), WHOLE.of_last("bfloat16")) == (3, "bfloat16")
    assert not is_first(PlannedStage(2))
    assert is_last(PlannedStage(2))


@pytest.mark.parametrize("config", [ParallelConfig(1, 3), ParallelConfig(2, 2), ParallelConfig(2, 4)])
def test_rank_0_is_of_the_last_stage_and_each_ranks_next_one_of_the_stage_behind(config: ParallelConfig):
    stages = [config.stage_of(rank) for rank in range(config.num_ranks)]
    assert stages[0] == config.num_stages - 1
    assert sorted(stages) == sorted(list(range(config.num_stages)) * config.tensor_size)
    for rank, stage in enumerate(stages):
        behind = config.stage_of((rank + config.tensor_size) % config.num_ranks)
        assert behind == (stage + 1) % config.num_stages
