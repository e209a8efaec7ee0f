from __future__ import annotations

from service.api.random_ids import RandomIds


def test_every_id_is_new_also_beyond_those_that_are_drawn_together() -> None:
    ours, others = RandomIds(), RandomIds()
    ids = [source.next() for source in (ours, others) for _ in range(1000)]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in ids)
