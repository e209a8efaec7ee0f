from __future__ import annotations

from service.scheduler.history import ENOUGH_LENGTHS, History


def test_generated_tokens_weigh_double():
    history = History()
    history.arrived("a")
    history.computed("a", 10)
    history.generated("a", 5)
    assert history.served("a") == 20


def test_time_spent_idle_cannot_be_saved_up():
    history = History()
    history.arrived("busy")
    history.computed("busy", 1000)
    history.arrived("newcomer")
    assert history.served("newcomer") == 1000
    history.computed("newcomer", 50)
    history.request_ended("newcomer")
    history.arrived("newcomer")
    assert history.served("newcomer") == 1050, "what was served before is not forgotten either"


def test_the_likely_length_waits_for_enough_examples():
    history = History()
    for length in range(ENOUGH_LENGTHS - 1):
        history.choice_ended(length)
    assert history.likely_output_length() is None
    for _ in range(300):
        history.choice_ended(7)
    assert history.likely_output_length() == 7, "old lengths are forgotten"


def test_nine_of_ten_recent_choices_were_no_longer_than_the_likely_length():
    history = History()
    for length in range(1, 101):
        history.choice_ended(length)
    likely = history.likely_output_length()
    assert likely is not None
    assert 90 <= likely <= 91
