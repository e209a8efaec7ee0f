from __future__ import annotations

from service.scheduler.fcfs import FirstComeFirstServed
from tests.scheduler.test_request_pool import make_group


def test_the_latest_arrival_pauses_and_nobody_overtakes():
    groups = [make_group(name, first_sequence_id=i) for i, name in enumerate("abc")]
    policy = FirstComeFirstServed()
    assert policy.victim([groups[2], groups[0], groups[1]]) is groups[2]
    assert list(policy.order(groups, 0.0)) == groups
