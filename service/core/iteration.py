"""One iteration as two immutable values: the plan, which is all that the scheduler sends to the executor, and the
result, which is all that the executor returns.

The executor remembers, per row, what is constant (sampling parameters) and what grows (the block table); a plan carries
only the changes. So a plan is small enough to be sent to other ranks as one compact message (ORCA, section 4.1: control
messages apart from tensors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, FinishedTransfer, Transfer, check_moves
from service.core.embedding import Vector
from service.core.grammar import TokenMasks
from service.core.scheduled_sequence import SAMPLES, SEQUENCE_ID, TOKEN_IDS, ScheduledSequence, check_drafts
from service.core.token_logprobs import TokenLogprobs
from service.core.training import TrainingOutcome, TrainingShare

Int64Array = npt.NDArray[np.int64]

INVALID_TOKEN_ID = -1
"""In place of an id whose draw failed (the logits were not finite). Ends the request that it belongs to, no other."""

_NONE: Int64Array = np.empty(0, np.int64)


class GrownTables(NamedTuple):
    """Block tables that grew, as columns of equal length. For each i, the table of the decode at places[i] gets
    block_ids[i] at index table_starts[i]. A decode that got several blocks has several entries."""

    places: Int64Array
    table_starts: Int64Array
    block_ids: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledDecodes:
    """D decodes as columns: one array entry per decode is all that the executor has to be told.

    Each sequence was scheduled as a ScheduledSequence before. It computes `num_new_tokens` tokens (usually 1) from
    position `num_computed_tokens` on, whose ids only the executor knows yet, and draws one id after them.

    version: plans with equal versions have equal `sequence_ids`, `rows` and `seeds`, and each decode continues where
        the previous plan of that version ended.
    num_tokens: sum of num_new_tokens. grown: block tables that got new blocks.
    """

    version: int
    sequence_ids: Int64Array
    rows: Int64Array
    seeds: Int64Array
    num_computed_tokens: Int64Array
    num_new_tokens: Int64Array
    num_tokens: int
    grown: GrownTables

    def __len__(self) -> int:
        return len(self.rows)


NOTHING_GROWN = GrownTables(_NONE, _NONE, _NONE)
NO_DECODES = ScheduledDecodes(0, _NONE, _NONE, _NONE, _NONE, _NONE, 0, NOTHING_GROWN)


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """One iteration: release, load adapters, copy, compute, sample, in this order, with transfers running beside it.
    Or layer steps of a training, after the copies that make room for them, and nothing else.

    scheduled: sequences described one by one: prompt chunks, and decodes that need more than a ScheduledDecodes row.
        A sequence with drafts (speculative decoding) has several consecutive items: the first computes its last token,
        each other one a draft token, and each item draws an id as if its token were right. If a draft is wrong,
        whatever that item and later ones drew and cached is to be discarded.
    decodes: all other decodes. In the batch and in the result they come before `scheduled`.
    released: rows of sequences that finished, were aborted or were preempted; the executor may forget them. It may
        never have seen some of them. A row may be reused in this plan or a later one.
    copies: all destinations are different, and none of them is a source.
    transfers: no block is filled twice, on either side, and no device block is filled while it moves to the host.
    awaits_transfer: nothing can run before some transfer has finished; the executor may wait for one.
    masks: the ids that draws may give, where grammars restrict them. Wait for them as late as possible.
    adapter_loads: adapters to copy to the device, each to a different slot.
    training: layer steps of one training. Nothing else writes its arena; only `copies` may read from it.
    """

    scheduled: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...] = ()
    released: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaits_transfer: bool = False
    masks: TokenMasks | None = None
    decodes: ScheduledDecodes = NO_DECODES
    adapter_loads: tuple[AdapterLoad, ...] = ()
    training: TrainingShare | None = None

    def __post_init__(self) -> None:
        scheduled = self.scheduled
        if len(set(map(SEQUENCE_ID, scheduled))) < len(scheduled):
            check_drafts(scheduled)
        assert all(map(TOKEN_IDS, scheduled)), "a scheduled sequence computes at least one token"
        if self.copies or self.transfers or self.adapter_loads:
            arena = None if self.training is None else self.training.arena
            check_moves(self.copies, self.transfers, self.adapter_loads, arena)
        if self.training is not None:
            assert self.training.num_layer_steps >= 0, "a share of training is some, or asks for its state"
            assert not (self.computes or self.transfers or self.adapter_loads), "layer steps alone"

    @property
    def computes(self) -> bool:
        """Whether any sequence is scheduled."""
        return bool(self.scheduled) or len(self.decodes) > 0

    @property
    def is_empty(self) -> bool:
        return not (self.computes or self.transfers or self.awaits_transfer or self.training is not None)

    @property
    def num_sequences(self) -> int:
        """Sequences in the batch. Each draft counts as one more."""
        return len(self.decodes) + len(self.scheduled)

    @property
    def num_drafts(self) -> int:
        return len(self.scheduled) - len(set(map(SEQUENCE_ID, self.scheduled)))

    @property
    def num_draws(self) -> int:
        """How many ids are drawn."""
        return len(self.decodes) + sum(map(len, map(SAMPLES, self.scheduled)))

    @property
    def num_scheduled_tokens(self) -> int:
        return self.decodes.num_tokens + sum(map(len, map(TOKEN_IDS, self.scheduled)))


@dataclass(frozen=True, slots=True)
class IterationResult:
    """token_ids: the drawn ids: of `decodes`, then of `scheduled`; each in the plan's order, items by their `samples`.
    finished_transfers: transfers, of this plan or earlier ones, now known to have finished; each is reported once.
    logprobs: aligned with token_ids, None for draws that did not ask; empty if none did.
    prompt_logprobs: (sequence id, one entry per target), for scheduled sequences with targets.
    pooled: (sequence id, sum of hidden states), for scheduled sequences with num_pooled.
    is_replayed: the model's step was one CUDA graph.
    compute_s: seconds of computation by the device's own clock; None without such a clock, or if nothing was computed.
    training: the outcome of the plan's training share.
    """

    token_ids: tuple[int, ...]
    finished_transfers: tuple[FinishedTransfer, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...] = ()
    pooled: tuple[tuple[int, Vector], ...] = ()
    is_replayed: bool = False
    compute_s: float | None = None
    training: TrainingOutcome | None = None
