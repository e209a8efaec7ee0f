"""A plan in the making."""

from __future__ import annotations

from typing import NamedTuple

from service.core.iteration_plan import NOBODY, BlockCopy, MixedShares, Past, Sample, ScheduledSequence, Transfer
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_table import BlockTable
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.lockstep_members import LockstepIteration


class Share(NamedTuple):
    """A sequence computes its tokens before position `end`, and draws."""

    group: SequenceGroup
    sequence: Sequence
    end: int
    draws: tuple[Sample, ...]


class PlanDraft:
    """The plan of iteration `number`, decided at `now_s`; what is done for it is counted in `tally`.

    budget: prompt tokens left to schedule. in_lockstep, shares_in_lockstep: the first entries of the plan, already
    counted as computed. scheduled, shares: the other entries, not counted yet. sitting_out: groups, by order of
    arrival, for which there are no blocks before transfers have finished.
    """

    __slots__ = (
        "budget",
        "copies",
        "in_lockstep",
        "now_s",
        "number",
        "scheduled",
        "shares",
        "shares_in_lockstep",
        "sitting_out",
        "tally",
        "transfers",
    )

    def __init__(self, number: int, now_s: float, tally: DecisionTally) -> None:
        self.number = number
        self.now_s = now_s
        self.tally = tally
        self.budget = 0
        self.in_lockstep: LockstepIteration | None = None
        self.shares_in_lockstep = NOBODY
        self.scheduled: list[ScheduledSequence] = []
        self.shares: list[Share] = []
        self.copies: list[BlockCopy] = []
        self.transfers: list[Transfer] = []
        self.sitting_out: set[int] = set()

    def all_shares(self) -> MixedShares:
        """Those in lockstep and the others."""
        return MixedShares(self.shares_in_lockstep, tuple(self.scheduled))

    def add(self, group: SequenceGroup, sequence: Sequence, end: int, table: BlockTable) -> None:
        """The sequence computes its tokens before position `end`, and draws if those are all. table: its own."""
        start = sequence.num_computed_tokens
        sampling = group.request.sampling
        draws: tuple[Sample, ...] = ()
        if end == len(sequence.token_ids) and sampling.max_tokens > 0:
            is_one = group.is_forked or sampling.beam is not None
            draws = sequence.draws if is_one else tuple(s.draw for s in group.live)
        table_start, block_ids = table.take_changes()
        past: Past | None = None
        if table_start == 0 and block_ids and sampling.looks_back:
            past = Past(tuple(sequence.token_ids[:start]), sequence.num_prompt_tokens)
        targets: tuple[int, ...] = ()
        if group.prompt_logprobs is not None:
            targets = group.request.prompt_token_ids[start + 1 : end + 1]
        token_ids = tuple(sequence.token_ids[start:end])
        if end - start > 1:
            group.journal.note_chunk(self.now_s, end - start, draws=bool(draws))
        self.budget -= end - start
        self.shares.append(Share(group, sequence, end, draws))
        self.scheduled.append(
            ScheduledSequence(
                sequence.sequence_id, token_ids, start, table_start, block_ids, sampling, draws, past, targets
            )
        )

    def add_chunk(self, group: SequenceGroup, sequence: Sequence, table: BlockTable) -> None:
        """As many of the sequence's tokens as the budget has left."""
        end = min(sequence.num_computed_tokens + self.budget, sequence.num_tokens)
        self.add(group, sequence, end, table)
