from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager, Fit
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.admission import OnDemandAdmission, fits_ever


def make_request(prompt: int, max_tokens: int, n: int = 1) -> Request:
    return Request("r", tuple(range(prompt)), SamplingParams(max_tokens=max_tokens, n=n), 0.0)


def test_the_watermark_holds_only_while_others_run():
    blocks = BlockManager(4, 4, NoPrefixCache())
    group = SequenceGroup(make_request(16, 1), 0)
    admission = OnDemandAdmission(watermark_blocks=1)
    assert admission.fit(group, [], blocks, [group]) is Fit.LATER
    assert admission.fit(group, [], blocks, []) is Fit.OK


def test_what_can_never_run_is_known_at_the_door():
    blocks = BlockManager(4, 4, NoPrefixCache())
    assert fits_ever(make_request(16, 1), blocks, max_num_seqs=1)
    assert not fits_ever(make_request(16, 2), blocks, max_num_seqs=1)
    assert not fits_ever(make_request(1, 1, n=2), blocks, max_num_seqs=1)
    assert fits_ever(make_request(12, 4, n=1), blocks, max_num_seqs=1)
    assert not fits_ever(make_request(12, 4, n=2), blocks, max_num_seqs=2)
