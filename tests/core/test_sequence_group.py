from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup


def test_choices_draw_with_their_own_seed_and_the_leader_computes_alone_until_the_fork():
    group = SequenceGroup(Request("r", (7, 8), SamplingParams(max_tokens=3, n=3, seed=10), 0.0), 5)
    assert [(s.draw.sequence_id, s.draw.seed) for s in group.sequences] == [(5, 10), (6, 11), (7, 12)]
    assert [s.choice_index for s in group.sequences] == [0, 1, 2]
    assert group.computing == [group.leader]
    assert group.num_tokens_to_compute == 2
    group.is_forked = True
    assert group.computing == group.sequences
    group.live.remove(group.sequences[0])
    assert group.leader is group.sequences[1]


def test_one_choice_needs_no_fork():
    group = SequenceGroup(Request("r", (7,), SamplingParams(max_tokens=3), 0.0), 0)
    assert group.is_forked


def test_the_largest_seed_does_not_leave_64_bits():
    group = SequenceGroup(Request("r", (7,), SamplingParams(max_tokens=3, n=2, seed=2**63 - 1), 0.0), 0)
    assert [s.draw.seed for s in group.sequences] == [2**63 - 1, -(2**63)]
