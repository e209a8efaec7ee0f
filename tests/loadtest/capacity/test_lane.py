from __future__ import annotations

import pytest

from loadtest.capacity.lane import Layout, lane_of
from service.prediction.workload import Workload
from tests.loadtest.capacity.modelled_profile import DIVISIBLE, KV_TOKENS, modelled_profile

PROMPT = Workload.of_chunk(0, 1024)
DECODES = Workload.of_decodes(64, 64 * 300)


def test_what_was_measured_is_predicted_as_it_is():
    lane, predictor = lane_of(modelled_profile(), Layout(1, 1)), modelled_profile().predictor()
    assert lane.is_measured
    assert lane.room.num_tokens == KV_TOKENS
    assert lane.iteration_s(PROMPT) == predictor.predicted_s(PROMPT)


@pytest.mark.parametrize("work", [PROMPT, DECODES])
def test_more_gpus_a_layer_never_compute_longer_nor_in_less_than_their_part(work: Workload):
    times = [lane_of(modelled_profile(), Layout(ranks, 1)).iteration_s(work) for ranks in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert times[2] > DIVISIBLE.undivided_s + (times[0] - DIVISIBLE.undivided_s) / 4, "sums over GPUs take time"
    slow = lane_of(modelled_profile(), Layout(2, 1), all_reduce_s=1e-3)
    assert slow.iteration_s(work) > times[0], "over a slow network it does not pay"


def test_stages_share_the_memory_and_make_no_iteration_shorter():
    of_stages = lane_of(modelled_profile(), Layout(1, 2))
    assert of_stages.iteration_s(PROMPT) >= lane_of(modelled_profile(), Layout(1, 1)).iteration_s(PROMPT)
    of_ranks = lane_of(modelled_profile(), Layout(2, 1))
    assert of_ranks.room.num_tokens == pytest.approx(2 * of_stages.room.num_tokens, abs=32)
    assert of_ranks.room.num_tokens > 2 * KV_TOKENS, "weights are there once"


def test_a_layout_that_nothing_is_known_of_or_that_does_not_fit_is_refused():
    profile = modelled_profile()
    only_measured = profile.model_copy(update={"divisible": None})
    with pytest.raises(ValueError, match="2 x 1: modelled has only 1 x 1"):
        lane_of(only_measured, Layout(2, 1))
    of_two = profile.model_copy(update={"tensor_parallel_size": 2})
    assert lane_of(of_two, Layout(2, 1)).is_measured
    with pytest.raises(ValueError, match="4 x 1: modelled has only 2 x 1"):
        lane_of(of_two, Layout(4, 1))
    large = DIVISIBLE.model_copy(update={"weights_bytes": 44_999_000_000})
    with pytest.raises(ValueError, match="2 x 1: does not fit: room for 0 tokens"):
        lane_of(profile.model_copy(update={"divisible": large}), Layout(2, 1))
    assert lane_of(profile.model_copy(update={"divisible": large}), Layout(4, 1)).room.num_tokens > 0
