from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from service.batch_jobs.idle_share import QUIET_S, EngineFacts, IdleShare

ALONE = EngineFacts(max_num_seqs=256, batch_size=0, num_waiting=0, kv_share=0.0, last_other_s=-math.inf)


def grown(facts: EngineFacts = ALONE) -> IdleShare:
    share = IdleShare()
    for tick in range(200):
        share.most(facts, 0, tick * 0.02)
    return share


def test_alone_it_gets_nearly_all_seats_within_a_second() -> None:
    share = IdleShare()
    grants = [share.most(ALONE, 0, tick * 0.02) for tick in range(51)]
    assert grants == sorted(grants)
    assert 0.9 * 256 <= grants[-1] < 256, "whoever comes first finds a seat"


@given(st.floats(1.0, 1e9))
def test_after_any_time_without_batches_it_begins_small_again(idle_s: float) -> None:
    assert grown().most(ALONE, 0, 4.0 + idle_s) == 256 // 64


@given(st.integers(1, 1024), st.integers(0, 2000), st.integers(0, 2000), st.floats(0, 1), st.floats(0, QUIET_S / 2))
def test_beside_others_it_is_small_at_once_and_never_nothing(
    seats: int, batch_size: int, num_waiting: int, kv_share: float, ago_s: float
) -> None:
    quiet = EngineFacts(seats, 0, 0, 0.0, -math.inf)
    most = grown(quiet).most(EngineFacts(seats, batch_size, num_waiting, kv_share, 4.0 - ago_s), 0, 4.0)
    assert 1 <= most <= max(1, seats // 64)


def test_it_comes_back_only_after_a_quiet_while() -> None:
    share = grown()
    facts = ALONE._replace(last_other_s=4.0)
    assert share.most(facts, 0, 4.0) == 4
    assert share.most(facts, 0, 4.0 + 0.9 * QUIET_S) == 4
    assert share.most(facts, 0, 4.01 + QUIET_S) > 4


@given(st.sampled_from([{"batch_size": 250}, {"kv_share": 0.95}, {"num_waiting": 100}]), st.integers(0, 240))
def test_where_it_is_crowded_no_more_are_added(crowded: dict[str, float], num_running: int) -> None:
    assert grown().most(ALONE._replace(**crowded), num_running, 4.0) <= max(1, num_running)
