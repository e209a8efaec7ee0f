from __future__ import annotations

import dataclasses

import pytest

from loadtest.arrivals import PoissonArrivals
from loadtest.capacity.lane import Layout, lane_of
from loadtest.capacity.replica_profile import WindowedLayers, read_profile
from loadtest.capacity.simulation import SEED, Seen, replayed, requests_of, simulate
from loadtest.random_streams import random_stream
from loadtest.trace import with_arrivals
from loadtest.workload import draw, named
from service.kvcache.cache_room import CacheRoom
from tests.loadtest.capacity.modelled_profile import MAX_MODEL_LEN, modelled_profile, run_on_the_device

WITHIN = 0.15
"""How far a plan may be off."""


@pytest.mark.parametrize(("workload", "rate"), [("orca", 12.0), ("orca", 40.0), ("sharegpt", 15.0)])
def test_what_one_burst_taught_tells_what_the_device_does_at_other_rates(workload: str, rate: float):
    profile = modelled_profile()
    requests = requests_of(named(workload), 100, MAX_MODEL_LEN)
    said = simulate(profile, lane_of(profile, Layout(1, 1)), requests, rate)
    arrivals = PoissonArrivals(rate).arrival_times(100, random_stream(SEED, "arrivals"))
    seen = Seen.of(run_on_the_device(with_arrivals(requests, arrivals.tolist())), 0.0)
    for share in (0.5, 0.95):
        assert said.ttft_s(share) == pytest.approx(seen.ttft_s(share), rel=WITHIN)
        assert said.tpot_s(share) == pytest.approx(seen.tpot_s(share), rel=WITHIN)


def test_one_h200_is_told_as_it_was_measured_over_http():
    """Figures of loadtest/log/serving.md, 2026-11-22 and 23; the profile has none of them."""
    profile = read_profile("llama-8b-h200")
    lane = lane_of(profile, Layout(1, 1))
    at_70 = simulate(profile, lane, draw(named("orca"), 1000, 0), 70.0)
    assert [at_70.ttft_s(0.5) * 1e3, at_70.ttft_s(0.99) * 1e3] == pytest.approx([22.7, 53.4], rel=WITHIN)
    assert [at_70.tpot_s(0.5) * 1e3, at_70.tpot_s(0.99) * 1e3] == pytest.approx([6.83, 10.1], rel=WITHIN)
    bursts = {
        "orca": (draw(named("orca"), 1000, 89), 116.0),
        "sharegpt": (draw(named("sharegpt"), 1000, 6), 57.4),
        "prefill": (draw(named("prefill"), 300, 0), 43_301 / 2049),
    }
    for name, (requests, measured) in bursts.items():
        assert simulate(profile, lane, requests).requests_per_s == pytest.approx(measured, rel=WITHIN), name


def test_scarce_memory_preempts_and_lowers_what_is_completed():
    profile = modelled_profile()
    lane = lane_of(profile, Layout(1, 1))
    requests = requests_of(named("sharegpt"), 60, MAX_MODEL_LEN)
    scarce = simulate(profile, dataclasses.replace(lane, room=CacheRoom((MAX_MODEL_LEN + 1024) // 16, 16)), requests)
    plenty = simulate(profile, lane, requests)
    assert scarce.num_preemptions > plenty.num_preemptions
    assert scarce.requests_per_s < plenty.requests_per_s


@pytest.mark.parametrize(("num_full", "num_windowed"), [(1, 5), (2, 5), (1, 1), (0, 1)])
def test_layers_that_see_a_window_let_more_run_at_once_as_many_as_there_is_said_to_be_room_for(
    num_full: int, num_windowed: int
):
    windowed = WindowedLayers(window_tokens=64, num_full_groups=num_full, num_windowed_groups=num_windowed)
    profile = modelled_profile().model_copy(update={"kv_tokens": 6 * MAX_MODEL_LEN, "windowed": windowed})
    lane = lane_of(profile, Layout(1, 1))
    requests = requests_of(named("fixed-1900x120"), 40, MAX_MODEL_LEN)
    plain = profile.model_copy(update={"windowed": None})
    batches = [
        max(iteration.batch_size for iteration in replayed(of, lane_of(of, Layout(1, 1)), requests).iterations)
        for of in (plain, profile)
    ]
    assert batches[0] == pytest.approx(6, abs=1)
    assert batches[1] == pytest.approx(min(40, lane.room.num_sequences(1960)), abs=2)


def test_what_is_more_than_lengths_or_too_long_is_refused():
    with pytest.raises(ValueError, match="'multi-turn' has more than lengths"):
        requests_of(named("multi-turn"), 20, MAX_MODEL_LEN)
    with pytest.raises(ValueError, match="a request of 3000 tokens; the profile's max_model_len is 2048"):
        requests_of(named("fixed-2000x1000"), 20, MAX_MODEL_LEN)
