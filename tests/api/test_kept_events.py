from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.api.kept_events import KeptEvents


def event(number: int) -> bytes:
    return b'event: x\ndata: {"sequence_number":%d}\n\n' % number


@given(sizes=st.lists(st.integers(0, 4), max_size=20), first=st.integers(0, 40), most=st.integers(0, 40))
def test_an_event_is_found_by_its_number_however_they_came(sizes: list[int], first: int, most: int) -> None:
    events, told = KeptEvents(), 0
    num_bytes = 0
    for size in sizes:
        num_bytes += events.add(b"".join([event(told + each) for each in range(size)]))
        told += size
    assert len(events) == told
    whole = [event(number) for number in range(told)]
    assert [each + b"\n\n" for each in events.read(first, most)] == whole[first : first + most]
    assert num_bytes >= sum(map(len, whole))


def test_readers_are_told_of_more_and_of_the_end_until_they_have_enough() -> None:
    events, told = KeptEvents(), []
    forget = events.tell_to(lambda: told.append((len(events), events.has_ended)))
    events.tell_to(lambda: None)
    events.add(event(0) + event(1))
    assert events.num_followers == 2
    events.end()
    forget()
    events.add(event(2))
    forget()
    assert told == [(2, False), (2, True)]
    assert events.num_followers == 1
