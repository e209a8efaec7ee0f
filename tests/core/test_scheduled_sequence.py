from __future__ import annotations

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import SAMPLES, SEQUENCE_ID, TOKEN_IDS, Sample, ScheduledSequence


def test_fields_are_had_by_map_as_by_their_names():
    item = ScheduledSequence(7, 1, (5, 6), 0, 0, (3,), SamplingParams(9), (Sample(7, 42),))
    assert (SEQUENCE_ID(item), TOKEN_IDS(item), SAMPLES(item)) == (item.sequence_id, item.token_ids, item.samples)
