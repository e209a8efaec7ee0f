"""The engine's own tiny prompt, which tells whether iterations fail because of the executor or because of requests."""

from __future__ import annotations

from service.core.iteration import INVALID_TOKEN_ID, IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.engine.ports import Executor
from service.kvcache.block_manager import Fit
from service.scheduler.iteration_scheduler import IterationScheduler

_SEQUENCE_ID = -1
"""Requests' sequences have ids from 0."""

_TOKEN_IDS = (0, 1)


def probe(scheduler: IterationScheduler, executor: Executor) -> bool | None:
    """Compute the probe in an iteration of its own. Returns whether a token was drawn; None if there is no room for it
    now. Raises whatever the executor raises. No iteration may be in flight."""
    blocks = scheduler.blocks
    if blocks.fit(blocks.num_blocks_for(len(_TOKEN_IDS))) is not Fit.OK:
        return None
    blocks.allocate(_SEQUENCE_ID, len(_TOKEN_IDS), [])
    try:
        table = blocks.table(_SEQUENCE_ID)
        greedy, samples = SamplingParams(max_tokens=1, temperature=0.0), (Sample(_SEQUENCE_ID, 0),)
        prompt = ScheduledSequence(_SEQUENCE_ID, table.row, _TOKEN_IDS, 0, 0, tuple(table.block_ids), greedy, samples)
        result = executor.launch(IterationPlan((prompt,), released=blocks.take_released_rows())).wait()
    finally:
        blocks.free(_SEQUENCE_ID)
    scheduler.finish_transfers(result.finished_transfers)
    return result.token_ids != (INVALID_TOKEN_ID,)
