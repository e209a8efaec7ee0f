from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.scheduler.decode_members import DecodeMembers


def make_group(number: int, client: str = "", num_logprobs: int | None = None) -> SequenceGroup:
    params = SamplingParams(9, num_logprobs=num_logprobs)
    return SequenceGroup(Request(f"r{number}", (1,), params, 0.0, client=client), number)


def test_a_copy_has_more_or_fewer_and_the_first_keeps_its_own():
    groups = [make_group(0, "a"), make_group(1, "b", num_logprobs=0), make_group(2, "a")]
    two = DecodeMembers().with_more(groups[:2], 5)
    three = two.with_more(groups[2:], 7)
    three.leave(6)
    three.leave(99)
    left = three.remaining()
    assert (two.numbers, three.numbers, left.numbers) == ([5, 6], [5, 6, 7], [5, 7])
    assert left.groups == [groups[0], groups[2]]
    assert left.request_ids == ["r0", "r2"]
    assert (three.num_by_client, left.num_by_client) == ({"a": 2, "b": 1}, {"a": 2})
    assert (three.detailed, left.detailed) == ([6], [])
    assert (three.left, left.left, two.left) == ({1: groups[1]}, {}, {})
    assert [left.place_of(number) for number in (5, 6, 7)] == [0, None, 1]


def test_ids_are_written_to_those_who_have_not_left():
    groups = [make_group(0), make_group(1)]
    members = DecodeMembers().with_more(groups, 0)
    assert [members.keep((10, 20)), members.keep((11, 21))] == [1, 2]
    assert [group.leader.token_ids for group in groups] == [[1], [1]]
    members.write_kept()
    members.leave(0)
    members.write((12, 22))
    assert [group.leader.token_ids for group in groups] == [[1, 10, 11], [1, 20, 21, 22]]
