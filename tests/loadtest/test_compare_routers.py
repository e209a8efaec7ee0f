from __future__ import annotations

import os

import pytest

from loadtest import compare_routers
from loadtest.compare_routers import CACHE, KV, LEASTCONN, Figures, Load, Replica, main, medians, routers, table

LOAD = Load(num_requests=40, num_groups=3, prefix_len=50)


def begins(round_number: int) -> list[str]:
    return [request.prompt_text.partition(".")[0] for request in LOAD.requests(round_number)]


def test_who_is_of_a_group_begins_alike_and_a_round_has_words_of_its_own():
    first, again, second = LOAD.requests(0), LOAD.requests(0), LOAD.requests(1)
    assert first == again
    assert len({*begins(0)}) == len({request.prefix_group for request in first}) == LOAD.num_groups
    assert not {*begins(0)} & {*begins(1)}
    assert len({request.prompt_text for request in first}) == len(first), "no question is asked twice"
    for one, other in zip(first, second, strict=True):
        assert (one.arrival_s, one.prefix_group) == (other.arrival_s, other.prefix_group)
        assert len(one.prompt_text.split()) == len(other.prompt_text.split())


def test_medians_of_shares_are_of_who_got_less_and_who_got_more():
    rounds = [Figures(0.5, 10.0, 20.0, (0.2, 0.8)), Figures(0.7, 30.0, 40.0, (0.6, 0.4))]
    assert medians(rounds) == Figures(0.6, 20.0, 30.0, (pytest.approx(0.3), pytest.approx(0.7)))
    assert "30% : 70%" in table({LEASTCONN: medians(rounds)})


def test_what_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare_routers, "program", lambda name: None)
    found, left_out = routers([Replica("http://127.0.0.1:1", None)])
    assert not found
    assert left_out.keys() == {LEASTCONN, CACHE, KV}
    monkeypatch.setattr(compare_routers, "program", lambda name: os.devnull)
    found, left_out = routers([Replica("http://127.0.0.1:1", None)])
    assert found.keys() == {LEASTCONN, CACHE} and left_out.keys() == {KV}
    found, left_out = routers([Replica("http://127.0.0.1:1", ("tcp://127.0.0.1:2", "tcp://127.0.0.1:3"))])
    assert found.keys() == {LEASTCONN, CACHE, KV} and not left_out


def test_the_status_is_that_of_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    rates = {LEASTCONN: 0.5, CACHE: 0.4}

    class Stands:
        def __enter__(self) -> list[Replica]:
            return []

        def __exit__(self, *fault: object) -> None:
            pass

    monkeypatch.setattr(compare_routers, "replicas", lambda count, flags: Stands())
    monkeypatch.setattr(compare_routers, "routers", lambda behind: (dict(rates), {}))
    monkeypatch.setattr(compare_routers, "measured", lambda rate, behind, requests: Figures(rate, 1.0, 1.0, (0.5, 0.5)))
    monkeypatch.setattr("sys.argv", ["compare_routers", "--requests", "2"])
    assert main() == 1, "no router found more prefixes than leastconn"
    rates[CACHE] = 0.6
    assert main() == 0
    assert "60.0%" in capsys.readouterr().out
