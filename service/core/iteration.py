"""One iteration as two immutable values: the plan, the scheduler's only message to the executor, and the result, the
executor's only answer.

The executor keeps, per row, what does not change (parameters) and what grows (block table); the plan carries the
changes. So a plan is small, and one compact message could carry it to other ranks (ORCA, section 4.1: control messages
apart from tensors).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, Transfer, check_moves
from service.core.embedding import Vector
from service.core.grammar import TokenMasks
from service.core.scheduled_sequence import SAMPLES, SEQUENCE_ID, TOKEN_IDS, ScheduledSequence
from service.core.training import TrainingOutcome, TrainingShare

Int64Array = npt.NDArray[np.int64]

INVALID_TOKEN_ID = -1
"""Stands for a draw that failed (logits not finite); it ends the one request that it belongs to."""


_NONE: Int64Array = np.empty(0, np.int64)


class GrownTables(NamedTuple):
    """Block tables that got longer by one block each, as columns of equal length: the table of the decode at `places`
    has `block_ids` at index `table_starts`. A decode that got several blocks stands there as often."""

    places: Int64Array
    table_starts: Int64Array
    block_ids: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledDecodes:
    """D sequences that go on decoding, as columns: an array entry is all that the executor has to be told of each.

    Every one was a ScheduledSequence before. It computes `num_new_tokens` tokens, 1 as long as no more than one is
    accepted at a time, from position `num_computed_tokens` on. They are pending, and it draws one id behind them.

    version: in plans of the same version `sequence_ids`, `rows` and `seeds` are the same, and each decode computes the
        tokens behind those that it computed in the plan of that version before.
    num_tokens: of all. grown: the changes of their block tables.
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
    """One iteration, in the order: release, load adapters, copy, compute, sample; transfers run beside that. Or layer
    steps of a training, behind copies that make room for them, and nothing else.

    scheduled: sequences that are told one by one: chunks of prompts, and decodes of which there is more to tell than
        ScheduledDecodes has room for.
        One that stands there several times, one item behind the other, computes drafts: every item but the first is a
        token that may follow, and each draws an id as if it did. What an item with a wrong token, and those behind it,
        have drawn and cached is to be forgotten.
    decodes: all other decodes. In the batch, and in the result, they stand before `scheduled`.
    released: rows of sequences that have finished, were aborted or preempted: what the executor remembers of them it
        may forget. It may never have seen some of them. A row may be used again, in this plan or a later one.
    copies: destinations are distinct, and none is the source of another.
    transfers: no device block is filled twice, or filled while it moves to the host; nor is a host block filled twice.
    awaits_transfer: nothing can run before some transfer has finished; the executor may wait for one.
    masks: which ids the draws may give, where grammars restrict them; to be waited for as late as possible.
    adapter_loads: adapters that are new on the device, each in another slot.
    training: layer steps of one. Its arena is written and read by nothing else, but for copies out of it.
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
            self._check_drafts()
        assert all(map(TOKEN_IDS, scheduled)), "a scheduled sequence computes at least one token"
        if self.copies or self.transfers or self.adapter_loads:
            arena = None if self.training is None else self.training.arena
            check_moves(self.copies, self.transfers, self.adapter_loads, arena)
        if self.training is not None:
            assert self.training.num_layer_steps >= 0, "a share of training is some, or asks for its state"
            assert not (self.computes or self.transfers or self.adapter_loads), "layer steps alone"

    def _check_drafts(self) -> None:
        num_behind = 0
        for before, item in pairwise(self.scheduled):
            if item.sequence_id == before.sequence_id:
                num_behind += 1
                assert len(before.samples) == len(item.samples) == len(item.token_ids) == 1, "a draft is one token"
                assert item.num_computed_tokens == before.num_computed_tokens + len(before.token_ids), "one by one"
        assert num_behind == self.num_drafts, "a sequence is scheduled once an iteration, but for its drafts"

    @property
    def computes(self) -> bool:
        """Whether any sequence is scheduled."""
        return bool(self.scheduled) or len(self.decodes) > 0

    @property
    def is_empty(self) -> bool:
        return not (self.computes or self.transfers or self.awaits_transfer or self.training is not None)

    @property
    def num_sequences(self) -> int:
        """A draft counts as a sequence, as which it is computed."""
        return len(self.decodes) + len(self.scheduled)

    @property
    def num_drafts(self) -> int:
        return len(self.scheduled) - len(set(map(SEQUENCE_ID, self.scheduled)))

    @property
    def num_draws(self) -> int:
        """Ids that are drawn."""
        return len(self.decodes) + sum(map(len, map(SAMPLES, self.scheduled)))

    @property
    def num_scheduled_tokens(self) -> int:
        return self.decodes.num_tokens + sum(map(len, map(TOKEN_IDS, self.scheduled)))


class FinishedTransfer(NamedTuple):
    """A transfer whose copies are done. seconds: how long they took, from the end of those that were started before
    them in the same plan; None where nobody measured it. is_first: of its plan, and nothing else kept it from beginning
    at once, so that waiting for its launch is part of these seconds."""

    transfer_id: int
    seconds: float | None
    is_first: bool = True


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position, by the model alone: before penalties, masks and temperature.

    chosen: of the token that is there. top: (id, logprob) of the most probable tokens, the best first, as many as
    were asked for, or of the tokens that were asked for, in that order. rank: 1 for the most probable; known of prompt
    tokens only.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class IterationResult:
    """token_ids: the drawn ids, aligned with the plan's samples in order of `scheduled`, then of `samples`.

    finished_transfers: transfers, of this or earlier plans, that are known to have finished; each once.
    logprobs: aligned with token_ids, None for draws that did not ask; empty if none did.
    prompt_logprobs: (sequence id, one entry a target) of the scheduled sequences that have targets.
    pooled: (sequence id, sum of hidden states) of the scheduled sequences that pool some.
    is_replayed: the model's step was one CUDA graph.
    compute_s: seconds that the device computed, by its own clock; None if it has none, or nothing was computed.
    training: what came of the plan's share.
    """

    token_ids: tuple[int, ...]
    finished_transfers: tuple[FinishedTransfer, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...] = ()
    pooled: tuple[tuple[int, Vector], ...] = ()
    is_replayed: bool = False
    compute_s: float | None = None
    training: TrainingOutcome | None = None
